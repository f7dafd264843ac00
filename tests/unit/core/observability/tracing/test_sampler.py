from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from trident.core.observability.tracing.settings import Sampler, TraceSettings


@pytest.mark.parametrize(
    ("rate", "count", "sampled", "left"),
    [
        (1, -1, [1, 2, 3, 4, 5, 6, 7], -1),
        (3, -1, [3, 6], -1),
        (1000, -1, [], -1),
        (1, 2, [1, 2], 0),
        (2, 5, [2, 4, 6], 2),
        (1, 0, [], 0),
        (0, -1, [], -1),
    ],
)
def test_every_nth_request_is_sampled_while_some_are_left(rate: int, count: int, sampled: list[int], left: int) -> None:
    sampler = Sampler(TraceSettings(levels=("TIMESTAMPS",), rate=rate, count=count))
    assert [number for number in range(1, 8) if sampler.sample()] == sampled
    assert (sampler.left, sampler.sampled) == (left, len(sampled))


def test_threads_share_the_count() -> None:
    sampler = Sampler(TraceSettings(levels=("TIMESTAMPS",), rate=2, count=300))
    with ThreadPoolExecutor(4) as threads:
        found = sum(threads.map(lambda _: sum(sampler.sample() for _ in range(250)), range(4)))
    assert (found, sampler.left) == (300, 0)


def test_nothing_is_sampled_without_a_level() -> None:
    assert not Sampler(TraceSettings(rate=1)).sample()
