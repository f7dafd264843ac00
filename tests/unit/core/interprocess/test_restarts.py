"""Restarts of processes, log lines about their exits, and the failure note of a child."""

from __future__ import annotations

import signal

import pytest

from trident.core.interprocess.restarts import Restarts, end_text


def test_restart_delay_grows_with_early_exits_and_resets_after_a_long_run() -> None:
    now = 100.0
    restarts = Restarts(lambda: now)
    assert [restarts.ended(restarts.started()) for _ in range(9)] == [0, 0, 0, 1, 3, 7, 15, 31, 31]
    assert not restarts.is_due()
    now += 31
    assert restarts.is_due()
    started = restarts.started()
    now += 60
    assert restarts.ended(started) == 0
    assert restarts.is_due()


def test_simultaneous_exits_count_once() -> None:
    now = 100.0
    restarts = Restarts(lambda: now)
    together = [restarts.started() for _ in range(8)]
    now += 1
    assert [restarts.ended(started) for started in together] == [0] * 8
    assert [restarts.ended(restarts.started()) for _ in range(3)] == [0, 0, 1]


@pytest.mark.parametrize(
    ("code", "text"),
    [
        (0, "ended with status 0"),
        (3, "ended with status 3"),
        (-signal.SIGKILL, "was ended by SIGKILL"),
        (-(signal.SIGRTMIN + 1), f"was ended by signal {signal.SIGRTMIN + 1}"),
    ],
)
def test_the_log_names_the_status_or_the_signal(code: int, text: str) -> None:
    assert end_text(code) == text
