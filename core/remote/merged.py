"""The metrics of several engines as those of one server: counters and histograms are sums, gauges what fits each.

Source: docs/spec/statistics-and-metrics.md section B.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Hashable, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import groupby
from typing import Any, TypeVar

from trident.core.lifecycle.state import IndexEntry, ModelState
from trident.core.observability.hardware import HardwareReading, PinnedMemory
from trident.core.observability.latencies import Exemplar, HistogramMetrics, LatencyMetrics, SummaryMetrics
from trident.core.observability.metrics.snapshot import (
    CustomFamilyMetrics,
    CustomSeriesMetrics,
    MetricsSnapshot,
    ModelMetrics,
    ModelProcessMetrics,
    RemoteCacheMetrics,
    VersionStateMetrics,
)
from trident.core.observability.statistics import (
    BatchStatistics,
    BatchTuning,
    BucketStatistics,
    ResponseStatistics,
    StatisticsSnapshot,
    VersionStatistics,
)
from trident.core.observability.tracing.trace import TraceMetrics

# The worst first. None is a model that was never loaded.
_ORDER = (ModelState.UNAVAILABLE, None, ModelState.UNLOADING, ModelState.LOADING, ModelState.READY)


def worst_state(states: Iterable[ModelState | None]) -> ModelState | None:
    """The state that counts for a version that has these states in the engines; at least one."""
    return min(states, key=_ORDER.index)


def merged_index(of_engines: Sequence[Sequence[IndexEntry]]) -> list[IndexEntry]:
    """The entries by model and version, each in its worst state, with the first reason that an engine gives for it.

    A version that only some engines know is in the state in which they have it: the others are about to know it, or
    know no longer.
    """
    found: dict[tuple[str, int | None], list[IndexEntry]] = {}
    for entries in of_engines:
        for entry in entries:
            found.setdefault((entry.name, entry.version), []).append(entry)
    with_versions = {name for name, version in found if version is not None}
    return [
        _merged(same)
        for (name, version), same in sorted(found.items(), key=lambda item: (item[0][0], item[0][1] or 0))
        if version is not None or name not in with_versions
    ]


def _merged(same: Sequence[IndexEntry]) -> IndexEntry:
    state = worst_state(entry.state for entry in same)
    worst = [entry for entry in same if entry.state is state]
    reason = next((entry.reason for entry in [*worst, *same] if entry.reason), "")
    return IndexEntry(name=same[0].name, version=same[0].version, state=state, reason=reason)


# Counts and durations are sums. Source: docs/spec/statistics-and-metrics.md section A.


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


T = TypeVar("T")

_CACHE_SUMS = ("size", "used", "entries", "evictions")
_RESOURCE_SUMS = ("limit", "held", "waiting")
_DOWNLOAD_SUMS = ("bytes", "objects", "cache_hits", "retries", "seconds", "pending_bytes")


def merged_metrics(parts: Sequence[MetricsSnapshot]) -> MetricsSnapshot:
    """At least one snapshot, as one."""
    if len(parts) == 1:
        return parts[0]
    models = (model for part in parts for model in part.models)
    loads = (load for part in parts for load in part.loads)
    resources = (resource for part in parts for resource in part.resources)
    return MetricsSnapshot(
        models=tuple(map(_model, grouped(models, lambda each: (each.model, each.namespace or "", each.version)))),
        states=_states(parts),
        loads=tuple(summed(same, ("count",)) for same in grouped(loads, lambda each: (each.cause, each.result))),
        hardware=_hardware([part.hardware for part in parts]),
        downloads=_all_of((part.downloads for part in parts), lambda found: summed(found, _DOWNLOAD_SUMS)),
        response_cache=_all_of((part.response_cache for part in parts), lambda found: summed(found, _CACHE_SUMS)),
        remote_cache=_all_of((part.remote_cache for part in parts), _remote_cache),
        resources=tuple(
            summed(same, _RESOURCE_SUMS) for same in grouped(resources, lambda each: (each.resource, each.device))
        ),
        traces=_all_of((part.traces for part in parts), _traces),
        custom=_custom(parts),
    )


def _all_of(found: Iterable[T | None], merge: Callable[[list[T]], T]) -> T | None:
    there = [each for each in found if each is not None]
    return merge(there) if there else None


def _model(same: Sequence[ModelMetrics]) -> ModelMetrics:
    """The loads of a model took as long as the longest; several GPUs are no GPU, as in one engine."""
    gpus = {each.gpu_uuid for each in same}
    return replace(
        same[0],
        statistics=merged_statistics([each.statistics for each in same]),
        load_duration_secs=max(each.load_duration_secs for each in same),
        gpu_uuid=gpus.pop() if len(gpus) == 1 else None,
        latencies=_latencies([each.latencies for each in same]),
        processes=_processes(same),
    )


def _processes(same: Sequence[ModelMetrics]) -> tuple[ModelProcessMetrics, ...]:
    """The processes of the instances with the same name in all engines count as one."""
    processes = (process for each in same for process in each.processes)
    return tuple(
        summed(those, ("resident_bytes", "restarts")) for those in grouped(processes, lambda each: each.instance)
    )


def _states(parts: Sequence[MetricsSnapshot]) -> tuple[VersionStateMetrics, ...]:
    states = (state for part in parts for state in part.states)
    merged = []
    for same in grouped(states, lambda each: (each.model, each.namespace or "", each.version)):
        worst = worst_state(ModelState(each.state) for each in same)
        merged.append(replace(same[0], state=worst.value if worst is not None else same[0].state))
    return tuple(merged)


def _hardware(parts: Sequence[HardwareReading]) -> HardwareReading:
    """All engines read the same machine: what one says of it counts. The pinned memory is that of all."""
    gpus = {gpu.uuid: gpu for part in parts for gpu in part.gpus}
    return HardwareReading(
        cpu=next((part.cpu for part in parts if part.cpu is not None), None),
        gpus=tuple(gpus.values()),
        pinned=PinnedMemory(
            total=sum(part.pinned.total for part in parts), used=sum(part.pinned.used for part in parts)
        ),
    )


def _remote_cache(parts: Sequence[RemoteCacheMetrics]) -> RemoteCacheMetrics:
    return RemoteCacheMetrics(is_up=all(part.is_up for part in parts), faults=added(part.faults for part in parts))


def _traces(parts: Sequence[TraceMetrics]) -> TraceMetrics:
    return TraceMetrics(written=sum(part.written for part in parts), lost=added(part.lost for part in parts))


# --- distributions


def _latencies(parts: Sequence[LatencyMetrics]) -> LatencyMetrics:
    histograms = (each for part in parts for each in part.histograms)
    summaries = (each for part in parts for each in part.summaries)
    return LatencyMetrics(
        histograms=tuple(map(_histogram, grouped(histograms, lambda each: each.name))),
        summaries=tuple(map(_summary, grouped(summaries, lambda each: each.name))),
    )


def _histogram(same: Sequence[HistogramMetrics]) -> HistogramMetrics:
    return replace(
        same[0],
        counts=column_sums([each.counts for each in same]),
        sum=sum(each.sum for each in same),
        exemplars=tuple(map(_latest, zip(*(each.exemplars for each in same), strict=True))),
    )


def _latest(exemplars: Iterable[Exemplar | None]) -> Exemplar | None:
    return max((each for each in exemplars if each is not None), key=lambda each: each.timestamp, default=None)


def _summary(same: Sequence[SummaryMetrics]) -> SummaryMetrics:
    """The quantiles of several distributions do not give that of their sum: the largest is an upper bound of it."""
    return replace(
        same[0],
        quantiles=tuple(map(_largest, zip(*(each.quantiles for each in same), strict=True))),
        sum=sum(each.sum for each in same),
        count=sum(each.count for each in same),
    )


def _largest(pairs: Sequence[tuple[float, float]]) -> tuple[float, float]:
    known = [value for _, value in pairs if not math.isnan(value)]
    return pairs[0][0], max(known, default=math.nan)


# --- the metrics of models


def _custom(parts: Sequence[MetricsSnapshot]) -> tuple[CustomFamilyMetrics, ...]:
    """Series with the same labels are added up, gauges too: each engine has its own instances of a model."""
    families = (family for part in parts for family in part.custom)
    return tuple(
        replace(same[0], series=_series([each for family in same for each in family.series]))
        for same in grouped(families, lambda each: each.name)
    )


def _series(series: Sequence[CustomSeriesMetrics]) -> tuple[CustomSeriesMetrics, ...]:
    merged = []
    for same in grouped(series, lambda each: (sorted(each.labels.items()), each.bounds)):
        counts = column_sums([each.counts for each in same])
        merged.append(replace(same[0], value=sum(each.value for each in same), counts=counts))
    return tuple(merged)
