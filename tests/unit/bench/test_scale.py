"""The simulation of replicas: its queues and its autoscaler."""

from __future__ import annotations

import math

import pytest

from bench.scale import Autoscaler, Rule, arrivals, simulate


def test_waits_are_those_of_queueing_theory() -> None:
    service_s, load = 0.01, 0.7
    times = list(arrivals(None, 400.0, peak=load / service_s))
    seen = simulate(Rule("one", None, 1), times, service_s, math.inf).durations
    # The mean wait of random arrivals for one server with a constant time of service.
    expected = load / (2 * (1 - load)) * service_s
    assert sum(seen) / len(seen) - service_s == pytest.approx(expected, rel=0.1)


def test_requests_beyond_the_timeout_are_refused() -> None:
    outcome = simulate(Rule("one", None, 1), [0.0] * 10, 1.0, 2.0)
    assert outcome.refused == 7
    assert outcome.durations == [1.0, 2.0, 3.0]


@pytest.mark.parametrize(("count", "ratio", "expected"), [(2, 1.05, 2), (2, 2.4, 5), (2, 100, 6), (6, 2, 10)])
def test_autoscaler_grows_within_its_limits(count: int, ratio: float, expected: int) -> None:
    assert Autoscaler(2).replicas(0.0, count, ratio) == expected


def test_autoscaler_removes_one_a_minute_after_five_quiet_minutes() -> None:
    scaler = Autoscaler(2)
    counts = [scaler.replicas(0.0, 4, 2)]
    for poll in range(1, 30):
        counts.append(scaler.replicas(poll * 15.0, counts[-1], 0))
    assert counts[:20] == [8] * 20
    assert counts[20:29:4] == [7, 6, 5]
