"""Executions counted by their bucket."""

from __future__ import annotations

from trident.core.observability.statistics import BucketCounters, BucketStatistics, BucketUse


def test_each_bucket_is_summed_by_itself_in_ascending_order() -> None:
    counters = BucketCounters()
    for use in (BucketUse(4, 8, 20, 12), BucketUse(1, 8, 8, 0), BucketUse(4, 8, 30, 2), BucketUse(4, 4, 16, 0)):
        counters.count(use)
    assert counters.snapshot() == (
        BucketStatistics(batch_size=1, length=8, execution_count=1, element_count=8, padding_count=0),
        BucketStatistics(batch_size=4, length=4, execution_count=1, element_count=16, padding_count=0),
        BucketStatistics(batch_size=4, length=8, execution_count=2, element_count=50, padding_count=14),
    )
