from __future__ import annotations

import io
import json
import logging
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from tests.waiting import until
from trident.core.observability.metrics.snapshot import MetricsSnapshot
from trident.core.observability.metrics_log import CloudLogging, MetricsLog

LONG_S = 3600.0
SHORT_S = 0.01


class Output(io.StringIO):
    """A stream that notes each write, and fails while `error` is set."""

    def __init__(self) -> None:
        super().__init__()
        self.writes: list[str] = []
        self.error: OSError | None = None

    def write(self, text: str) -> int:
        if self.error is not None:
            raise self.error
        self.writes.append(text)
        return len(text)


@contextmanager
def logging_to(out: Output, interval_s: float) -> Iterator[MetricsLog]:
    log = MetricsLog(MetricsSnapshot, lambda: True, CloudLogging({}), interval_s, out=out, wall_clock=lambda: 0)
    log.start()
    try:
        yield log
    finally:
        log.close()


def test_a_line_of_each_interval_is_one_write() -> None:
    out = Output()
    with logging_to(out, SHORT_S):
        until(lambda: len(out.writes) >= 3)
    for text in out.writes:
        assert text.endswith("}\n")
        assert json.loads(text)["metrics"]["request_success"] == 0


def test_the_last_interval_ends_with_the_log() -> None:
    out = Output()
    with logging_to(out, LONG_S) as log:
        assert out.writes == []
        log.close()
        assert len(out.writes) == 1
    assert len(out.writes) == 1


def test_a_log_that_was_not_started_closes() -> None:
    out = Output()
    MetricsLog(MetricsSnapshot, lambda: True, CloudLogging({}), LONG_S, out=out).close()
    assert out.writes == []


def test_lines_that_cannot_be_written_are_lost_with_one_line_in_the_log(caplog: pytest.LogCaptureFixture) -> None:
    out = Output()
    out.error = BrokenPipeError(32, "Broken pipe")
    failures = 0

    def read() -> MetricsSnapshot:
        nonlocal failures
        failures += 1
        return MetricsSnapshot()

    with caplog.at_level(logging.ERROR, "trident.observability"):
        log = MetricsLog(read, lambda: True, CloudLogging({}), SHORT_S, out=out)
        log.start()
        until(lambda: failures >= 4)
        out.error = None
        until(lambda: out.writes)
        log.close()
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("the metrics cannot be written to stdout: [Errno 32] Broken pipe")
