"""The index, the statistics and the metrics of several engines as those of one."""

from __future__ import annotations

import math
from dataclasses import fields, replace

from trident.core.inference.pending_request import CancelCause
from trident.core.lifecycle.state import IndexEntry, ModelState
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
from trident.core.observability.statistics import (
    BatchStatistics,
    BatchTuning,
    BucketStatistics,
    FailureReason,
    ResponseStatistics,
    StatisticsSnapshot,
)
from trident.core.observability.tracing.trace import Loss, TraceMetrics
from trident.core.remote.merged import merged, merged_index

READY = IndexEntry(name="m", version=1, state=ModelState.READY)


def test_a_model_is_shown_as_far_as_any_engine_has_it() -> None:
    with_reason = IndexEntry(name="m", version=1, state=ModelState.READY, reason="a newer one failed")
    assert merged_index([[READY], [with_reason]]) == [with_reason]
    never = IndexEntry(name="n")
    assert merged_index([[never], [never]]) == [never]
    assert merged_index([[IndexEntry(name="m")], [READY]]) == [READY]


EMPTY = ModelStatistics().snapshot()


def counted(number: int) -> StatisticsSnapshot:
    """A snapshot in which every plain number is `number`."""
    return replace(EMPTY, **{each.name: number for each in fields(StatisticsSnapshot) if each.type == "int"})


def batch(size: int, count: int) -> BatchStatistics:
    return BatchStatistics(
        batch_size=size, execution_count=count, compute_input_ns=1, compute_infer_ns=2, compute_output_ns=3
    )


def test_every_number_is_a_sum_but_the_last_inference_and_the_oldest_execution() -> None:
    total = merged([counted(3), counted(4)])
    latest = {"last_inference_ms": 4, "oldest_execution_ns": 4}
    assert total == replace(merged([counted(7)]), **latest, batch_closes=total.batch_closes)
    assert total.request_success == 7


def test_counts_by_reason_and_batches_by_size_are_added() -> None:
    one = replace(EMPTY, request_failures={FailureReason.OTHER: 2}, request_cancellations={CancelCause.CLIENT: 1})
    other = replace(EMPTY, request_failures={FailureReason.OTHER: 3, FailureReason.BACKEND: 0})
    total = merged([one, other])
    assert total.request_failures == {FailureReason.OTHER: 5, FailureReason.BACKEND: 0}
    assert total.request_cancellations[CancelCause.CLIENT] == 1
    total = merged(
        [replace(EMPTY, batches=(batch(1, 5), batch(4, 1))), replace(EMPTY, batches=(batch(2, 1), batch(4, 2)))]
    )
    assert [(each.batch_size, each.execution_count) for each in total.batches] == [(1, 5), (2, 1), (4, 3)]
    assert total.batches[2].compute_output_ns == 6


def test_buckets_and_responses_are_added_by_what_they_are_counted_for() -> None:
    bucket = BucketStatistics(batch_size=8, length=0, execution_count=1, element_count=10, padding_count=2)
    response = ResponseStatistics(index=0, counts=(1, 0, 0, 0), durations_ns=(5, 0, 0, 0))
    later = ResponseStatistics(index=1, counts=(1, 1, 0, 0), durations_ns=(5, 7, 0, 0))
    one = replace(EMPTY, buckets=(bucket,), responses=(response,))
    total = merged([one, replace(one, responses=(response, later))])
    assert total.buckets == (replace(bucket, execution_count=2, element_count=20, padding_count=4),)
    assert total.responses == (replace(response, counts=(2, 0, 0, 0), durations_ns=(10, 0, 0, 0)), later)


def test_the_largest_limits_of_the_batchers_are_shown() -> None:
    one = replace(EMPTY, tuning=BatchTuning(target_p99_ns=9, delay_ns=1, max_size=4))
    other = replace(EMPTY, tuning=BatchTuning(target_p99_ns=9, delay_ns=2, max_size=3))
    assert merged([one, other, EMPTY]).tuning == BatchTuning(target_p99_ns=9, delay_ns=2, max_size=4)


MODEL = ModelMetrics(
    model="m",
    version=1,
    statistics=replace(ModelStatistics().snapshot(), request_success=3),
    load_duration_secs=1.0,
    processes=(ModelProcessMetrics(instance="m_0", resident_bytes=10, restarts=1),),
)


def twice(part: MetricsSnapshot) -> MetricsSnapshot:
    return merged([part, part])


def test_a_model_is_one_series_with_sums() -> None:
    other = replace(MODEL, load_duration_secs=2.0, namespace="n")
    slow = replace(MODEL, load_duration_secs=4.0)
    total = merged([MetricsSnapshot(models=(MODEL, other)), MetricsSnapshot(models=(slow,))])
    assert [(each.namespace, each.statistics.request_success) for each in total.models] == [(None, 6), ("n", 3)]
    assert total.models[0].load_duration_secs == 4.0
    assert total.models[0].processes == (ModelProcessMetrics(instance="m_0", resident_bytes=20, restarts=2),)


def test_the_worst_state_is_shown_and_the_machine_once() -> None:
    ready = VersionStateMetrics(model="m", version="1", state="READY")
    loading = replace(ready, state="LOADING")
    assert merged([MetricsSnapshot(states=(ready,)), MetricsSnapshot(states=(loading,))]).states == (loading,)
    up, down = (RemoteCacheMetrics(is_up=is_up, faults={"timeout": 1}) for is_up in (True, False))
    total = merged([MetricsSnapshot(remote_cache=up), MetricsSnapshot(remote_cache=down)])
    assert total.remote_cache == RemoteCacheMetrics(is_up=False, faults={"timeout": 2})
    cpu = CpuReading(utilization=0.5, memory_total=8, memory_used=4)
    part = MetricsSnapshot(hardware=HardwareReading(cpu=cpu, pinned=PinnedMemory(total=6, used=1)))
    assert twice(part).hardware == HardwareReading(cpu=cpu, pinned=PinnedMemory(total=12, used=2))


def test_counts_of_the_server_are_sums() -> None:
    part = MetricsSnapshot(
        loads=(LoadMetrics(cause="server start", result="success", count=2),),
        downloads=DownloadMetrics(bytes=5, seconds=0.5),
        response_cache=ResponseCacheMetrics(size=100, used=10, entries=1, evictions=2),
        resources=(ResourceMetrics(resource="r", device="", limit=4, held=1, waiting=0),),
        traces=TraceMetrics(written=3, lost={Loss.QUEUE_FULL: 1}),
    )
    total = twice(part)
    assert total.loads[0].count == 4
    assert total.downloads == DownloadMetrics(bytes=10, seconds=1.0)
    assert total.response_cache == ResponseCacheMetrics(size=200, used=20, entries=2, evictions=4)
    assert total.resources[0].limit == 8
    assert total.traces == TraceMetrics(written=6, lost={Loss.QUEUE_FULL: 2})
    assert merged([part, MetricsSnapshot()]).downloads == part.downloads


def test_histograms_are_added_with_the_latest_exemplars() -> None:
    early, late = (Exemplar(request_id=name, value=1.0, timestamp=at) for name, at in (("a", 1.0), ("b", 2.0)))
    one = HistogramMetrics(name="h", bounds=(1.0,), counts=(1, 2), sum=3.0, exemplars=(early, None))
    other = replace(one, exemplars=(late, None))
    parts = [
        MetricsSnapshot(models=(replace(MODEL, latencies=LatencyMetrics(histograms=(each,))),)) for each in (one, other)
    ]
    (total,) = merged(parts).models[0].latencies.histograms
    assert total == replace(one, counts=(2, 4), sum=6.0, exemplars=(late, None))


def test_a_quantile_is_the_largest_of_the_engines() -> None:
    summaries = [
        SummaryMetrics(name="s", quantiles=((0.5, value), (0.9, math.nan)), sum=10, count=2) for value in (3.0, 5.0)
    ]
    parts = [
        MetricsSnapshot(models=(replace(MODEL, latencies=LatencyMetrics(summaries=(each,))),)) for each in summaries
    ]
    (total,) = merged(parts).models[0].latencies.summaries
    assert (total.quantiles[0], total.sum, total.count) == ((0.5, 5.0), 20, 4)
    assert math.isnan(total.quantiles[1][1])


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
    (total,) = twice(MetricsSnapshot(custom=(counter,))).custom
    assert [(each.value, each.counts) for each in total.series] == [(4.0, ()), (2.0, (2, 0))]
