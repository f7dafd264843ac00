"""The metrics of the server under Triton's names, made from a snapshot when the page is asked for.

The engine takes a MetricsSnapshot, plain data that can travel between processes; the front end turns it into metric
families. Nothing is counted here: the statistics of the model versions are what is shown.
Source: docs/spec/statistics-and-metrics.md section B.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace

from core.observability.exposition import MetricFamily, Sample
from core.observability.gpu import GpuReading
from core.observability.hardware import CpuReading, HardwareReading, PinnedMemory
from core.observability.statistics import FailureReason, StatisticsSnapshot

# A failure of the backend is told by the instance on its GPU; the others happen before a request has reached one.
_FAILURES_ON_DEVICE = {FailureReason.BACKEND}
_WITHOUT_EFFECT = ("histogram_latencies", "summary_latencies")
_NOTHING = StatisticsSnapshot(
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
_NO_LABEL_CHARACTER = re.compile(r"[^a-zA-Z0-9_]")


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMetrics:
    """What is known of one ready model version. `namespace` is set only where model namespacing is on.

    `gpu_uuid` is the GPU of all its instances; None for a CPU, and for several devices, because statistics are kept by
    version and not by device.
    """

    model: str
    version: int
    statistics: StatisticsSnapshot
    load_duration_secs: float
    namespace: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    gpu_uuid: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadMetrics:
    """What was fetched from cloud storage since the start, and the bytes that are still to come."""

    bytes: int = 0
    objects: int = 0
    cache_hits: int = 0
    retries: int = 0
    seconds: float = 0.0
    pending_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSnapshot:
    """Everything that the page shows, at one moment. Plain data: it can be sent to another process.

    `downloads` is None where nothing was ever asked of cloud storage.
    """

    models: tuple[ModelMetrics, ...] = ()
    hardware: HardwareReading = field(default_factory=HardwareReading)
    downloads: DownloadMetrics | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsOptions:
    """--allow-gpu-metrics, --allow-cpu-metrics, --metrics-interval-ms and the values of --metrics-config by name."""

    gpu: bool = True
    cpu: bool = True
    interval_ms: float = 2000.0
    config: Mapping[str, str] = field(default_factory=dict)

    @property
    def counter_latencies(self) -> bool:
        """On unless it says exactly `false`, as in Triton; unknown names in `config` are ignored."""
        return self.config.get("counter_latencies") != "false"

    @property
    def without_effect(self) -> tuple[str, ...]:
        """Settings that are switched on (exactly `true`) and that this server does not have, to be named in the log."""
        return tuple(name for name in _WITHOUT_EFFECT if self.config.get(name) == "true")


@dataclass(frozen=True, slots=True)
class _Reporter:
    """A set of series: those of a version without a GPU, or on one GPU."""

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
    """Triton's families in the order of its page. Families without a series are among them."""
    reporters = _reporters(snapshot.models)
    yield from _counter_families(reporters, counting=options.counter_latencies)
    if options.counter_latencies:
        for name, text, nanoseconds in _LATENCIES:
            # Triton cuts every event to whole microseconds and so falls behind; here only the sum is cut.
            yield _family(name, "counter", text, ((r.labels, nanoseconds(r.statistics) // 1000) for r in reporters))
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
    yield from _pinned_families(snapshot.hardware.pinned)
    if options.gpu:
        yield from _gpu_families(snapshot.hardware.gpus)
    if options.cpu and snapshot.hardware.cpu is not None:
        yield from _cpu_families(snapshot.hardware.cpu)
    if snapshot.downloads is not None:
        yield from _download_families(snapshot.downloads)


def _counter_families(reporters: Sequence[_Reporter], *, counting: bool) -> Iterator[MetricFamily]:
    """Requests, inferences and executions. In Triton `counter_latencies=false` stops these too: they stay at 0."""
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
            ({**r.labels, "reason": reason.value}, r.statistics.request_failures.get(reason, 0) * unit)
            for r in reporters
            for reason in FailureReason
        ),
    )
    for name, text, count in _COUNTS:
        yield _family(name, "counter", text, ((r.labels, count(r.statistics) * unit) for r in reporters))


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
    """One reporter without a GPU per version, and one more for the GPU that it runs on.

    What happens before an instance is reached (waiting, refusals) is the first one's, executions are the GPU's. Both
    show every series, the others as 0, so a reader has to add them up, as with Triton.
    """
    reporters = []
    for entry in models:
        labels = _labels(entry)
        if entry.gpu_uuid is None:
            reporters.append(_Reporter(labels, entry.statistics, entry.load_duration_secs))
        else:
            before, executed = _split(entry.statistics)
            reporters.append(_Reporter(labels, before, entry.load_duration_secs))
            reporters.append(_Reporter({**labels, "gpu_uuid": entry.gpu_uuid}, executed, 0))
    return reporters


def _labels(entry: ModelMetrics) -> dict[str, str]:
    """The configuration allows any text as a tag; a name that Prometheus does not allow would spoil the whole page."""
    labels = {f"_{_NO_LABEL_CHARACTER.sub('_', tag)}": value for tag, value in entry.tags.items()}
    labels |= {"model": entry.model, "version": str(entry.version)}
    if entry.namespace is not None:
        labels["namespace"] = entry.namespace
    return labels


def _split(statistics: StatisticsSnapshot) -> tuple[StatisticsSnapshot, StatisticsSnapshot]:
    """What happened before an instance was reached, and what happened on the GPU."""
    failures = statistics.request_failures
    before = {reason: count for reason, count in failures.items() if reason not in _FAILURES_ON_DEVICE}
    executed = {reason: count for reason, count in failures.items() if reason in _FAILURES_ON_DEVICE}
    return (
        replace(_NOTHING, request_failures=before, pending=statistics.pending),
        replace(statistics, request_failures=executed, pending=0),
    )
