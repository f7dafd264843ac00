"""Lines of native libraries as events of the log."""

from __future__ import annotations

import logging
from datetime import datetime

import pytest

from trident.core.observability.log import log_native_line

LINE = "2026-11-23 09:02:28.207427347 [%s:onnxruntime:simple, graph.cc:777 Resolve] some text [1, 2]"
PID = 4711


@pytest.fixture
def log(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.DEBUG, "trident")
    return caplog


@pytest.mark.parametrize(
    ("letter", "level"),
    [("V", logging.DEBUG), ("I", logging.DEBUG), ("W", logging.WARNING), ("E", logging.ERROR), ("F", logging.ERROR)],
)
def test_a_line_in_the_known_form_keeps_its_parts(log: pytest.LogCaptureFixture, letter: str, level: int) -> None:
    log_native_line(LINE % letter, PID)
    (record,) = log.records
    assert (record.name, record.levelno, record.getMessage()) == ("trident.onnxruntime", level, "some text [1, 2]")
    assert (record.filename, record.lineno, record.process) == ("graph.cc", 777, PID)
    assert record.__dict__["session"] == "simple"
    assert record.created == datetime(2026, 11, 23, 9, 2, 28, 207427).timestamp()


def test_colours_are_removed(log: pytest.LogCaptureFixture) -> None:
    log_native_line(f"\x1b[0;93m{LINE % 'W'}\x1b[m", PID)
    assert log.messages == ["some text [1, 2]"]


@pytest.mark.parametrize("line", ["free(): invalid pointer", "2026-11-23 [W:x] y", "%s %d", LINE[:40]])
def test_any_other_line_is_a_warning(log: pytest.LogCaptureFixture, line: str) -> None:
    log_native_line(line, PID)
    (record,) = log.records
    assert (record.name, record.levelno, record.getMessage()) == ("trident.native", logging.WARNING, line)
    assert record.process == PID


def test_empty_and_hidden_lines_are_no_events(log: pytest.LogCaptureFixture) -> None:
    log.set_level(logging.INFO, "trident")
    for line in ("", "  \n", LINE % "V"):
        log_native_line(line, PID)
    assert log.records == []


def test_a_time_that_is_none_does_not_lose_the_line(log: pytest.LogCaptureFixture) -> None:
    log_native_line(LINE.replace("2026-11-23", "2026-99-99") % "E", PID)
    assert log.messages == ["some text [1, 2]"]
