from __future__ import annotations

import random

import pytest

from tests.unit.pending_requests import pending_request
from trident.core.scheduling.latency_target import Window


def window_of(latencies: list[int]) -> Window:
    window = Window(0)
    for latency in latencies:
        window.note([pending_request(enqueue_ns=1)], 1, latency + 1)
    return window


def test_executions_are_summed() -> None:
    window = Window(100)
    window.note([pending_request(batch_size=2), pending_request(batch_size=0)], 150, 170)
    window.note([pending_request(batch_size=1)], 160, 200)
    assert (window.requests, window.executions, window.sizes, window.squares) == (3, 2, 4, 10)
    assert (window.busy_ns, window.products, window.duration_ns) == (60, 100, 100)
    assert window.mean_size == 2


@pytest.mark.parametrize("scale", [1, 50, 1000, 10**6, 10**10])
def test_a_percentile_is_at_most_a_32nd_too_much(scale: int) -> None:
    source = random.Random(scale)
    latencies = [source.randrange(1, 100 * scale) for _ in range(1000)]
    window = window_of(latencies)
    for share, rank in ((0.99, 990), (0.5, 500)):
        exact = sorted(latencies)[rank - 1]
        assert exact <= window.percentile_ns(share) <= max(sorted(latencies)[rank], exact) * 33 / 32
    assert window.percentile_ns(1) >= max(latencies)


def test_a_latency_runs_from_the_arrival() -> None:
    window = Window(0)
    pending = pending_request(enqueue_ns=50)
    pending.request.arrived_ns = 40
    window.note([pending], 60, 70)
    assert window.percentile_ns(0.99) == 30


def test_without_requests_there_is_no_latency() -> None:
    assert Window(0).percentile_ns(0.99) == 0
