"""The metrics of several engines as those of one server: counters and histograms are sums, gauges what fits each.

Source: docs/spec/statistics-and-metrics.md section B.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Sequence
from dataclasses import replace
from typing import TypeVar

from core.lifecycle.state import ModelState
from core.observability.hardware.gauges import HardwareReading, PinnedMemory
from core.observability.latencies.histogram import Exemplar, HistogramMetrics
from core.observability.latencies.meters import LatencyMetrics
from core.observability.latencies.summaries import SummaryMetrics
from core.observability.metrics.snapshot import (
    CustomFamilyMetrics,
    CustomSeriesMetrics,
    MetricsSnapshot,
    ModelMetrics,
    ModelProcessMetrics,
    RemoteCacheMetrics,
    VersionStateMetrics,
)
from core.observability.tracing.trace_counts import TraceMetrics
from core.remote.pool.merged_index import worst_state
from core.remote.pool.merged_statistics import added, column_sums, grouped, merged_statistics, summed

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
