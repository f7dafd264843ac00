from __future__ import annotations

import pytest

from trident.core.scheduling.rate_limiter import Bid, Resource, admitted

R, S = Resource("r", 0), Resource("s", None)


@pytest.mark.parametrize(
    ("bids", "free", "expected"),
    [
        ([], {R: 1}, []),
        ([Bid(0, 1, {R: 1})], {R: 1}, [0]),
        ([Bid(0, 1, {R: 1})], {R: 0}, []),
        ([Bid(0, 1, {R: 1})], {}, []),
        # The smallest turn is first; of equal turns the earliest.
        ([Bid(5, 1, {R: 1}), Bid(4, 2, {R: 1})], {R: 1}, [1]),
        ([Bid(5, 2, {R: 1}), Bid(5, 1, {R: 1})], {R: 1}, [1]),
        ([Bid(5, 2, {R: 1}), Bid(5, 1, {R: 1})], {R: 2}, [1, 0]),
        # All that is needed, or nothing.
        ([Bid(0, 1, {R: 1, S: 1})], {R: 1, S: 0}, []),
        ([Bid(0, 1, {R: 1, S: 1})], {R: 1, S: 1}, [0]),
        # One that cannot run yet is not overtaken by one that needs less of the same,
        ([Bid(0, 1, {R: 3}), Bid(1, 2, {R: 1})], {R: 2}, []),
        ([Bid(0, 1, {R: 1, S: 1}), Bid(1, 2, {S: 1})], {R: 0, S: 1}, []),
        # unless there is enough for both,
        ([Bid(0, 1, {R: 1, S: 1}), Bid(1, 2, {S: 1})], {R: 0, S: 2}, [1]),
        # and it does not hold up others that need something else.
        ([Bid(0, 1, {R: 1}), Bid(1, 2, {S: 1})], {R: 0, S: 1}, [1]),
        # A limit sank below what is held.
        ([Bid(0, 1, {R: 1})], {R: -1}, []),
    ],
)
def test_who_may_run(bids: list[Bid], free: dict[Resource, int], expected: list[int]) -> None:
    assert admitted(bids, free) == expected
