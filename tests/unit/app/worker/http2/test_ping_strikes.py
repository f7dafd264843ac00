from __future__ import annotations

import pytest

from trident.app.worker.http2.frames import ConnectionFault, Http2Limits, PingStrikes

LIMITS = Http2Limits(ping_interval_s=300, ping_interval_idle_s=7200, ping_strikes=2)


def test_pings_that_keep_their_distance():
    pings = PingStrikes(LIMITS)
    for number in range(10):
        pings.count(300.0 * number, 0, idle=False)
    for number in (10, 11):  # the distance is longer while nothing is open
        pings.count(300.0 * number, 0, idle=True)
    with pytest.raises(ConnectionFault, match="too_many_pings"):
        pings.count(300.0 * 12, 0, idle=True)


def test_an_answer_forgets_the_strikes():
    pings = PingStrikes(LIMITS)
    for answers in range(10):
        for _ in range(3):
            pings.count(1.0, answers, idle=False)
    with pytest.raises(ConnectionFault, match="too_many_pings"):
        pings.count(1.0, 9, idle=False)


def test_without_a_limit_of_strikes():
    pings = PingStrikes(Http2Limits(ping_strikes=0))
    for _ in range(100):
        pings.count(1.0, 0, idle=True)
