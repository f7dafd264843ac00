"""The metrics page: its families under Triton's names, from a snapshot of the engine, and its text formats, Prometheus'
0.0.4, as Triton writes it, and OpenMetrics 1.0.

The engine takes the snapshot; the front end renders it. Nothing is counted here: the page shows the statistics of the
model versions. `_FAMILIES` has a row for each family, in the order of Triton's page.

The writer of prometheus_client appends `_total` to the name of every counter, and Triton's counters have no such
suffix: dashboards and test suites that read Triton's names would not find them. OpenMetrics requires the suffix, so
there the type of such a counter is `unknown`. Only OpenMetrics has exemplars.
Source: docs/spec/statistics-and-metrics.md section B; the exposition formats page of Prometheus; OpenMetrics 1.0.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import lru_cache
from itertools import accumulate, repeat
from typing import TypeVar

from prometheus_client.utils import floatToGoString

from trident.core.observability.hardware import GpuReading
from trident.core.observability.latencies import CACHE_SUMMARIES, SUMMARIES, Exemplar
from trident.core.observability.log import lines_dropped
from trident.core.observability.statistics import (
    COLD_START_BOUNDS,
    BucketStatistics,
    FailureReason,
    MetricsOptions,
    MetricsSnapshot,
    ModelMetrics,
    ModelProcessMetrics,
    StatisticsSnapshot,
)
from trident.core.observability.tracing.trace import TraceMetrics
from trident.core.options import COMPUTE, FIRST_RESPONSE, QUEUE, REQUEST


@dataclass(frozen=True, slots=True)
class Sample:
    """One series of a family. `suffix` follows the family's name: `_bucket`, `_sum`, `_count` of a histogram."""

    labels: Mapping[str, str]
    value: int | float
    suffix: str = ""
    exemplar: Exemplar | None = None


@dataclass(frozen=True, slots=True)
class MetricFamily:
    """The series of one name. `type` is counter, gauge, histogram, summary or untyped; names are written unchanged.

    A label `le` or `quantile` is a number as `number` writes it.
    """

    name: str
    type: str
    help: str
    samples: tuple[Sample, ...]


Labels = Mapping[str, str]
Number = int | float
_NOT_IN_LABELS = re.compile(r"[^a-zA-Z0-9_]")
# A backend failure happens on the instance's GPU; the other failures happen before a request reaches an instance.
_FAILURES_ON_DEVICE = {FailureReason.BACKEND}
# The families of HTTP and gRPC requests, and those that carry this server's name.
_OWN_PREFIXES = ("trident_", "flask_")
_STATES = ("LOADING", "READY", "UNLOADING", "UNAVAILABLE")
_TOTAL = "_total"


def metric_families(snapshot: MetricsSnapshot, options: MetricsOptions) -> Iterator[MetricFamily]:
    """Triton's families in the order of its page, including families without series; then those of models and the log.

    The log's are those of the engine and of the calling process.
    """
    page = _Page(snapshot, options)
    for name, kind, text, samples in _FAMILIES:
        yield MetricFamily(name, kind, text, tuple(samples(page)))
    for family in snapshot.custom:
        shown: list[Sample] = []
        for series in family.series:
            if family.type == "histogram":
                shown += _histogram_samples(series.labels, series.bounds, series.counts, series.value)
            else:
                shown.append(Sample(series.labels, series.value))
        yield MetricFamily(family.name, family.type, family.description, tuple(shown))
    text = "Lines of the log that a process dropped because its reader or its disk did not keep up"
    counts = {**snapshot.lines_dropped, **lines_dropped()}
    lost = tuple(Sample({"pid": pid}, count) for pid, count in counts.items())
    yield MetricFamily("trident_log_lines_dropped_total", "counter", text, lost)


def is_reserved(name: str) -> bool:
    """Return whether a metric of the server has that name, or may have it in a later version."""
    return name in _RESERVED or name.startswith(_OWN_PREFIXES)


class _Page:
    """A snapshot with what several families show of it: labels, each with what they belong to."""

    def __init__(self, snapshot: MetricsSnapshot, options: MetricsOptions) -> None:
        self.snapshot = snapshot
        self.options = options
        self.models = [(_model_labels(entry), entry) for entry in snapshot.models]
        # A version has one set of series without a GPU, which counts what happens before an instance is reached
        # (waiting, refusals), and one for the GPU that it runs on, with the executions. Both have every series, with 0
        # for the other's, so a reader has to add them up, as with Triton.
        self.versions: list[tuple[Labels, StatisticsSnapshot]] = []
        self.cached: list[tuple[Labels, StatisticsSnapshot]] = []
        for labels, entry in self.models:
            series = [(labels, entry.statistics)]
            if entry.gpu_uuid is not None:
                before, executed = _split(entry.statistics)
                series = [(labels, before), ({**labels, "gpu_uuid": entry.gpu_uuid}, executed)]
            self.versions += series
            self.cached += series if entry.is_cached else []
        self.durations = self.versions if options.counter_latencies else []
        self.cached_durations = self.cached if options.counter_latencies else []


def _model_labels(entry: ModelMetrics) -> dict[str, str]:
    """The labels of a version. A tag may be any text; a name that Prometheus rejects would spoil the whole page."""
    labels = {f"_{_NOT_IN_LABELS.sub('_', tag)}": value for tag, value in entry.tags.items()}
    labels |= {"model": entry.model, "version": str(entry.version)}
    if entry.namespace is not None:
        labels["namespace"] = entry.namespace
    return labels


def _split(statistics: StatisticsSnapshot) -> tuple[StatisticsSnapshot, StatisticsSnapshot]:
    failures = statistics.request_failures
    before = {reason: count for reason, count in failures.items() if reason not in _FAILURES_ON_DEVICE}
    executed = {reason: count for reason, count in failures.items() if reason in _FAILURES_ON_DEVICE}
    return (
        StatisticsSnapshot(
            request_failures=before,
            request_refusals=statistics.request_refusals,
            step_failures=statistics.step_failures,
            pending=statistics.pending,
        ),
        replace(statistics, request_failures=executed, request_refusals={}, step_failures=0, pending=0),
    )


# Where the series of a row come from.
_Samples = Callable[[_Page], Iterable[Sample]]


def _pending(page: _Page) -> list[Sample]:
    """The longest queue first: the endpoint pickers of inference gateways read only the first series of a family."""
    samples = [Sample(labels, statistics.pending) for labels, statistics in page.versions]
    return sorted(samples, key=lambda sample: -sample.value)


def _bucket_series(page: _Page) -> Iterator[tuple[Labels, BucketStatistics]]:
    """With the labels `batch_size` and `length`, where the model pads to them. Source: docs/ragged-batching.md."""
    for labels, statistics in page.versions:
        for bucket in statistics.buckets:
            sizes = {"batch_size": bucket.batch_size, "length": bucket.length}
            yield {**labels, **{name: str(size) for name, size in sizes.items() if size}}, bucket


def _histogram(name: str) -> _Samples:
    """A version on a GPU has one series, without `gpu_uuid`: a distribution cannot be split as counters can."""
    return lambda page: (
        sample
        for labels, entry in page.models
        for found in entry.latencies.histograms
        if found.name == name
        for sample in _histogram_samples(labels, found.bounds, found.counts, found.sum, found.exemplars)
    )


def _histogram_samples(
    labels: Labels,
    bounds: Sequence[float],
    counts: Sequence[int],
    total: Number,
    exemplars: Iterable[Exemplar | None] = repeat(None),
) -> Iterator[Sample]:
    for bound, count, exemplar in zip((*bounds, float("inf")), accumulate(counts), exemplars, strict=False):
        yield Sample({**labels, "le": number(bound)}, count, "_bucket", exemplar)
    yield Sample(labels, sum(counts), "_count")
    yield Sample(labels, total, "_sum")


def _summary(name: str) -> _Samples:
    def samples(page: _Page) -> Iterator[Sample]:
        for labels, entry in page.models:
            for summary in entry.latencies.summaries:
                if summary.name == name and (entry.is_cached or name not in CACHE_SUMMARIES):
                    for quantile, value in summary.quantiles:
                        yield Sample({**labels, "quantile": number(quantile)}, value)
                    yield Sample(labels, summary.count, "_count")
                    yield Sample(labels, summary.sum, "_sum")

    return samples


def _load_durations(page: _Page) -> Iterator[Sample]:
    for labels, entry in page.models:
        yield Sample(labels, entry.load_duration_secs)
        if entry.gpu_uuid is not None:
            yield Sample({**labels, "gpu_uuid": entry.gpu_uuid}, 0)


def _states(page: _Page) -> Iterator[Sample]:
    for entry in page.snapshot.states:
        labels = {"model": entry.model, "version": entry.version}
        if entry.namespace is not None:
            labels["namespace"] = entry.namespace
        for state in _STATES:
            yield Sample({**labels, "state": state}, int(state == entry.state))


def _cold_starts(page: _Page) -> Iterable[Sample]:
    found = page.snapshot.demand
    return _histogram_samples({}, COLD_START_BOUNDS, found.cold_starts, found.cold_seconds) if found else ()


def _gpus(page: _Page) -> list[tuple[Labels, GpuReading]]:
    return [({"gpu_uuid": gpu.uuid}, gpu) for gpu in (page.snapshot.hardware.gpus if page.options.gpu else ())]


def _lost(metrics: TraceMetrics | None) -> Iterable[Sample]:
    lost = metrics.lost if metrics is not None else {}
    return [Sample({"reason": reason.value}, count) for reason, count in lost.items()]


def _processes(page: _Page) -> list[tuple[Labels, ModelProcessMetrics]]:
    """Instances with one name are one series: those of a count on several GPUs, or one that still has sequences while
    another has taken its place."""
    found: list[tuple[Labels, ModelProcessMetrics]] = []
    for labels, entry in page.models:
        for name in dict.fromkeys(each.instance for each in entry.processes):
            named = [each for each in entry.processes if each.instance == name]
            total = ModelProcessMetrics(
                instance=name,
                resident_bytes=sum(each.resident_bytes for each in named),
                restarts=sum(each.restarts for each in named),
            )
            found.append(({**labels, "instance": name}, total))
    return found


T = TypeVar("T")
_Family = tuple[str, str, str, _Samples]


def _single(found: T | None) -> list[tuple[Labels, T]]:
    return [] if found is None else [({}, found)]


def _group(
    prefix: str,
    series: Callable[[_Page], Iterable[tuple[Labels, T]]],
    *rows: tuple[str, str, Callable[[T], Number | None]],
    kind: str = "",
) -> list[_Family]:
    """Families whose names begin with `prefix`, with a value of each of the same series; None: no value.

    Without a `kind`, those that end with `_total` are counters, and the others gauges.
    """

    def samples(value: Callable[[T], Number | None]) -> _Samples:
        return lambda page: (
            Sample(labels, number) for labels, each in series(page) if (number := value(each)) is not None
        )

    return [
        (prefix + name, kind or ("counter" if name.endswith(_TOTAL) else "gauge"), text, samples(value))
        for name, text, value in rows
    ]


_CACHED, _UNCACHED = "(includes cached requests)", "(does not include cached requests)"
_US, _PER_MODEL = "duration in microseconds", "duration per model, in microseconds"
_HISTOGRAMS = {
    FIRST_RESPONSE: "Duration from request to first response in milliseconds",
    REQUEST: "Seconds from a request to its response, of successful requests",
    QUEUE: "Seconds in the queue, of successful requests",
    COMPUTE: "Seconds from the start to the end of its execution, of successful requests",
}
_SUMMARY_TEXTS = (
    f"Summary of inference request {_US} {_CACHED}",
    f"Summary of inference queuing {_US} {_CACHED}",
    f"Cumulative compute input {_US} {_UNCACHED}",
    f"Cumulative compute inference {_US} {_UNCACHED}",
    f"Cumulative inference compute output {_US} {_UNCACHED}",
    "Summary of cache hit counts/durations per model, in microseconds.",
    "Summary of cache miss counts/durations per model, in microseconds.",
)
# The name, type, help and series of each family.
_FAMILIES: tuple[_Family, ...] = (
    *_group(
        "nv_inference_",
        lambda page: page.versions,
        ("request_success", "Number of successful inference requests, all batch sizes", lambda s: s.request_success),
        kind="counter",
    ),
    (
        "nv_inference_request_failure",
        "counter",
        "Number of failed inference requests, all batch sizes",
        # Triton does not count requests that a full queue refuses. Here they are failures, so that alarms see them.
        lambda page: [
            Sample({**labels, "reason": reason.value}, each.failures(reason))
            for labels, each in page.versions
            for reason in FailureReason
        ],
    ),
    *_group(
        "nv_inference_",
        lambda page: page.versions,
        ("count", f"Number of inferences performed {_UNCACHED}", lambda s: s.inference_count),
        ("exec_count", f"Number of model executions performed {_UNCACHED}", lambda s: s.execution_count),
        kind="counter",
    ),
    # Triton truncates every event to microseconds, so its sums are too small; here only the sum is truncated.
    *_group(
        "nv_inference_",
        lambda page: page.durations,
        ("request_duration_us", f"Cumulative inference request {_US} {_CACHED}", lambda s: s.request_ns // 1000),
        ("queue_duration_us", f"Cumulative inference queuing {_US} {_CACHED}", lambda s: s.queue_ns // 1000),
        (
            "compute_input_duration_us",
            f"Cumulative compute input {_US} {_UNCACHED}",
            lambda s: s.compute_input_ns // 1000,
        ),
        (
            "compute_infer_duration_us",
            f"Cumulative compute inference {_US} {_UNCACHED}",
            lambda s: s.compute_infer_ns // 1000,
        ),
        (
            "compute_output_duration_us",
            f"Cumulative inference compute output {_US} {_UNCACHED}",
            lambda s: s.compute_output_ns // 1000,
        ),
        kind="counter",
    ),
    *_group(
        "nv_cache_",
        lambda page: page.cached,
        ("num_hits_per_model", "Number of cache hits per model", lambda s: s.cache_hit_count),
        ("num_misses_per_model", "Number of cache misses per model", lambda s: s.cache_miss_count),
        kind="counter",
    ),
    *_group(
        "nv_cache_",
        lambda page: page.cached_durations,
        ("hit_duration_per_model", f"Total cache hit {_PER_MODEL}", lambda s: s.cache_hit_ns // 1000),
        (
            "miss_duration_per_model",
            f"Total cache miss (insert+lookup) {_PER_MODEL}",
            lambda s: s.cache_miss_ns // 1000,
        ),
        kind="counter",
    ),
    *_group(
        "trident_response_cache_",
        lambda page: _single(page.snapshot.response_cache),
        ("size_bytes", "Size of the response cache in bytes", lambda cache: cache.size),
        ("used_bytes", "Memory that cached responses take, in bytes", lambda cache: cache.used),
        ("entries", "Responses in the response cache", lambda cache: cache.entries),
        ("evictions_total", "Cached responses that made room for others", lambda cache: cache.evictions),
    ),
    *_group(
        "trident_response_cache_",
        lambda page: _single(page.snapshot.remote_cache),
        (
            "up",
            "1 while the server of the response cache is asked, 0 while it is left out",
            lambda each: int(each.is_up),
        ),
    ),
    (
        "trident_response_cache_faults_total",
        "counter",
        "Answers that the response cache did not find or keep because something was wrong",
        lambda page: [
            Sample({"kind": kind}, count)
            for _, cache in _single(page.snapshot.remote_cache)
            for kind, count in cache.faults.items()
        ],
    ),
    *_group(
        "trident_resource_",
        lambda page: [({"resource": each.resource, "device": each.device}, each) for each in page.snapshot.resources],
        ("limit", "Copies of a resource that there are for executions", lambda resource: resource.limit),
        ("held", "Copies of a resource that executions hold", lambda resource: resource.held),
        ("waiting_instances", "Model instances that wait for their turn at a resource", lambda each: each.waiting),
    ),
    (
        "nv_inference_pending_request_count",
        "gauge",
        "Instantaneous number of pending requests awaiting execution per-model.",
        _pending,
    ),
    ("nv_model_load_duration_secs", "gauge", "Model load time in seconds", _load_durations),
    (
        "trident_batch_close_total",
        "counter",
        "Executions by the reason for which their batch was closed",
        lambda page: [
            Sample({**labels, "reason": reason.label}, count)
            for labels, each in page.versions
            for reason, count in each.batch_closes.items()
        ],
    ),
    (
        "trident_inference_cancellations_total",
        "counter",
        "Requests that were given up by their callers or their queues",
        lambda page: [
            Sample({**labels, "cause": cause.value}, count)
            for labels, each in page.versions
            for cause, count in each.request_cancellations.items()
        ],
    ),
    *_group(
        "trident_batch_",
        lambda page: [(labels, each.tuning) for labels, each in page.versions if each.tuning is not None],
        (
            "target_p99_seconds",
            "Target for the 99th percentile of the latencies of a model",
            lambda t: t.target_p99_ns / 1e9,
        ),
        ("delay_seconds", "Time that a batch waits for requests, as set for the target", lambda t: t.delay_ns / 1e9),
        ("size_limit", "Items that a batch may have, as set for the target", lambda t: t.max_size),
    ),
    *_group(
        "trident_bucket_",
        _bucket_series,
        (
            "executions_total",
            "Model executions whose batch was padded to the bucket, or filled it",
            lambda b: b.execution_count,
        ),
        (
            "elements_total",
            "Elements of inputs that requests sent, in executions of the bucket",
            lambda b: b.element_count,
        ),
        ("padding_elements_total", "Elements of inputs that were added to fill the bucket", lambda b: b.padding_count),
    ),
    *((name, "histogram", text, _histogram(name)) for name, text in _HISTOGRAMS.items()),
    *((name, "summary", text, _summary(name)) for name, text in zip(SUMMARIES, _SUMMARY_TEXTS, strict=True)),
    # There is no such pool.
    *_group(
        "nv_pinned_memory_pool_",
        lambda page: [({}, 0)],
        *((f"{name}_bytes", f"Pinned memory pool {name} memory size, in bytes", int) for name in ("total", "used")),
    ),
    *_group(
        "nv_gpu_",
        _gpus,
        ("utilization", "GPU utilization rate [0.0 - 1.0)", lambda gpu: gpu.utilization),
        ("memory_total_bytes", "GPU total memory, in bytes", lambda gpu: gpu.memory_total),
        ("memory_used_bytes", "GPU used memory, in bytes", lambda gpu: gpu.memory_used),
        ("power_usage", "GPU power usage in watts", lambda gpu: gpu.power_usage),
        ("power_limit", "GPU power management limit in watts", lambda gpu: gpu.power_limit),
    ),
    *_group(
        "nv_",
        _gpus,
        ("energy_consumption", "GPU energy consumption in joules since the Triton Server started", lambda g: g.energy),
        kind="counter",
    ),
    *_group(
        "nv_cpu_",
        lambda page: _single(page.snapshot.hardware.cpu if page.options.cpu else None),
        ("utilization", "CPU utilization rate [0.0 - 1.0]", lambda cpu: cpu.utilization),
        ("memory_total_bytes", "CPU total memory (RAM), in bytes", lambda cpu: cpu.memory_total),
        ("memory_used_bytes", "CPU used memory (RAM), in bytes", lambda cpu: cpu.memory_used),
    ),
    ("trident_model_version_state", "gauge", "1 for the state that a model version is in, 0 for the others", _states),
    (
        "trident_model_loads_total",
        "counter",
        "Loads of models that have ended",
        lambda page: [Sample({"cause": each.cause, "result": each.result}, each.count) for each in page.snapshot.loads],
    ),
    *_group(
        "trident_demand_",
        lambda page: _single(page.snapshot.demand),
        ("registered_models", "Models that are loaded when something asks for them", lambda each: each.registered),
        ("resident_bytes", "Bytes of their budget that models have in memory", lambda each: each.resident_bytes),
        ("budget_bytes", "Bytes that models may have in memory together", lambda each: each.budget_bytes),
        ("waiting_requests", "Requests that wait for the load of their model", lambda each: each.waiting),
    ),
    (
        "trident_demand_evictions_total",
        "counter",
        "Models that were let go",
        lambda page: [
            Sample({"reason": reason}, count)
            for _, demand in _single(page.snapshot.demand)
            for reason, count in demand.evictions.items()
        ],
    ),
    (
        "trident_demand_cold_start_seconds",
        "histogram",
        "Seconds from the first request for a model that is not in memory to the end of its load",
        _cold_starts,
    ),
    *_group(
        "trident_oldest_",
        lambda page: page.models,
        (
            "execution_seconds",
            "For how long the oldest execution that runs now has run; 0 if none runs",
            lambda each: each.statistics.oldest_execution_ns / 1e9,
        ),
    ),
    *_group(
        "trident_model_process_",
        _processes,
        ("restarts_total", "Restarts of the process of a model instance after it died", lambda each: each.restarts),
        (
            "resident_memory_bytes",
            "Memory of the process of a model instance, without what it shares with the server",
            lambda process: process.resident_bytes,
        ),
    ),
    (
        "trident_model_memory_bytes",
        "gauge",
        "Memory of a device that a model version took at its load, less what it gave back, or what its processes take",
        lambda page: [
            Sample({**labels, "device": each.device, "gpu_uuid": each.gpu_uuid}, each.bytes)
            for labels, entry in page.models
            for each in entry.memory
        ],
    ),
    *_group(
        "trident_repository_",
        lambda page: _single(page.snapshot.downloads),
        ("downloaded_bytes_total", "Bytes of models fetched from cloud storage", lambda d: d.bytes),
        ("downloaded_objects_total", "Objects of models fetched from cloud storage", lambda d: d.objects),
        ("cache_hits_total", "Objects of models found in the model cache", lambda d: d.cache_hits),
        ("download_retries_total", "Reads of cloud storage that were repeated", lambda d: d.retries),
        ("download_seconds_total", "Seconds in which models were fetched", lambda d: d.seconds),
        ("download_pending_bytes", "Bytes of models that are still to be fetched", lambda d: d.pending_bytes),
    ),
    *_group(
        "trident_trace_",
        lambda page: _single(page.snapshot.traces),
        (
            "written_total",
            "Traces that were written to a file, or spans that a collector has taken",
            lambda t: t.written,
        ),
    ),
    (
        "trident_trace_lost_total",
        "counter",
        "Traces or spans that were lost",
        lambda page: _lost(page.snapshot.traces),
    ),
    *_group(
        "trident_payload_log_",
        lambda page: _single(page.snapshot.payload_log),
        (
            "written_total",
            "Requests that were written to the payload log with their responses",
            lambda t: t.written,
        ),
    ),
    (
        "trident_payload_log_lost_total",
        "counter",
        "Requests that the payload log should have and does not",
        lambda page: _lost(page.snapshot.payload_log),
    ),
)
_RESERVED = frozenset(name + suffix for name, _, _, _ in _FAMILIES for suffix in ("", "_bucket", "_count", "_sum"))


def render(
    families: Iterable[MetricFamily], *, openmetrics: bool = False, pause: Callable[[], None] | None = None
) -> bytes:
    """The page in UTF-8; each line ends with a newline. A family without series is omitted.

    A page in OpenMetrics is not complete: the caller appends `# EOF`. `pause` is called after each family, because a
    page of many models takes milliseconds.
    """
    write = _openmetrics_lines if openmetrics else _prometheus_lines
    lines: list[str] = []
    for family in families:
        if family.samples:
            lines += write(family)
        if pause is not None:
            pause()
    return "".join(lines).encode()


_LAST_LABELS = ("le", "quantile")
_ESCAPED_IN_HELP = str.maketrans({"\\": r"\\", "\n": r"\n"})
_ESCAPED_IN_LABELS = str.maketrans({"\\": r"\\", "\n": r"\n", '"': r"\""})


def _prometheus_lines(family: MetricFamily) -> list[str]:
    head = [
        f"# HELP {family.name} {family.help.translate(_ESCAPED_IN_HELP)}\n",
        f"# TYPE {family.name} {family.type}\n",
    ]
    return head + [
        f"{family.name}{sample.suffix}{_label_block(sample.labels)} {number(sample.value)}\n"
        for sample in family.samples
    ]


def _openmetrics_lines(family: MetricFamily) -> list[str]:
    name, kind = family.name.removesuffix(_TOTAL), family.type
    if kind == "untyped" or (kind == "counter" and name == family.name):
        name, kind = family.name, "unknown"
    lines = [f"# HELP {name} {family.help.translate(_ESCAPED_IN_LABELS)}\n", f"# TYPE {name} {kind}\n"]
    for sample in family.samples:
        value = "NaN" if math.isnan(sample.value) else number(sample.value)
        exemplar = ""
        if sample.exemplar is not None:
            label = _label_block({"request_id": sample.exemplar.request_id})
            exemplar = f" # {label} {number(sample.exemplar.value)} {sample.exemplar.timestamp:.3f}"
        lines.append(f"{family.name}{sample.suffix}{_label_block(_canonical(sample.labels))} {value}{exemplar}\n")
    return lines


def _label_block(labels: Mapping[str, str]) -> str:
    """`{a="1",b="2",le="5"}`, or nothing. Sorted by name, as readers match whole lines; `le` and `quantile` last."""
    return _block_of(tuple(labels.items())) if labels else ""


# The labels of a series are the same on every page.
@lru_cache(maxsize=8192)
def _block_of(labels: tuple[tuple[str, str], ...]) -> str:
    texts = dict(labels)
    names = sorted(texts, key=lambda name: (name in _LAST_LABELS, name))
    return "{" + ",".join(f'{name}="{texts[name].translate(_ESCAPED_IN_LABELS)}"' for name in names) + "}"


def _canonical(labels: Mapping[str, str]) -> Mapping[str, str]:
    """The labels with their bounds and quantiles as OpenMetrics has them, with a decimal point: `le="100.0"`."""
    found = [name for name in _LAST_LABELS if name in labels]
    return {**labels, **{name: floatToGoString(labels[name]) for name in found}} if found else labels  # type: ignore[no-untyped-call]


def number(value: int | float) -> str:
    """A value as Triton prints it: integers without decimals, fractions with at most 16 digits, `Nan`."""
    if isinstance(value, int):
        return str(int(value))
    if math.isnan(value):
        return "Nan"
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return f"{value:.16g}"
