from __future__ import annotations

import pytest

from tests.unit.pending_requests import pending_request
from trident.core.lifecycle.long_executions import LongExecutions
from trident.core.lifecycle.version import ModelVersion

SECOND = 1_000_000_000


def no_other(name: str, version: int) -> ModelVersion:
    raise AssertionError


def test_an_execution_is_logged_after_ten_seconds_and_whenever_that_has_doubled(
    caplog: pytest.LogCaptureFixture,
) -> None:
    version = ModelVersion("m", 1, "a test", no_other)
    batch = [pending_request(f"r{number}") for number in range(10)]
    version.statistics.begin_execution("m_0", batch, 5 * SECOND)
    executions = LongExecutions(lambda: [version])
    logged = []
    for now_s in range(5, 100):
        executions.look(now_s * SECOND)
        if caplog.messages:
            logged.append(now_s - 5)
            text = caplog.messages[0]
            caplog.clear()
    assert logged == [10, 20, 40, 80]
    assert text == (
        "model 'm' version 1: an execution on instance 'm_0' has run for 80 s; its batch has 10, request ids: 'r0', "
        "'r1', 'r2', 'r3', 'r4', 'r5', 'r6', 'r7' and 2 others"
    )
    version.statistics.end_execution("m_0")
    version.statistics.begin_execution("m_0", batch, 100 * SECOND)
    executions.look(105 * SECOND)
    executions.look(110 * SECOND)
    assert len(caplog.messages) == 1
