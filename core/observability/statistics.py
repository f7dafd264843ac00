"""The statistics of one model version at one moment, and the content of the metrics page, as plain data that can be
sent between processes.

Source: docs/spec/statistics-and-metrics.md sections A and B.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from enum import Enum, IntEnum
from typing import Final, NamedTuple

from trident.core.inference.pending_request import CancelCause
from trident.core.inference.request import CloseReason
from trident.core.observability.hardware import HardwareReading
from trident.core.observability.latencies import LatencyMetrics
from trident.core.observability.tracing.trace import TraceMetrics
from trident.core.options import DEFAULT_QUANTILES, LatencyOptions, parse_quantiles


class FailureReason(Enum):
    """The reason for which a request failed or the queue refused it; the value is the label of the failure metric."""

    REJECTED = "REJECTED"
    CANCELED = "CANCELED"
    BACKEND = "BACKEND"
    OTHER = "OTHER"


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchStatistics:
    """The executions of `batch_size` items. Durations in ns, summed over the executions."""

    batch_size: int
    execution_count: int
    compute_input_ns: int
    compute_infer_ns: int
    compute_output_ns: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BatchTuning:
    """A batcher with a target: what it aims at, and how long its batches wait and how many items they have at most."""

    target_p99_ns: int
    delay_ns: int
    max_size: int


LONG_S = 10.0
"""After so many seconds an execution, or a step of a load, takes long: the log and all reports have it."""


class RunningExecution(NamedTuple):
    """A batch that an instance executes since `begin_ns` of the monotonic clock. `ids` are those of its requests."""

    instance: str
    begin_ns: int
    batch_size: int
    ids: list[str]


@dataclass(frozen=True, slots=True, kw_only=True)
class StatisticsSnapshot:
    """The counters of a model version at one moment.

    Durations are in ns and summed over the successful requests, except for `failure_ns`. `last_inference_ms` is the
    wall clock's time in ms since 1970, 0 before the first execution, and now while one runs. `oldest_execution_ns` is
    for how long the oldest one of those that run has run. `batches` go by ascending batch size, `responses`
    by ascending index; `buckets` are empty for a model without batch buckets, `tuning` is None without a target.
    `batch_closes` counts executions by the reason for which their batch was closed. A hit of the response cache takes
    the time of looking it up, a miss that of looking it up and of keeping the answer. `step_failures` are the requests
    of an ensemble that failed because a step did: they are among `request_failures`, too.
    """

    request_success: int = 0
    request_failures: Mapping[FailureReason, int] = field(default_factory=dict)
    request_refusals: Mapping[FailureReason, int] = field(default_factory=dict)
    request_cancellations: Mapping[CancelCause, int] = field(default_factory=dict)
    step_failures: int = 0
    inference_count: int = 0
    execution_count: int = 0
    request_ns: int = 0
    queue_ns: int = 0
    compute_input_ns: int = 0
    compute_infer_ns: int = 0
    compute_output_ns: int = 0
    failure_ns: int = 0
    pending: int = 0
    last_inference_ms: int = 0
    oldest_execution_ns: int = 0
    batches: tuple[BatchStatistics, ...] = ()
    responses: tuple[ResponseStatistics, ...] = ()
    batch_closes: Mapping[CloseReason, int] = field(default_factory=dict)
    tuning: BatchTuning | None = None
    cache_hit_count: int = 0
    cache_hit_ns: int = 0
    cache_miss_count: int = 0
    cache_miss_ns: int = 0
    buckets: tuple[BucketStatistics, ...] = ()

    def failures(self, reason: FailureReason) -> int:
        """As the metric of failures counts them: with the requests that the queue refused. Each request of an ensemble
        that failed because of a step counts as Triton documents it: once for the step and once for itself."""
        steps = self.step_failures if reason is FailureReason.OTHER else 0
        return self.request_failures.get(reason, 0) + self.request_refusals.get(reason, 0) + steps


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionStatistics:
    """The statistics of one version of a model, as the statistics call of every protocol reports them.

    `memory_bytes` is the memory of its own processes, 0 for a model without any, and `device_bytes` what it holds of
    each device in the server's ledger.
    """

    name: str
    version: int
    statistics: StatisticsSnapshot
    memory_bytes: int = 0
    device_bytes: Mapping[str, int] = field(default_factory=dict)


# --- buckets. Source: docs/ragged-batching.md.


@dataclass(frozen=True, slots=True)
class BucketUse:
    """One execution in a bucket: `batch_size` rows of `length`, each 0 if it is not padded.

    `elements` are those of all inputs that the requests sent, `padding` those that were added.
    """

    batch_size: int
    length: int
    elements: int
    padding: int


@dataclass(frozen=True, slots=True, kw_only=True)
class BucketStatistics:
    """The executions in one bucket, with their elements and padding summed; see BucketUse."""

    batch_size: int
    length: int
    execution_count: int
    element_count: int
    padding_count: int


# --- responses: `response_stats`. Durations are nanoseconds of the monotonic clock.


class ResponseKind(IntEnum):
    """EMPTY has the final flag and no tensors. CANCELLED was sent after the client gave up."""

    SUCCESS = 0
    FAIL = 1
    EMPTY = 2
    CANCELLED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseStatistics:
    """The responses with one index. A duration runs from the response before, or from the start of the execution.

    `counts` and `durations_ns` are by ResponseKind.
    """

    index: int
    counts: tuple[int, ...]
    durations_ns: tuple[int, ...]


# --- the metrics page


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsOptions:
    """--allow-gpu-metrics, --allow-cpu-metrics, --metrics-interval-ms and the values of --metrics-config by name."""

    gpu: bool = True
    cpu: bool = True
    interval_ms: float = 2000.0
    config: Mapping[str, str] = field(default_factory=dict)

    @property
    def counter_latencies(self) -> bool:
        """On unless the value is `false`."""
        return self.config.get("counter_latencies") != "false"

    @property
    def histogram_latencies(self) -> bool:
        """Off unless the value is `true`."""
        return self.config.get("histogram_latencies") == "true"

    @property
    def latencies(self) -> LatencyOptions:
        """The distributions that are switched on. Raises ValueError for an invalid quantile."""
        quantiles = self.config.get("summary_quantiles")
        return LatencyOptions(
            histograms=self.histogram_latencies,
            summaries=self.config.get("summary_latencies") == "true",
            quantiles=DEFAULT_QUANTILES if quantiles is None else parse_quantiles(quantiles),
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelProcessMetrics:
    """The process of one model instance, of a framework that runs models in processes of their own.

    `resident_bytes` leaves out what the process shares with the server. `process_id` is 0 while there is none.
    """

    instance: str
    resident_bytes: int
    restarts: int
    process_id: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceMemoryMetrics:
    """Memory of a device that a model version has, such as `gpu:0`. `gpu_uuid` is empty if it is not known."""

    device: str
    gpu_uuid: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMetrics:
    """The metrics of one ready model version. `namespace` is set only if model namespacing is on. `is_cached`: a
    response cache answers its requests.

    `gpu_uuid` is the GPU of all its instances. It is None on a CPU, and on several devices, because statistics are per
    version and not per device.
    """

    model: str
    version: int
    statistics: StatisticsSnapshot
    load_duration_secs: float
    namespace: str | None = None
    tags: Mapping[str, str] = field(default_factory=dict)
    gpu_uuid: str | None = None
    latencies: LatencyMetrics = field(default_factory=LatencyMetrics)
    processes: tuple[ModelProcessMetrics, ...] = ()
    memory: tuple[DeviceMemoryMetrics, ...] = ()
    is_cached: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionStateMetrics:
    """The state of one model version; `version` is empty for a model of which no version could be found."""

    model: str
    version: str
    state: str
    namespace: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadMetrics:
    """The number of loads of models with this cause and this result."""

    cause: str
    result: str
    count: int


COLD_START_BOUNDS: Final = (0.01, 0.03, 0.1, 0.3, 1.0, 3.0, 10.0, 30.0, 100.0, 300.0)
"""Seconds."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandMetrics:
    """Models that are loaded when something asks for them: those that are known, what the resident ones hold of their
    budget, requests that wait for a load, models that were let go by reason, and the seconds from the first request for
    a model to the end of its load: one count more than COLD_START_BOUNDS, and their sum."""

    registered: int
    resident_bytes: int
    budget_bytes: int
    waiting: int
    evictions: Mapping[str, int]
    cold_starts: tuple[int, ...]
    cold_seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandModel:
    """A model that is in memory, or was loaded for requests before. Its cold starts are those loads, each counted from
    the first request to its end; `rested_s` are seconds since the last request."""

    model: str
    is_resident: bool
    is_pinned: bool
    bytes: int
    rested_s: float
    cold_starts: int
    cold_seconds: float
    last_cold_s: float


@dataclass(frozen=True, slots=True, kw_only=True)
class LetGo:
    """A model that was let go, when, in seconds since 1970, and why: as the label of the metric, and in words."""

    at: float
    model: str
    bytes: int
    reason: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class DemandOverview:
    """Models on demand as a person looks at them. `loads` are those of the last minute; of `models` there are the ones
    that are in memory or were most often loaded, of `let_go` the last."""

    registered: int
    resident: int
    resident_bytes: int
    budget_bytes: int
    waiting: int
    loads: int
    models: tuple[DemandModel, ...]
    let_go: tuple[LetGo, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadMetrics:
    """The downloads from cloud storage since the start, and the bytes that are still to be downloaded."""

    bytes: int = 0
    objects: int = 0
    cache_hits: int = 0
    retries: int = 0
    seconds: float = 0.0
    pending_bytes: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomSeriesMetrics:
    """One series of a model's metric. A histogram has `bounds`, a count more than bounds, and its sum as `value`."""

    labels: Mapping[str, str]
    value: float
    bounds: tuple[float, ...] = ()
    counts: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class CustomFamilyMetrics:
    """The series of a metric that models made. `type` is counter, gauge or histogram."""

    name: str
    type: str
    description: str
    series: tuple[CustomSeriesMetrics, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseCacheMetrics:
    """The response cache: its size and what is used of it in bytes, its entries, and how many made room for others."""

    size: int
    used: int
    entries: int
    evictions: int


@dataclass(frozen=True, slots=True, kw_only=True)
class RemoteCacheMetrics:
    """A response cache in another process: whether it is asked at all, and what went wrong so far, by kind."""

    is_up: bool
    faults: Mapping[str, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class ResourceMetrics:
    """A resource of the rate limiter: its copies, those that executions hold, and the instances that wait for some.

    `device` is empty for a global resource.
    """

    resource: str
    device: str
    limit: int
    held: int
    waiting: int


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsSnapshot:
    """Everything that the page shows, at one moment.

    `demand` is None in a server that loads no models on demand, and `downloads` if nothing was ever requested from
    cloud storage. The response cache of the server is one of `response_cache`, in its own memory, and `remote_cache`;
    without any, both are None. `traces` is None if nothing can be traced, `payload_log` if there is none.
    `lines_dropped` are those of the log of the engine's process, by its number.
    """

    models: tuple[ModelMetrics, ...] = ()
    states: tuple[VersionStateMetrics, ...] = ()
    loads: tuple[LoadMetrics, ...] = ()
    demand: DemandMetrics | None = None
    hardware: HardwareReading = field(default_factory=HardwareReading)
    downloads: DownloadMetrics | None = None
    response_cache: ResponseCacheMetrics | None = None
    remote_cache: RemoteCacheMetrics | None = None
    resources: tuple[ResourceMetrics, ...] = ()
    traces: TraceMetrics | None = None
    payload_log: TraceMetrics | None = None
    custom: tuple[CustomFamilyMetrics, ...] = ()
    lines_dropped: Mapping[str, int] = field(default_factory=dict)
