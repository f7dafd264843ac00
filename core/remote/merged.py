"""What several engines report as what one server reports: their index, their statistics and their metrics.

Source: docs/spec/statistics-and-metrics.md.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass, replace
from typing import Any, TypeVar

from trident.core.lifecycle.state import IndexEntry, ModelState, VersionOverview
from trident.core.observability.hardware import GpuReading, HardwareReading
from trident.core.observability.history import Activity
from trident.core.observability.latencies import Exemplar, HistogramMetrics, SummaryMetrics
from trident.core.observability.metrics.snapshot import (
    CustomFamilyMetrics,
    CustomSeriesMetrics,
    DeviceMemoryMetrics,
    LoadMetrics,
    ModelMetrics,
    ModelProcessMetrics,
    RemoteCacheMetrics,
    ResourceMetrics,
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
    memory = _added(entry.device_bytes for entry in same)
    return IndexEntry(name=same[0].name, version=same[0].version, state=state, reason=reason, device_bytes=memory)


def merged_overview(of_engines: Iterable[Sequence[VersionOverview]]) -> list[VersionOverview]:
    """One line per version, in its worst state."""
    found: dict[tuple[str, int | None], list[VersionOverview]] = {}
    for lines in of_engines:
        for line in lines:
            found.setdefault((line.entry.name, line.entry.version), []).append(line)
    return [replace(merged(same), entry=_merged([each.entry for each in same])) for same in found.values()]


# --- statistics and metrics


def merged_version_statistics(of_engines: Iterable[Sequence[VersionStatistics]]) -> list[VersionStatistics]:
    """One item per version of each model, in the order in which the engines name them."""
    same_versions = _groups(version for versions in of_engines for version in versions)
    return [merged(same) for same in same_versions.values()]


T = TypeVar("T")


def merged(parts: Sequence[T]) -> T:
    """Some objects of one dataclass, at least one, as one.

    Numbers are sums: counts, durations, sizes, and gauges too, as each engine has its own instances of a model. Counts
    by a key are added by it, and numbers in columns by their column. Objects in tuples are merged if their `_KEYS` are
    equal, and go by them. What is merged otherwise has a function in `_RULES`; of the rest the first value counts.
    """
    first = parts[0]
    if len(parts) == 1:
        return first
    kind = type(first)
    changes = {
        field.name: _merged_field(kind, field.name, [getattr(part, field.name) for part in parts])
        for field in fields(first)  # type: ignore[arg-type]
        if field.name not in _KEYS.get(kind, ())
    }
    return replace(first, **changes)  # type: ignore[type-var]


def _merged_field(kind: type[Any], name: str, values: Sequence[Any]) -> Any:
    rule = _RULES.get((kind, name))
    if rule is not None:
        return rule(values)
    there = [value for value in values if value is not None]
    first = there[0] if there else None
    if isinstance(first, int | float):
        return sum(there)
    if isinstance(first, Mapping):
        return _added(there)
    if isinstance(first, tuple):
        return _merged_tuples(there)
    return merged(there) if is_dataclass(first) else first


def _merged_tuples(values: Sequence[tuple[Any, ...]]) -> tuple[Any, ...]:
    items = [item for value in values for item in value]
    if items and is_dataclass(items[0]):
        return tuple(merged(same) for _, same in sorted(_groups(items).items()))
    return tuple(map(sum, zip(*values, strict=True)))


def _groups(items: Iterable[T]) -> dict[tuple[Any, ...], list[T]]:
    """The items by their keys."""
    found: dict[tuple[Any, ...], list[T]] = {}
    for item in items:
        key = tuple(_sortable(getattr(item, name)) for name in _KEYS[type(item)])
        found.setdefault(key, []).append(item)
    return found


def _sortable(value: Any) -> Any:
    return tuple(sorted(value.items())) if isinstance(value, Mapping) else "" if value is None else value


def _added(counts: Iterable[Mapping[Any, int]]) -> dict[Any, int]:
    """The sum of counts by key; keys with 0 stay."""
    total: Counter[Any] = Counter()
    for part in counts:
        total.update(part)
    return dict(total)


def _first(values: Sequence[T]) -> T:
    return next((value for value in values if value is not None), values[0])


def _common(values: Sequence[T]) -> T | None:
    """The value that all have: several GPUs are no GPU, as in one engine."""
    return values[0] if len(set(values)) == 1 else None


def _added_numbers(values: Sequence[tuple[int, ...] | None]) -> tuple[int, ...] | None:
    there = [value for value in values if value is not None]
    return tuple(map(sum, zip(*there, strict=True))) if there else None


def _worst(states: Sequence[str]) -> str:
    worst = worst_state(ModelState(state) for state in states)
    return states[0] if worst is None else worst.value


def _all_gpus(readings: Sequence[tuple[GpuReading, ...]]) -> tuple[GpuReading, ...]:
    return tuple({gpu.uuid: gpu for gpus in readings for gpu in gpus}.values())


def _latest(columns: Sequence[tuple[Exemplar | None, ...]]) -> tuple[Exemplar | None, ...]:
    return tuple(
        max((each for each in column if each is not None), key=lambda each: each.timestamp, default=None)
        for column in zip(*columns, strict=True)
    )


def _largest(columns: Sequence[tuple[tuple[float, float], ...]]) -> tuple[tuple[float, float], ...]:
    """The quantiles of several distributions do not give that of their sum: the largest is an upper bound of it."""
    return tuple(
        (column[0][0], max((value for _, value in column if not math.isnan(value)), default=math.nan))
        for column in zip(*columns, strict=True)
    )


_KEYS: dict[type[Any], tuple[str, ...]] = {
    BatchStatistics: ("batch_size",),
    BucketStatistics: ("batch_size", "length"),
    CustomFamilyMetrics: ("name",),
    CustomSeriesMetrics: ("labels", "bounds"),
    DeviceMemoryMetrics: ("device", "gpu_uuid"),
    HistogramMetrics: ("name",),
    LoadMetrics: ("cause", "result"),
    ModelMetrics: ("model", "namespace", "version"),
    ModelProcessMetrics: ("instance",),
    ResourceMetrics: ("resource", "device"),
    ResponseStatistics: ("index",),
    SummaryMetrics: ("name",),
    VersionOverview: ("entry",),
    VersionStateMetrics: ("model", "namespace", "version"),
    VersionStatistics: ("name", "version"),
}
_RULES: dict[tuple[type[Any], str], Callable[[Sequence[Any]], Any]] = {
    (Activity, "p50_us"): max,
    (Activity, "p95_us"): max,
    (Activity, "p99_us"): max,
    (BatchTuning, "target_p99_ns"): _first,
    (BatchTuning, "delay_ns"): max,  # the largest limits that any of the batchers has set itself
    (BatchTuning, "max_size"): max,
    (HardwareReading, "cpu"): _first,  # all engines read the same machine
    (HardwareReading, "gpus"): _all_gpus,
    (HistogramMetrics, "bounds"): _first,
    (HistogramMetrics, "exemplars"): _latest,
    (ModelMetrics, "load_duration_secs"): max,  # the loads of a model took as long as the longest
    (ModelMetrics, "tags"): _first,
    (ModelMetrics, "gpu_uuid"): _common,
    (ModelProcessMetrics, "process_id"): _first,
    (RemoteCacheMetrics, "is_up"): all,
    (StatisticsSnapshot, "last_inference_ms"): max,
    (StatisticsSnapshot, "oldest_execution_ns"): max,
    (SummaryMetrics, "quantiles"): _largest,
    (VersionOverview, "load_seconds"): max,
    (VersionOverview, "sequences"): _added_numbers,
    (VersionStateMetrics, "state"): _worst,
}
