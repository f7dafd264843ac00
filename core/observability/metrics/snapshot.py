"""The content of the metrics page, as plain data that can be sent between processes."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from trident.core.observability.hardware import HardwareReading
from trident.core.observability.latencies import LatencyMetrics
from trident.core.observability.latency_options import DEFAULT_QUANTILES, LatencyOptions, parse_quantiles
from trident.core.observability.statistics import StatisticsSnapshot
from trident.core.observability.tracing.trace import TraceMetrics


@dataclass(frozen=True, slots=True, kw_only=True)
class MetricsOptions:
    """--allow-gpu-metrics, --allow-cpu-metrics, --metrics-interval-ms and the values of --metrics-config by name."""

    gpu: bool = True
    cpu: bool = True
    interval_ms: float = 2000.0
    config: Mapping[str, str] = field(default_factory=dict)

    @property
    def counter_latencies(self) -> bool:
        """On unless the value is exactly `false`, as in Triton. Unknown names in `config` are ignored."""
        return self.config.get("counter_latencies") != "false"

    @property
    def histogram_latencies(self) -> bool:
        """Off unless the value is exactly `true`, as in Triton."""
        return self.config.get("histogram_latencies") == "true"

    @property
    def latencies(self) -> LatencyOptions:
        """The distributions that are switched on (exactly `true`, as in Triton). Logs each invalid quantile."""
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
    """What a model version holds of a device, such as `gpu:0`. `gpu_uuid` is empty if it is not known."""

    device: str
    gpu_uuid: str
    bytes: int


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMetrics:
    """The metrics of one ready model version. `namespace` is set only if model namespacing is on.

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


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionStateMetrics:
    """The state of one model version; `version` is empty for a model of which no version could be found."""

    model: str
    version: str
    state: str
    namespace: str | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class LoadMetrics:
    """How many loads of models had this cause and this result."""

    cause: str
    result: str
    count: int


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

    `downloads` is None if nothing was ever requested from cloud storage. The response cache of the server is one of
    `response_cache`, in its own memory, and `remote_cache`; without any, both are None. `traces` is None if
    nothing can be traced.
    """

    models: tuple[ModelMetrics, ...] = ()
    states: tuple[VersionStateMetrics, ...] = ()
    loads: tuple[LoadMetrics, ...] = ()
    hardware: HardwareReading = field(default_factory=HardwareReading)
    downloads: DownloadMetrics | None = None
    response_cache: ResponseCacheMetrics | None = None
    remote_cache: RemoteCacheMetrics | None = None
    resources: tuple[ResourceMetrics, ...] = ()
    traces: TraceMetrics | None = None
    custom: tuple[CustomFamilyMetrics, ...] = ()
