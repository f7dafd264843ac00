"""The metrics of batch buckets."""

from __future__ import annotations

from trident.core.observability.metrics.exposition import Sample
from trident.core.observability.metrics.families import bucket_families
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.observability.statistics import BucketUse


def test_a_series_has_the_sizes_that_the_model_pads_to() -> None:
    rows, lengths = ModelStatistics(), ModelStatistics()
    rows.record_bucket(BucketUse(4, 0, 6, 2))
    lengths.record_bucket(BucketUse(0, 16, 12, 4))
    executions, elements, padding = bucket_families(
        [({"model": "a"}, rows.snapshot()), ({"model": "b"}, lengths.snapshot()), ({}, ModelStatistics().snapshot())]
    )
    by_rows, by_length = {"model": "a", "batch_size": "4"}, {"model": "b", "length": "16"}
    assert executions.samples == (Sample(by_rows, 1), Sample(by_length, 1))
    assert elements.samples == (Sample(by_rows, 6), Sample(by_length, 12))
    assert padding.samples == (Sample(by_rows, 2), Sample(by_length, 4))
