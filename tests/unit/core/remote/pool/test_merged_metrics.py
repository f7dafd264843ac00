"""The metrics of several engines as those of one server."""

from __future__ import annotations

import math
from dataclasses import replace

from trident.core.observability.hardware import CpuReading, HardwareReading, PinnedMemory
from trident.core.observability.latencies import Exemplar, HistogramMetrics, LatencyMetrics, SummaryMetrics
from trident.core.observability.metrics.snapshot import (
    CustomFamilyMetrics,
    CustomSeriesMetrics,
    DownloadMetrics,
    LoadMetrics,
    MetricsSnapshot,
    ModelMetrics,
    ModelProcessMetrics,
    RemoteCacheMetrics,
    ResourceMetrics,
    ResponseCacheMetrics,
    VersionStateMetrics,
)
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.observability.tracing.trace import Loss, TraceMetrics
from trident.core.remote.merged import merged_metrics

MODEL = ModelMetrics(
    model="m",
    version=1,
    statistics=replace(ModelStatistics().snapshot(), request_success=3),
    load_duration_secs=1.0,
    processes=(ModelProcessMetrics(instance="m_0", resident_bytes=10, restarts=1),),
)


def twice(part: MetricsSnapshot) -> MetricsSnapshot:
    return merged_metrics([part, part])


def test_one_engine_is_shown_as_it_is() -> None:
    part = MetricsSnapshot(models=(MODEL,))
    assert merged_metrics([part]) is part


def test_a_model_is_one_series_with_sums() -> None:
    other = replace(MODEL, load_duration_secs=2.0, namespace="n")
    slow = replace(MODEL, load_duration_secs=4.0)
    merged = merged_metrics([MetricsSnapshot(models=(MODEL, other)), MetricsSnapshot(models=(slow,))])
    assert [(each.namespace, each.statistics.request_success) for each in merged.models] == [(None, 6), ("n", 3)]
    assert merged.models[0].load_duration_secs == 4.0
    assert merged.models[0].processes == (ModelProcessMetrics(instance="m_0", resident_bytes=20, restarts=2),)


def test_the_worst_state_is_shown() -> None:
    ready = VersionStateMetrics(model="m", version="1", state="READY")
    loading = replace(ready, state="LOADING")
    assert merged_metrics([MetricsSnapshot(states=(ready,)), MetricsSnapshot(states=(loading,))]).states == (loading,)


def test_counts_of_the_server_are_sums() -> None:
    part = MetricsSnapshot(
        loads=(LoadMetrics(cause="server start", result="success", count=2),),
        downloads=DownloadMetrics(bytes=5, seconds=0.5),
        response_cache=ResponseCacheMetrics(size=100, used=10, entries=1, evictions=2),
        resources=(ResourceMetrics(resource="r", device="", limit=4, held=1, waiting=0),),
        traces=TraceMetrics(written=3, lost={Loss.QUEUE_FULL: 1}),
    )
    merged = twice(part)
    assert merged.loads[0].count == 4
    assert merged.downloads == DownloadMetrics(bytes=10, seconds=1.0)
    assert merged.response_cache == ResponseCacheMetrics(size=200, used=20, entries=2, evictions=4)
    assert merged.resources[0].limit == 8
    assert merged.traces == TraceMetrics(written=6, lost={Loss.QUEUE_FULL: 2})
    assert merged_metrics([part, MetricsSnapshot()]).downloads == part.downloads


def test_a_remote_cache_is_up_if_all_engines_reach_it() -> None:
    up, down = (RemoteCacheMetrics(is_up=is_up, faults={"timeout": 1}) for is_up in (True, False))
    merged = merged_metrics([MetricsSnapshot(remote_cache=up), MetricsSnapshot(remote_cache=down)])
    assert merged.remote_cache == RemoteCacheMetrics(is_up=False, faults={"timeout": 2})


def test_the_machine_is_shown_once() -> None:
    cpu = CpuReading(utilization=0.5, memory_total=8, memory_used=4)
    part = MetricsSnapshot(hardware=HardwareReading(cpu=cpu, pinned=PinnedMemory(total=6, used=1)))
    assert twice(part).hardware == HardwareReading(cpu=cpu, pinned=PinnedMemory(total=12, used=2))


def test_histograms_are_added_with_the_latest_exemplars() -> None:
    early, late = (Exemplar(request_id=name, value=1.0, timestamp=at) for name, at in (("a", 1.0), ("b", 2.0)))
    one = HistogramMetrics(name="h", bounds=(1.0,), counts=(1, 2), sum=3.0, exemplars=(early, None))
    other = replace(one, exemplars=(late, None))
    parts = [
        MetricsSnapshot(models=(replace(MODEL, latencies=LatencyMetrics(histograms=(each,))),)) for each in (one, other)
    ]
    (merged,) = merged_metrics(parts).models[0].latencies.histograms
    assert merged == replace(one, counts=(2, 4), sum=6.0, exemplars=(late, None))


def test_a_quantile_is_the_largest_of_the_engines() -> None:
    summaries = [
        SummaryMetrics(name="s", quantiles=((0.5, value), (0.9, math.nan)), sum=10, count=2) for value in (3.0, 5.0)
    ]
    parts = [
        MetricsSnapshot(models=(replace(MODEL, latencies=LatencyMetrics(summaries=(each,))),)) for each in summaries
    ]
    (merged,) = merged_metrics(parts).models[0].latencies.summaries
    assert (merged.quantiles[0], merged.sum, merged.count) == ((0.5, 5.0), 20, 4)
    assert math.isnan(merged.quantiles[1][1])


def test_the_metrics_of_models_are_added_by_their_labels() -> None:
    counter = CustomFamilyMetrics(
        name="c",
        type="counter",
        description="",
        series=(
            CustomSeriesMetrics(labels={"x": "1"}, value=2.0),
            CustomSeriesMetrics(labels={"x": "2"}, value=1.0, bounds=(1.0,), counts=(1, 0)),
        ),
    )
    (merged,) = twice(MetricsSnapshot(custom=(counter,))).custom
    assert [(each.value, each.counts) for each in merged.series] == [(4.0, ()), (2.0, (2, 0))]
