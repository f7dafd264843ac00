from __future__ import annotations

import pytest

from trident.app.worker.http2.frames import ConnectionFault, ErrorCode, FloodGuard


def exhausted() -> FloodGuard:
    guard = FloodGuard(10, 5, 100.0)
    for _ in range(10):
        guard.spend("tests", 100.0, 0)
    return guard


def test_more_than_the_burst_ends_the_connection():
    with pytest.raises(ConnectionFault, match="too many tests") as caught:
        exhausted().spend("tests", 100.0, 0)
    assert caught.value.code is ErrorCode.ENHANCE_YOUR_CALM


def test_time_gives_the_rate_back_and_no_more_than_the_burst():
    guard = exhausted()
    for _ in range(5):
        guard.spend("tests", 101.0, 0)
    with pytest.raises(ConnectionFault):
        guard.spend("tests", 101.0, 0)
    guard = exhausted()
    guard.spend("tests", 1000.0, 0)
    assert guard.left == 10


def test_each_answer_counts_once():
    guard = exhausted()
    for _ in range(3):
        guard.spend("tests", 100.0, 3)
    with pytest.raises(ConnectionFault):
        guard.spend("tests", 100.0, 3)
