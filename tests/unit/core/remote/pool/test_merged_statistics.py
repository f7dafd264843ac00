"""The statistics of one version in several engines."""

from __future__ import annotations

from dataclasses import fields, replace

from trident.core.inference.pending_request import CancelCause
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.observability.statistics import (
    BatchStatistics,
    BatchTuning,
    BucketStatistics,
    FailureReason,
    ResponseStatistics,
    StatisticsSnapshot,
    VersionStatistics,
)
from trident.core.remote.merged import merged_statistics, merged_version_statistics

EMPTY = ModelStatistics().snapshot()


def counted(number: int) -> StatisticsSnapshot:
    """A snapshot in which every plain number is `number`."""
    return replace(EMPTY, **{each.name: number for each in fields(StatisticsSnapshot) if each.type == "int"})


def batch(size: int, count: int) -> BatchStatistics:
    return BatchStatistics(
        batch_size=size, execution_count=count, compute_input_ns=1, compute_infer_ns=2, compute_output_ns=3
    )


def test_every_number_is_a_sum_but_the_last_inference_and_the_oldest_execution() -> None:
    merged = merged_statistics([counted(3), counted(4)])
    latest = {"last_inference_ms": 4, "oldest_execution_ns": 4}
    assert merged == replace(merged_statistics([counted(7)]), **latest, batch_closes=merged.batch_closes)
    assert merged.request_success == 7


def test_counts_by_reason_are_added() -> None:
    one = replace(EMPTY, request_failures={FailureReason.OTHER: 2}, request_cancellations={CancelCause.CLIENT: 1})
    other = replace(EMPTY, request_failures={FailureReason.OTHER: 3, FailureReason.BACKEND: 0})
    merged = merged_statistics([one, other])
    assert merged.request_failures == {FailureReason.OTHER: 5, FailureReason.BACKEND: 0}
    assert merged.request_cancellations[CancelCause.CLIENT] == 1


def test_batches_are_added_by_size() -> None:
    merged = merged_statistics(
        [replace(EMPTY, batches=(batch(1, 5), batch(4, 1))), replace(EMPTY, batches=(batch(2, 1), batch(4, 2)))]
    )
    assert [(each.batch_size, each.execution_count) for each in merged.batches] == [(1, 5), (2, 1), (4, 3)]
    assert merged.batches[2].compute_output_ns == 6


def test_buckets_and_responses_are_added_by_what_they_are_counted_for() -> None:
    bucket = BucketStatistics(batch_size=8, length=0, execution_count=1, element_count=10, padding_count=2)
    response = ResponseStatistics(index=0, counts=(1, 0, 0, 0), durations_ns=(5, 0, 0, 0))
    later = ResponseStatistics(index=1, counts=(1, 1, 0, 0), durations_ns=(5, 7, 0, 0))
    one = replace(EMPTY, buckets=(bucket,), responses=(response,))
    merged = merged_statistics([one, replace(one, responses=(response, later))])
    assert merged.buckets == (replace(bucket, execution_count=2, element_count=20, padding_count=4),)
    assert merged.responses == (replace(response, counts=(2, 0, 0, 0), durations_ns=(10, 0, 0, 0)), later)


def test_the_largest_limits_of_the_batchers_are_shown() -> None:
    one = replace(EMPTY, tuning=BatchTuning(target_p99_ns=9, delay_ns=1, max_size=4))
    other = replace(EMPTY, tuning=BatchTuning(target_p99_ns=9, delay_ns=2, max_size=3))
    assert merged_statistics([one, other, EMPTY]).tuning == BatchTuning(target_p99_ns=9, delay_ns=2, max_size=4)


def test_versions_that_only_one_engine_has_are_kept() -> None:
    one = VersionStatistics(name="a", version=1, statistics=counted(1), memory_bytes=5)
    two = VersionStatistics(name="a", version=2, statistics=counted(1))
    merged = merged_version_statistics([[one], [one, two]])
    assert [(each.version, each.statistics.request_success, each.memory_bytes) for each in merged] == [
        (1, 2, 10),
        (2, 1, 0),
    ]
