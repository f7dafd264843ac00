"""The statistics of one model version in several engines, as those of one.

Counts and durations are sums. Source: docs/spec/statistics-and-metrics.md section A.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, TypeVar

from core.observability.bucket_statistics import BucketStatistics
from core.observability.response_statistics import ResponseStatistics
from core.observability.statistics import BatchStatistics, BatchTuning, StatisticsSnapshot, VersionStatistics

K = TypeVar("K", bound=Hashable)
S = TypeVar("S")

_SUMS = (
    "request_success",
    "inference_count",
    "execution_count",
    "request_ns",
    "queue_ns",
    "compute_input_ns",
    "compute_infer_ns",
    "compute_output_ns",
    "pending",
    "failure_ns",
    "cache_hit_count",
    "cache_hit_ns",
    "cache_miss_count",
    "cache_miss_ns",
)
_BATCH_SUMS = ("execution_count", "compute_input_ns", "compute_infer_ns", "compute_output_ns")
_BUCKET_SUMS = ("execution_count", "element_count", "padding_count")


def merged_version_statistics(of_engines: Iterable[Sequence[VersionStatistics]]) -> list[VersionStatistics]:
    """One item per version of each model, in the order in which the engines name them."""
    found: dict[tuple[str, int], list[VersionStatistics]] = {}
    for versions in of_engines:
        for version in versions:
            found.setdefault((version.name, version.version), []).append(version)
    return [
        VersionStatistics(
            name=name,
            version=version,
            statistics=merged_statistics([each.statistics for each in same]),
            memory_bytes=sum(each.memory_bytes for each in same),
        )
        for (name, version), same in found.items()
    ]


def merged_statistics(parts: Sequence[StatisticsSnapshot]) -> StatisticsSnapshot:
    """The sum of at least one snapshot; the last inference is the latest of all."""
    if len(parts) == 1:
        return parts[0]
    return replace(
        summed(parts, _SUMS),
        last_inference_ms=max(part.last_inference_ms for part in parts),
        oldest_execution_ns=max(part.oldest_execution_ns for part in parts),
        request_failures=added(part.request_failures for part in parts),
        request_refusals=added(part.request_refusals for part in parts),
        request_cancellations=added(part.request_cancellations for part in parts),
        batch_closes=added(part.batch_closes for part in parts),
        batches=_batches(parts),
        responses=_responses(parts),
        buckets=_buckets(parts),
        tuning=_tuning(parts),
    )


def added(counts: Iterable[Mapping[K, int]]) -> dict[K, int]:
    """The sum of counts by key; keys with 0 stay."""
    total: Counter[K] = Counter()
    for part in counts:
        total.update(part)
    return dict(total)


def summed(parts: Sequence[S], names: Sequence[str]) -> S:
    """The first of some dataclass objects, with the sums of the fields `names`."""
    sums: dict[str, Any] = {name: sum(getattr(part, name) for part in parts) for name in names}
    return replace(parts[0], **sums)  # type: ignore[type-var]


def grouped(items: Iterable[S], key: Callable[[S], Any]) -> list[list[S]]:
    """The items in groups with the same key, ascending by it."""
    ordered = sorted(items, key=key)
    return [list(same) for _, same in groupby(ordered, key)]


def _batches(parts: Sequence[StatisticsSnapshot]) -> tuple[BatchStatistics, ...]:
    batches = grouped((batch for part in parts for batch in part.batches), lambda batch: batch.batch_size)
    return tuple(summed(same, _BATCH_SUMS) for same in batches)


def _buckets(parts: Sequence[StatisticsSnapshot]) -> tuple[BucketStatistics, ...]:
    buckets = (bucket for part in parts for bucket in part.buckets)
    return tuple(summed(same, _BUCKET_SUMS) for same in grouped(buckets, lambda each: (each.batch_size, each.length)))


def _responses(parts: Sequence[StatisticsSnapshot]) -> tuple[ResponseStatistics, ...]:
    responses = (response for part in parts for response in part.responses)
    return tuple(
        ResponseStatistics(
            index=same[0].index,
            counts=column_sums([each.counts for each in same]),
            durations_ns=column_sums([each.durations_ns for each in same]),
        )
        for same in grouped(responses, lambda response: response.index)
    )


def column_sums(rows: Sequence[Sequence[int]]) -> tuple[int, ...]:
    """The sums of rows of the same length, column by column."""
    return tuple(map(sum, zip(*rows, strict=True)))


def _tuning(parts: Sequence[StatisticsSnapshot]) -> BatchTuning | None:
    """The largest limits that any of the batchers has set itself."""
    found = [part.tuning for part in parts if part.tuning is not None]
    if not found:
        return None
    return replace(found[0], delay_ns=max(one.delay_ns for one in found), max_size=max(one.max_size for one in found))
