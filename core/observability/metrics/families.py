"""The metric families of the page, under Triton's names, from a snapshot of the engine.

The engine takes the snapshot; the front end renders it. Nothing is counted here: the page shows the statistics of the
model versions.
Source: docs/spec/statistics-and-metrics.md section B.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from itertools import accumulate

from trident.core.observability.hardware import CpuReading, GpuReading, HardwareReading, PinnedMemory
from trident.core.observability.latencies import CACHE_SUMMARIES, SUMMARIES, HistogramMetrics, SummaryMetrics
from trident.core.observability.latency_options import COMPUTE, FIRST_RESPONSE, QUEUE, REQUEST
from trident.core.observability.log import lines_dropped
from trident.core.observability.metrics.exposition import MetricFamily, Sample, number
from trident.core.observability.metrics.snapshot import (
    CustomFamilyMetrics,
    CustomSeriesMetrics,
    DownloadMetrics,
    LoadMetrics,
    MetricsOptions,
    MetricsSnapshot,
    ModelMetrics,
    RemoteCacheMetrics,
    ResourceMetrics,
    ResponseCacheMetrics,
    VersionStateMetrics,
)
from trident.core.observability.statistics import BatchTuning, BucketStatistics, FailureReason, StatisticsSnapshot
from trident.core.observability.tracing.trace import TraceMetrics

_NOT_IN_LABELS = re.compile(r"[^a-zA-Z0-9_]")


def model_labels(entry: ModelMetrics) -> dict[str, str]:
    """The labels of a version. A tag may be any text; a name that Prometheus rejects would spoil the whole page."""
    labels = {f"_{_NOT_IN_LABELS.sub('_', tag)}": value for tag, value in entry.tags.items()}
    labels |= {"model": entry.model, "version": str(entry.version)}
    if entry.namespace is not None:
        labels["namespace"] = entry.namespace
    return labels


# Source: docs/ragged-batching.md.


_FAMILIES: tuple[tuple[str, str, Callable[[BucketStatistics], int]], ...] = (
    (
        "trident_bucket_executions_total",
        "Model executions whose batch was padded to the bucket, or filled it",
        lambda bucket: bucket.execution_count,
    ),
    (
        "trident_bucket_elements_total",
        "Elements of inputs that requests sent, in executions of the bucket",
        lambda bucket: bucket.element_count,
    ),
    (
        "trident_bucket_padding_elements_total",
        "Elements of inputs that were added to fill the bucket",
        lambda bucket: bucket.padding_count,
    ),
)


def bucket_families(models: Iterable[tuple[Mapping[str, str], StatisticsSnapshot]]) -> Iterator[MetricFamily]:
    """The families of all model versions, each with its labels. A series appears with the first use of its bucket."""
    buckets = [(_labels(labels, bucket), bucket) for labels, snapshot in models for bucket in snapshot.buckets]
    for name, text, count in _FAMILIES:
        samples = tuple(Sample(labels, count(bucket)) for labels, bucket in buckets)
        yield MetricFamily(name, "counter", text, samples)


def _labels(labels: Mapping[str, str], bucket: BucketStatistics) -> dict[str, str]:
    """`batch_size` and `length`, where the model pads to them."""
    sizes = {"batch_size": bucket.batch_size, "length": bucket.length}
    return {**labels, **{name: str(size) for name, size in sizes.items() if size}}


# A version on a GPU has one series of each, without `gpu_uuid`: a distribution cannot be split as counters can.
# Source: docs/spec/statistics-and-metrics.md section B.


_HISTOGRAMS = {
    FIRST_RESPONSE: "Duration from request to first response in milliseconds",
    REQUEST: "Seconds from a request to its response, of successful requests",
    QUEUE: "Seconds in the queue, of successful requests",
    COMPUTE: "Seconds from the start to the end of its execution, of successful requests",
}
_SUMMARIES = dict(
    zip(
        SUMMARIES,
        (
            "Summary of inference request duration in microseconds (includes cached requests)",
            "Summary of inference queuing duration in microseconds (includes cached requests)",
            "Summary of compute input duration in microseconds (does not include cached requests)",
            "Summary of compute inference duration in microseconds (does not include cached requests)",
            "Summary of inference compute output duration in microseconds (does not include cached requests)",
            "Summary of cache hit duration per model, in microseconds",
            "Summary of cache miss duration per model, in microseconds",
        ),
        strict=True,
    )
)


def latency_families(models: Iterable[ModelMetrics], *, has_cache: bool) -> Iterator[MetricFamily]:
    """The histograms and summaries of all versions, in the order of the page; families without series included.

    `has_cache`: the server has a response cache.
    """
    labelled = [(model_labels(entry), entry.latencies) for entry in models]
    for name, text in _HISTOGRAMS.items():
        samples = [
            sample
            for labels, latencies in labelled
            for histogram in latencies.histograms
            if histogram.name == name
            for sample in _histogram_samples(labels, histogram)
        ]
        yield MetricFamily(name, "histogram", text, tuple(samples))
    for name, text in _SUMMARIES.items():
        if name in CACHE_SUMMARIES and not has_cache:
            continue
        samples = [
            sample
            for labels, latencies in labelled
            for summary in latencies.summaries
            if summary.name == name
            for sample in _summary_samples(labels, summary)
        ]
        yield MetricFamily(name, "summary", text, tuple(samples))


def _histogram_samples(labels: Mapping[str, str], histogram: HistogramMetrics) -> Iterator[Sample]:
    bounds = (*histogram.bounds, float("inf"))
    counts = accumulate(histogram.counts)
    for bound, count, exemplar in zip(bounds, counts, histogram.exemplars, strict=True):
        yield Sample({**labels, "le": number(bound)}, count, "_bucket", exemplar)
    yield Sample(labels, histogram.count, "_count")
    yield Sample(labels, histogram.sum, "_sum")


def _summary_samples(labels: Mapping[str, str], summary: SummaryMetrics) -> Iterator[Sample]:
    for quantile, value in summary.quantiles:
        yield Sample({**labels, "quantile": number(quantile)}, value)
    yield Sample(labels, summary.count, "_count")
    yield Sample(labels, summary.sum, "_sum")


def custom_families(families: Iterable[CustomFamilyMetrics]) -> Iterator[MetricFamily]:
    for family in families:
        samples = [sample for series in family.series for sample in _samples(family.type, series)]
        yield MetricFamily(family.name, family.type, family.description, tuple(samples))


def _samples(kind: str, series: CustomSeriesMetrics) -> Iterator[Sample]:
    if kind != "histogram":
        yield Sample(series.labels, series.value)
        return
    for bound, total in zip((*series.bounds, float("inf")), accumulate(series.counts), strict=True):
        yield Sample({**series.labels, "le": number(bound)}, total, "_bucket")
    yield Sample(series.labels, sum(series.counts), "_count")
    yield Sample(series.labels, series.value, "_sum")


# A backend failure happens on the instance's GPU; the other failures happen before a request reaches an instance.
_FAILURES_ON_DEVICE = {FailureReason.BACKEND}
_ZERO = StatisticsSnapshot(
    request_success=0,
    request_failures={},
    inference_count=0,
    execution_count=0,
    request_ns=0,
    queue_ns=0,
    compute_input_ns=0,
    compute_infer_ns=0,
    compute_output_ns=0,
    pending=0,
)
# The families of HTTP and gRPC requests, and those that carry this server's name.
_OWN_PREFIXES = ("trident_", "flask_")
_STATES = ("LOADING", "READY", "UNLOADING", "UNAVAILABLE")


@dataclass(frozen=True, slots=True)
class _Reporter:
    """One set of series: those of a version without a GPU, or on one GPU."""

    labels: Mapping[str, str]
    statistics: StatisticsSnapshot
    load_duration_secs: float


_Counter = tuple[str, str, Callable[[StatisticsSnapshot], int]]

_COUNTS: tuple[_Counter, ...] = (
    (
        "nv_inference_count",
        "Number of inferences performed (does not include cached requests)",
        lambda statistics: statistics.inference_count,
    ),
    (
        "nv_inference_exec_count",
        "Number of model executions performed (does not include cached requests)",
        lambda statistics: statistics.execution_count,
    ),
)
_LATENCIES: tuple[_Counter, ...] = (
    (
        "nv_inference_request_duration_us",
        "Cumulative inference request duration in microseconds (includes cached requests)",
        lambda statistics: statistics.request_ns,
    ),
    (
        "nv_inference_queue_duration_us",
        "Cumulative inference queuing duration in microseconds (includes cached requests)",
        lambda statistics: statistics.queue_ns,
    ),
    (
        "nv_inference_compute_input_duration_us",
        "Cumulative compute input duration in microseconds (does not include cached requests)",
        lambda statistics: statistics.compute_input_ns,
    ),
    (
        "nv_inference_compute_infer_duration_us",
        "Cumulative compute inference duration in microseconds (does not include cached requests)",
        lambda statistics: statistics.compute_infer_ns,
    ),
    (
        "nv_inference_compute_output_duration_us",
        "Cumulative inference compute output duration in microseconds (does not include cached requests)",
        lambda statistics: statistics.compute_output_ns,
    ),
)
_TUNING: tuple[tuple[str, str, Callable[[BatchTuning], int | float]], ...] = (
    (
        "target_p99_seconds",
        "Target for the 99th percentile of the latencies of a model",
        lambda tuning: tuning.target_p99_ns / 1e9,
    ),
    (
        "delay_seconds",
        "Time that a batch waits for requests, as set for the target",
        lambda tuning: tuning.delay_ns / 1e9,
    ),
    ("size_limit", "Items that a batch may have, as set for the target", lambda tuning: tuning.max_size),
)
_CACHE_COUNTERS: tuple[_Counter, ...] = (
    (
        "nv_cache_num_hits_per_model",
        "Number of cache hits per model",
        lambda statistics: statistics.cache_hit_count,
    ),
    (
        "nv_cache_num_misses_per_model",
        "Number of cache misses per model",
        lambda statistics: statistics.cache_miss_count,
    ),
    (
        "nv_cache_hit_duration_per_model",
        "Total cache hit duration per model, in microseconds",
        lambda statistics: statistics.cache_hit_ns // 1000,
    ),
    (
        "nv_cache_miss_duration_per_model",
        "Total cache miss duration per model, in microseconds",
        lambda statistics: statistics.cache_miss_ns // 1000,
    ),
)
_GPU_FAMILIES: tuple[tuple[str, str, str, Callable[[GpuReading], int | float | None]], ...] = (
    ("nv_gpu_utilization", "gauge", "GPU utilization rate [0.0 - 1.0)", lambda gpu: gpu.utilization),
    ("nv_gpu_memory_total_bytes", "gauge", "GPU total memory, in bytes", lambda gpu: gpu.memory_total),
    ("nv_gpu_memory_used_bytes", "gauge", "GPU used memory, in bytes", lambda gpu: gpu.memory_used),
    ("nv_gpu_power_usage", "gauge", "GPU power usage in watts", lambda gpu: gpu.power_usage),
    ("nv_gpu_power_limit", "gauge", "GPU power management limit in watts", lambda gpu: gpu.power_limit),
    (
        "nv_energy_consumption",
        "counter",
        "GPU energy consumption in joules since the Triton Server started",
        lambda gpu: gpu.energy,
    ),
)


def metric_families(snapshot: MetricsSnapshot, options: MetricsOptions) -> Iterator[MetricFamily]:
    """Triton's families in the order of its page, including families without series."""
    reporters = _reporters(snapshot.models)
    yield from _counter_families(reporters, counting=options.counter_latencies)
    if options.counter_latencies:
        for name, text, nanoseconds in _LATENCIES:
            # Triton truncates every event to microseconds, so its sums are too small; here only the sum is truncated.
            yield _family(name, "counter", text, ((r.labels, nanoseconds(r.statistics) // 1000) for r in reporters))
    has_cache = snapshot.response_cache is not None or snapshot.remote_cache is not None
    if options.counter_latencies and has_cache:
        for name, text, count in _CACHE_COUNTERS:
            yield _family(name, "counter", text, ((r.labels, count(r.statistics)) for r in reporters))
    if snapshot.response_cache is not None:
        yield from _local_cache_families(snapshot.response_cache)
    if snapshot.remote_cache is not None:
        yield from _remote_cache_families(snapshot.remote_cache)
    if snapshot.resources:
        yield from _resource_families(snapshot.resources)
    yield _family(
        "nv_inference_pending_request_count",
        "gauge",
        "Instantaneous number of pending requests awaiting execution per-model.",
        ((r.labels, r.statistics.pending) for r in reporters),
    )
    yield _family(
        "nv_model_load_duration_secs",
        "gauge",
        "Model load time in seconds",
        ((r.labels, r.load_duration_secs) for r in reporters),
    )
    yield _family(
        "trident_batch_close_total",
        "counter",
        "Executions by the reason for which their batch was closed",
        (
            ({**r.labels, "reason": reason.label}, count)
            for r in reporters
            for reason, count in r.statistics.batch_closes.items()
        ),
    )
    yield _family(
        "trident_inference_cancellations_total",
        "counter",
        "Requests that were given up by their callers or their queues",
        (
            ({**r.labels, "cause": cause.value}, count)
            for r in reporters
            for cause, count in r.statistics.request_cancellations.items()
        ),
    )
    yield from _tuning_families(reporters)
    yield from bucket_families((r.labels, r.statistics) for r in reporters)
    yield from latency_families(snapshot.models, has_cache=has_cache)
    yield from _pinned_families(snapshot.hardware.pinned)
    if options.gpu:
        yield from _gpu_families(snapshot.hardware.gpus)
    if options.cpu and snapshot.hardware.cpu is not None:
        yield from _cpu_families(snapshot.hardware.cpu)
    yield from _load_families(snapshot.states, snapshot.loads)
    yield _family(
        "trident_oldest_execution_seconds",
        "gauge",
        "For how long the oldest execution that runs now has run; 0 if none runs",
        ((model_labels(model), model.statistics.oldest_execution_ns / 1e9) for model in snapshot.models),
    )
    yield from _process_families(snapshot.models)
    if snapshot.downloads is not None:
        yield from _download_families(snapshot.downloads)
    if snapshot.traces is not None:
        yield from _trace_families(snapshot.traces)
    yield from custom_families(snapshot.custom)


def log_family() -> MetricFamily:
    """The lines that the log has lost, in all processes of the server: any of them knows."""
    text = "Lines of the log that were dropped because its reader or its disk did not keep up"
    return _family("trident_log_lines_dropped_total", "counter", text, [({}, lines_dropped())])


def is_reserved(name: str) -> bool:
    """Whether a metric of the server has that name, or may have it in a later version."""
    return name in _reserved_names() or name.startswith(_OWN_PREFIXES)


@cache
def _reserved_names() -> frozenset[str]:
    snapshot = MetricsSnapshot(
        hardware=HardwareReading(cpu=CpuReading(utilization=0.0, memory_total=0, memory_used=0)),
        response_cache=ResponseCacheMetrics(size=0, used=0, entries=0, evictions=0),
    )
    return frozenset(
        family.name + suffix
        for family in metric_families(snapshot, MetricsOptions())
        for suffix in ("", "_bucket", "_count", "_sum")
    )


def _tuning_families(reporters: Sequence[_Reporter]) -> Iterator[MetricFamily]:
    """What a batcher with a target sets."""
    tuned = [(r.labels, r.statistics.tuning) for r in reporters if r.statistics.tuning is not None]
    for name, text, value in _TUNING:
        yield _family(f"trident_batch_{name}", "gauge", text, ((labels, value(tuning)) for labels, tuning in tuned))


def _counter_families(reporters: Sequence[_Reporter], *, counting: bool) -> Iterator[MetricFamily]:
    """Requests, inferences and executions. As in Triton, `counter_latencies=false` keeps these at 0 too."""
    unit = 1 if counting else 0
    yield _family(
        "nv_inference_request_success",
        "counter",
        "Number of successful inference requests, all batch sizes",
        ((r.labels, r.statistics.request_success * unit) for r in reporters),
    )
    yield _family(
        "nv_inference_request_failure",
        "counter",
        "Number of failed inference requests, all batch sizes",
        (
            ({**r.labels, "reason": reason.value}, _failed(r.statistics, reason) * unit)
            for r in reporters
            for reason in FailureReason
        ),
    )
    for name, text, count in _COUNTS:
        yield _family(name, "counter", text, ((r.labels, count(r.statistics) * unit) for r in reporters))


def _local_cache_families(cache: ResponseCacheMetrics) -> Iterator[MetricFamily]:
    for name, kind, text, value in (
        ("size_bytes", "gauge", "Size of the response cache in bytes", cache.size),
        ("used_bytes", "gauge", "Memory that cached responses take, in bytes", cache.used),
        ("entries", "gauge", "Responses in the response cache", cache.entries),
        ("evictions_total", "counter", "Cached responses that made room for others", cache.evictions),
    ):
        yield _family(f"trident_response_cache_{name}", kind, text, [({}, value)])


def _remote_cache_families(cache: RemoteCacheMetrics) -> Iterator[MetricFamily]:
    yield _family(
        "trident_response_cache_up",
        "gauge",
        "1 while the server of the response cache is asked, 0 while it is left out",
        [({}, int(cache.is_up))],
    )
    yield _family(
        "trident_response_cache_faults_total",
        "counter",
        "Answers that the response cache did not find or keep because something was wrong",
        (({"kind": kind}, count) for kind, count in cache.faults.items()),
    )


def _trace_families(traces: TraceMetrics) -> Iterator[MetricFamily]:
    yield _family(
        "trident_trace_written_total",
        "counter",
        "Traces that were written to a file, or spans that a collector has taken",
        [({}, traces.written)],
    )
    yield _family(
        "trident_trace_lost_total",
        "counter",
        "Traces or spans that were lost",
        (({"reason": reason.value}, count) for reason, count in traces.lost.items()),
    )


def _resource_families(resources: Sequence[ResourceMetrics]) -> Iterator[MetricFamily]:
    """The resources of the rate limiter."""
    labelled = [({"resource": each.resource, "device": each.device}, each) for each in resources]
    for name, text, value in _RESOURCE_GAUGES:
        yield _family(f"trident_resource_{name}", "gauge", text, ((labels, value(each)) for labels, each in labelled))


_RESOURCE_GAUGES: tuple[tuple[str, str, Callable[[ResourceMetrics], int]], ...] = (
    ("limit", "Copies of a resource that there are for executions", lambda each: each.limit),
    ("held", "Copies of a resource that executions hold", lambda each: each.held),
    ("waiting_instances", "Model instances that wait for their turn at a resource", lambda each: each.waiting),
)


def _failed(statistics: StatisticsSnapshot, reason: FailureReason) -> int:
    """Triton does not count the requests that a full queue refuses. Here they are failures, so that alarms see them."""
    return statistics.request_failures.get(reason, 0) + statistics.request_refusals.get(reason, 0)


def _load_families(states: Iterable[VersionStateMetrics], loads: Iterable[LoadMetrics]) -> Iterator[MetricFamily]:
    yield _family(
        "trident_model_version_state",
        "gauge",
        "1 for the state that a model version is in, 0 for the others",
        (
            ({**_state_labels(entry), "state": state}, int(state == entry.state))
            for entry in states
            for state in _STATES
        ),
    )
    yield _family(
        "trident_model_loads_total",
        "counter",
        "Loads of models that have ended",
        (({"cause": each.cause, "result": each.result}, each.count) for each in loads),
    )


def _process_families(models: Iterable[ModelMetrics]) -> Iterator[MetricFamily]:
    processes = [
        ({**model_labels(model), "instance": each.instance}, each) for model in models for each in model.processes
    ]
    yield _family(
        "trident_model_process_restarts_total",
        "counter",
        "Restarts of the process of a model instance after it died",
        ((labels, each.restarts) for labels, each in processes),
    )
    yield _family(
        "trident_model_process_resident_memory_bytes",
        "gauge",
        "Memory of the process of a model instance, without what it shares with the server",
        ((labels, each.resident_bytes) for labels, each in processes),
    )


def _state_labels(entry: VersionStateMetrics) -> dict[str, str]:
    labels = {"model": entry.model, "version": entry.version}
    return labels if entry.namespace is None else {**labels, "namespace": entry.namespace}


def _download_families(downloads: DownloadMetrics) -> Iterator[MetricFamily]:
    for name, kind, text, value in (
        ("downloaded_bytes_total", "counter", "Bytes of models fetched from cloud storage", downloads.bytes),
        ("downloaded_objects_total", "counter", "Objects of models fetched from cloud storage", downloads.objects),
        ("cache_hits_total", "counter", "Objects of models found in the model cache", downloads.cache_hits),
        ("download_retries_total", "counter", "Reads of cloud storage that were repeated", downloads.retries),
        ("download_seconds_total", "counter", "Seconds in which models were fetched", downloads.seconds),
        ("download_pending_bytes", "gauge", "Bytes of models that are still to be fetched", downloads.pending_bytes),
    ):
        yield _family(f"trident_repository_{name}", kind, text, [({}, value)])


def _pinned_families(pinned: PinnedMemory) -> Iterator[MetricFamily]:
    name, text = "nv_pinned_memory_pool", "Pinned memory pool"
    yield _family(f"{name}_total_bytes", "gauge", f"{text} total memory size, in bytes", [({}, pinned.total)])
    yield _family(f"{name}_used_bytes", "gauge", f"{text} used memory size, in bytes", [({}, pinned.used)])


def _gpu_families(gpus: Sequence[GpuReading]) -> Iterator[MetricFamily]:
    for name, kind, text, read in _GPU_FAMILIES:
        values = [({"gpu_uuid": gpu.uuid}, read(gpu)) for gpu in gpus]
        yield _family(name, kind, text, ((labels, value) for labels, value in values if value is not None))


def _cpu_families(cpu: CpuReading) -> Iterator[MetricFamily]:
    yield _family("nv_cpu_utilization", "gauge", "CPU utilization rate [0.0 - 1.0]", [({}, cpu.utilization)])
    name, text = "nv_cpu_memory", "memory (RAM), in bytes"
    yield _family(f"{name}_total_bytes", "gauge", f"CPU total {text}", [({}, cpu.memory_total)])
    yield _family(f"{name}_used_bytes", "gauge", f"CPU used {text}", [({}, cpu.memory_used)])


def _family(name: str, kind: str, text: str, values: Iterable[tuple[Mapping[str, str], int | float]]) -> MetricFamily:
    return MetricFamily(name, kind, text, tuple(Sample(labels, value) for labels, value in values))


def _reporters(models: Iterable[ModelMetrics]) -> list[_Reporter]:
    """One reporter without a GPU per version, and a second one for the GPU that it runs on.

    The first counts what happens before an instance is reached (waiting, refusals), the second the executions. Both
    have every series, with 0 for the other's, so a reader has to add them up, as with Triton.
    """
    reporters = []
    for entry in models:
        labels = model_labels(entry)
        if entry.gpu_uuid is None:
            reporters.append(_Reporter(labels, entry.statistics, entry.load_duration_secs))
        else:
            before, executed = _split(entry.statistics)
            reporters.append(_Reporter(labels, before, entry.load_duration_secs))
            reporters.append(_Reporter({**labels, "gpu_uuid": entry.gpu_uuid}, executed, 0))
    return reporters


def _split(statistics: StatisticsSnapshot) -> tuple[StatisticsSnapshot, StatisticsSnapshot]:
    """The statistics of what happened before an instance was reached, and on the GPU."""
    failures = statistics.request_failures
    before = {reason: count for reason, count in failures.items() if reason not in _FAILURES_ON_DEVICE}
    executed = {reason: count for reason, count in failures.items() if reason in _FAILURES_ON_DEVICE}
    return (
        replace(
            _ZERO,
            request_failures=before,
            request_refusals=statistics.request_refusals,
            pending=statistics.pending,
        ),
        replace(statistics, request_failures=executed, request_refusals={}, pending=0),
    )
