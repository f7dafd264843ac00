from __future__ import annotations

import pytest

from trident.app.worker.http2.frames import (
    ErrorCode,
    FloodGuard,
    Http2Limits,
    PingStrikes,
    ProtocolError,
    ResetStreams,
)
from trident.app.worker.http2.streams import Unsent


def exhausted() -> FloodGuard:
    guard = FloodGuard(10, 5, 100.0)
    for _ in range(10):
        guard.spend("tests", 100.0, 0)
    return guard


def test_more_than_the_burst_ends_the_connection():
    with pytest.raises(ProtocolError, match="too many tests") as caught:
        exhausted().spend("tests", 100.0, 0)
    assert caught.value.code is ErrorCode.ENHANCE_YOUR_CALM


def test_time_gives_the_rate_back_and_no_more_than_the_burst():
    guard = exhausted()
    for _ in range(5):
        guard.spend("tests", 101.0, 0)
    with pytest.raises(ProtocolError):
        guard.spend("tests", 101.0, 0)
    guard = exhausted()
    guard.spend("tests", 1000.0, 0)
    assert guard.left == 10


def test_each_answer_counts_once():
    guard = exhausted()
    for _ in range(3):
        guard.spend("tests", 100.0, 3)
    with pytest.raises(ProtocolError):
        guard.spend("tests", 100.0, 3)


LIMITS = Http2Limits(ping_interval_s=300, ping_interval_idle_s=7200, ping_strikes=2)


def test_pings_that_keep_their_distance():
    pings = PingStrikes(LIMITS)
    for number in range(10):
        pings.count(300.0 * number, 0, idle=False)
    for number in (10, 11):  # the distance is longer while nothing is open
        pings.count(300.0 * number, 0, idle=True)
    with pytest.raises(ProtocolError, match="too_many_pings"):
        pings.count(300.0 * 12, 0, idle=True)


def test_an_answer_forgets_the_strikes():
    pings = PingStrikes(LIMITS)
    for answers in range(10):
        for _ in range(3):
            pings.count(1.0, answers, idle=False)
    with pytest.raises(ProtocolError, match="too_many_pings"):
        pings.count(1.0, 9, idle=False)


def test_without_a_limit_of_strikes():
    pings = PingStrikes(Http2Limits(ping_strikes=0))
    for _ in range(100):
        pings.count(1.0, 0, idle=True)


def test_the_latest_are_known():
    streams = ResetStreams(3)
    for id in (1, 3, 5, 7):
        streams.add(id)
    assert [id for id in range(10) if id in streams] == [3, 5, 7]


@pytest.mark.parametrize("step", [1, 2, 3, 7])
def test_it_is_cut_in_order_whatever_its_parts(step: int):
    unsent = Unsent(0.0)
    unsent.add((b"abc", memoryview(b"d"), b""), 4)
    unsent.add((bytearray(b"efg"),), 3)
    cut = []
    while unsent.size:
        parts = unsent.cut(min(step, unsent.size))
        cut.append(b"".join(parts))
    assert b"".join(cut) == b"abcdefg"
    assert {len(part) for part in cut[:-1]} <= {step}
