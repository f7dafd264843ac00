"""The engine: the implementation of the Engine protocol in the process that runs the models; and the
requests that models make of other models (business logic scripting).

Source: docs/architecture.md section 5; docs/spec/python-backend.md sections 4.3 and 4.4; lookup texts:
docs/spec/http.md section 3.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path

from trident.core.backends.registry import BackendRegistry, MakeBackend
from trident.core.config.spec import ModelSpec
from trident.core.config.validate import settings_without_effect
from trident.core.cuda import gpu_ids
from trident.core.engine.bls import EngineBlsClient
from trident.core.engine.protocol import (
    ConfigMessage,
    ConfigReport,
    ModelMetadata,
    ServedModel,
    ServerMetadata,
    model_metadata,
)
from trident.core.errors import DeadlineExceeded, InvalidRequest, ModelCold, RepositoryUnavailable
from trident.core.lifecycle.cached_versions import with_response_cache
from trident.core.lifecycle.index import overview, repository_index, version_states
from trident.core.lifecycle.lifecycle import Lifecycle
from trident.core.lifecycle.loader import ModelLoader
from trident.core.lifecycle.memory import MemoryLedger, ModelBudget, read_gpus
from trident.core.lifecycle.options import EngineOptions
from trident.core.lifecycle.state import DownloadPhase, IndexEntry, Phase, ServingPhase, VersionOverview
from trident.core.lifecycle.version import EngineParts, ModelVersion
from trident.core.observability.hardware import CpuMeter, GpuMeter, HardwareGauges, gpu_uuids, trim_heap
from trident.core.observability.history import History, VersionHistory, VersionRequests, Watched
from trident.core.observability.log import LogLevels, change_log, lines_dropped
from trident.core.observability.metrics.custom_metrics import CustomMetrics
from trident.core.observability.metrics.families import is_reserved
from trident.core.observability.payload_log.log import PayloadLog
from trident.core.observability.statistics import (
    DemandOverview,
    DownloadMetrics,
    MetricsSnapshot,
    ModelMetrics,
    RemoteCacheMetrics,
    ResponseCacheMetrics,
    VersionStatistics,
)
from trident.core.observability.switches import SWITCHES, TraceGate
from trident.core.observability.tracing.tracer import Tracer
from trident.core.repository.location import Scheme, parse_location
from trident.core.repository.opener import SourceOpener, SourceOptions
from trident.core.repository.progress import DownloadSnapshot
from trident.core.repository.stores.object_store import TransientError
from trident.core.response_cache.response_cache import LocalCache, ResponseCache
from trident.core.scheduling.rate_limiter import RateLimiter
from trident.core.shared_memory import Regions
from trident.core.waiting import Mailbox, ThreadMailbox

_log = logging.getLogger("trident.engine")

# Seconds in which the rest of the payload log is written, granted even after the exit timeout.
_LEAST_PAYLOAD_S, _MOST_PAYLOAD_S = 0.5, 10.0


class InferenceEngine:
    """Any thread may call any method; those that block say so."""

    def __init__(
        self,
        options: EngineOptions,
        lifecycle: Lifecycle,
        hardware: HardwareGauges,
        sources: SourceOpener,
        parts: EngineParts,
        response_cache: ResponseCache | None = None,
    ) -> None:
        self._options = options
        self._lifecycle = lifecycle
        self._models = lifecycle.models
        self._hardware = hardware
        self._sources = sources
        self._parts = parts
        self._tracer = parts.tracer
        self._response_cache = response_cache
        self._history = History(self._watched) if options.console else None
        # Calls passed straight to other parts.
        self.release_version = self._models.release
        self.load_model = lifecycle.load
        self.prefetch_model = lifecycle.prefetch
        self.log_in_flight = lifecycle.log_in_flight
        self.wait_loaded = lifecycle.progress.wait
        self.wait_listed = lifecycle.progress.wait_listed
        self.system_regions = parts.regions.system_regions
        self.cuda_regions = parts.regions.cuda_regions
        self.register_system_region = parts.regions.register_system
        self.register_cuda_region = parts.regions.register_cuda
        self.unregister_regions = parts.regions.unregister
        self.trace_settings = parts.tracer.settings
        self.recent_traces = parts.tracer.recent
        self.change_trace = parts.tracer.change
        self.trace_answered = parts.tracer.answered

        # Makes the mailbox in which callers wait for a model that is loaded on demand; None: they do not wait.
        self.make_mailbox: Callable[[], Mailbox[bool]] | None = ThreadMailbox

    @property
    def generation(self) -> int:
        """Changes whenever another set of model versions serves."""
        return self._models.generation

    def start(self) -> None:
        """Begin to load the models on native threads; `phase` says how far the start is."""
        self._hardware.start()
        self._lifecycle.start()
        if self._history is not None:
            self._history.start()

    def begin_exit(self) -> None:
        """Become neither live nor ready; requests are still served."""
        self._lifecycle.begin_exit()
        self._sources.stop()

    def finish(self, timeout_s: float) -> bool:
        """Answer accepted requests for at most `timeout_s` seconds, then free everything. False if some remain."""
        until_s = time.monotonic() + timeout_s
        drained = self._lifecycle.finish(timeout_s)
        if self._history is not None:
            self._history.close()
        if self._response_cache is not None:
            self._response_cache.close()
        self._hardware.close()
        self._tracer.close()
        if self._parts.payload_log is not None:
            self._parts.payload_log.close(max(_LEAST_PAYLOAD_S, min(_MOST_PAYLOAD_S, until_s - time.monotonic())))
        return drained

    def overview(self, name: str = "") -> list[VersionOverview]:
        models = self._models.named(name) if name else self._models.all()
        return overview(models, self._history.activity() if self._history is not None else {})

    def demand_overview(self) -> DemandOverview | None:
        return self._lifecycle.demand.overview() if self._lifecycle.demand is not None else None

    def history(self, models: list[str], since: int) -> list[VersionHistory]:
        return self._history.of(models, since) if self._history is not None else []

    def _watched(self) -> list[Watched]:
        return [
            Watched(
                v.name,
                v.version,
                v.statistics,
                v.queued,
                restarts=sum(process.restarts for process in v.processes()),
                sequences=(v.sequences or (0,))[0],
            )
            for v in self._models.versions()
            if v.is_ready
        ]

    def config_report(self, name: str, version: int = -1) -> ConfigReport:
        config = self._find(name, version).config
        written = next((model.written_config for model in self._models.named(name) if model.serving), None)
        return ConfigReport(
            in_force=ConfigMessage.of(config),
            written=ConfigMessage.of(written) if written is not None else None,
            without_effect=settings_without_effect(written if written is not None else config),
        )

    def model(self, name: str, version: int = -1, timeout_s: float | None = None) -> ServedModel:
        """See Engine. Raises DeadlineExceeded if a load takes longer than `timeout_s`; it goes on."""
        try:
            return self._models.find(name, version)
        except ModelCold:
            return self._find(name, version, timeout_s)

    def _find(self, name: str, version: int, timeout_s: float | None = None) -> ModelVersion:
        until_s = None if timeout_s is None else time.monotonic() + timeout_s
        found: ModelVersion | None = None
        while found is None:
            try:
                found = self._models.find(name, version)
            except ModelCold as cold:
                self._await(cold, until_s)
        return found

    def _await(self, cold: ModelCold, until_s: float | None = None) -> None:
        """Wait for the end of a load. Raises `cold` where callers do not wait, DeadlineExceeded after `until_s`."""
        if self.make_mailbox is None:
            raise cold
        mailbox = self.make_mailbox()
        cold.await_load(partial(mailbox.put, True))
        while mailbox.get(None if until_s is None else max(0.0, until_s - time.monotonic())) is None:
            if until_s is not None and time.monotonic() >= until_s:
                raise DeadlineExceeded(f"model '{cold.model}' was not loaded in time: its load goes on")

    def model_nowait(self, name: str, version: int = -1) -> ServedModel | None:
        try:
            return self._models.find(name, version)
        except ModelCold:
            return None

    def model_spec(self, name: str, version: int = -1) -> ModelSpec:
        return self._find(name, version).spec

    def hold_version(self, name: str, version: int = -1) -> int:
        number: int | None = None
        while number is None:
            try:
                number = self._models.hold(name, version)
            except ModelCold as cold:
                self._await(cold)
        return number

    def server_metadata(self) -> ServerMetadata:
        return ServerMetadata(name=self._options.server_id, version=self._options.server_version)

    def model_metadata(self, name: str, version: int = -1) -> ModelMetadata:
        found = self._find(name, version)
        return model_metadata(found.spec, self._models.ready_versions(name) if version == -1 else [version])

    def model_config(self, name: str, version: int = -1) -> ConfigMessage:
        return ConfigMessage.of(self._find(name, version).config)

    def model_statistics(self, name: str = "", version: int = -1) -> list[VersionStatistics]:
        return [
            VersionStatistics(
                name=v.name,
                version=v.version,
                statistics=v.statistics.snapshot(v.queued),
                memory_bytes=sum(process.resident_bytes for process in v.processes()),
                device_bytes=v.device_bytes,
            )
            for v in self._ready_versions(name, version)
        ]

    def slowest_requests(self, name: str, version: int = -1) -> list[VersionRequests]:
        return [v.statistics.requests(v.name, v.version) for v in self._ready_versions(name, version)]

    def _ready_versions(self, name: str, version: int) -> list[ModelVersion]:
        ready = [v for v in self._models.versions() if v.is_ready]
        if name:
            ready = [v for v in ready if v.name == name]
            if not ready:
                raise self._models.loading_error(name) or InvalidRequest(f"requested model '{name}' is not available")
        if version != -1:
            ready = [v for v in ready if v.version == version]
            if not ready:
                raise self._models.loading_error(name, version) or InvalidRequest(
                    f"requested model version is not available for model '{name}'"
                )
        return ready

    def repository_index(self, ready_only: bool) -> list[IndexEntry]:
        names = {} if ready_only else self._lifecycle.repository_names()
        demand = self._lifecycle.demand
        registered = {each.key: each.versions for each in demand.all()} if demand is not None else {}
        return repository_index(self._models.all(), names, ready_only, registered)

    def load_directory(self, name: str, directory: str, origin: str) -> None:
        self._lifecycle.load_directory(name, Path(directory), origin)

    def directories(self) -> dict[str, str]:
        demand = self._lifecycle.demand
        found = demand.all() if demand is not None else []
        loaded = [each for each in found if each.versions or not each.is_loading]
        return {each.key.name: each.origin for each in loaded if each.origin}

    def unload_model(self, name: str, unload_dependents: bool, *, wait: bool = False) -> None:
        self._lifecycle.unload(name, unload_dependents, wait=wait)

    def release_memory(self) -> None:
        """Return shared memory that no request uses to the system. Any thread; it takes milliseconds."""
        for version in self._models.versions():
            version.release_memory()

    def is_live(self) -> bool:
        phase = self._lifecycle.progress.phase
        return phase != Phase.EXITING and (phase != Phase.FAILED or self._lifecycle.has_repositories)

    def is_ready(self) -> bool:
        if self._lifecycle.progress.phase not in (Phase.READY, Phase.FAILED) or not self._lifecycle.has_repositories:
            return False
        return self._lifecycle.meets_readiness()

    def is_model_ready(self, name: str, version: int = -1) -> bool:
        return self._models.find(name, version).answers_ready()

    def phase(self) -> ServingPhase:
        phase = self._lifecycle.progress.serving_phase(self._models)
        download = DownloadPhase.of(self._sources.progress.snapshot())
        return phase if download is None else replace(phase, download=download)

    def change_log(self, levels: LogLevels) -> None:
        had_histograms = SWITCHES.histograms
        change_log(levels)
        if SWITCHES.histograms != had_histograms:
            for version in self._models.versions():
                if version.is_ready:
                    version.measure(self._options.latencies)

    @property
    def trace_gate(self) -> TraceGate:
        return self._tracer.gate

    def metrics(self) -> MetricsSnapshot:
        models = [
            ModelMetrics(
                model=version.name,
                version=version.version,
                statistics=version.statistics.snapshot(version.queued),
                load_duration_secs=version.load_seconds,
                tags=version.spec.metric_tags,
                gpu_uuid=version.gpu_uuid,
                latencies=version.statistics.latencies(time.monotonic_ns()),
                processes=tuple(version.processes()),
                memory=version.memory_metrics(),
                is_cached=self._response_cache is not None and version.spec.response_cache,
                namespace=model.key.namespace or None,
            )
            for model in self._models.all()
            for _, version in sorted(model.serving.items())
        ]
        cache = self._response_cache.metrics() if self._response_cache is not None else None
        return MetricsSnapshot(
            models=tuple(models),
            states=tuple(state for model in self._models.all() for state in version_states(model)),
            loads=self._lifecycle.loads.counts.metrics(),
            demand=self._lifecycle.demand.metrics() if self._lifecycle.demand is not None else None,
            hardware=self._hardware.reading,
            downloads=_download_metrics(self._sources.progress.snapshot()),
            response_cache=cache if isinstance(cache, ResponseCacheMetrics) else None,
            remote_cache=cache if isinstance(cache, RemoteCacheMetrics) else None,
            resources=self._parts.rate_limiter.metrics() if self._parts.rate_limiter is not None else (),
            traces=self._tracer.metrics(),
            payload_log=self._parts.payload_log.metrics() if self._parts.payload_log is not None else None,
            custom=self._parts.metrics.snapshot(),
            lines_dropped=lines_dropped(),
        )


def _download_metrics(seen: DownloadSnapshot) -> DownloadMetrics | None:
    if seen == DownloadSnapshot():
        return None
    return DownloadMetrics(
        bytes=seen.bytes_downloaded_total,
        objects=seen.objects_downloaded_total,
        cache_hits=seen.cache_hits_total,
        retries=seen.retries_total,
        seconds=seen.seconds_total,
        pending_bytes=seen.bytes_total - seen.bytes_done,
    )


def _response_cache(options: EngineOptions) -> ResponseCache | None:
    if options.redis_cache is not None:
        from trident.core.response_cache.redis_cache import RedisCache  # its package is an extra

        return RedisCache(options.redis_cache)
    if not options.response_cache_bytes:
        return None
    return LocalCache(options.response_cache_bytes, lasting=options.control_mode == "demand")


def _payload_log(options: EngineOptions) -> PayloadLog | None:
    chosen = options.payload_log
    if chosen is None:
        return None
    from trident.core.observability.payload_log.destinations import COLLECTOR_THREADS, Collector, Folder, Objects

    if chosen.target.startswith(("http://", "https://")):
        return PayloadLog(chosen, partial(Collector, chosen), COLLECTOR_THREADS)
    location = parse_location(chosen.target)
    if location.scheme is Scheme.LOCAL:
        return PayloadLog(chosen, partial(Folder, chosen))
    from trident.core.repository.cloud_sources import renewed_store

    store = renewed_store(location, location, options.credential_path, writes=True)

    def put(name: str, content: bytes) -> None:
        try:
            store.put(name, content)
        except TransientError as error:
            raise RepositoryUnavailable(str(error)) from None

    return PayloadLog(chosen, partial(Objects, chosen, put))


def _memory(
    options: EngineOptions, gpus: Sequence[int], uuids: Sequence[str], budget: ModelBudget | None
) -> MemoryLedger:
    devices = {f"gpu:{gpu}": uuids[gpu] if gpu < len(uuids) else "" for gpu in gpus}
    read = partial(read_gpus, options.visible_gpus, options.model_memory.part or 1.0)
    if budget is None:
        return MemoryLedger(
            read,
            devices,
            per_model=options.gpu_memory_per_model,
            hint="unload another model, choose a larger GPU, or try all the same with --gpu-memory-per-model=none",
            hint_never="choose a larger GPU",
        )
    return MemoryLedger(
        read,
        devices,
        per_model=options.gpu_memory_per_model,
        hint="unpin a model by unloading it, or give models more with --model-memory",
        hint_never="give models more with --model-memory",
        trim=trim_heap,
        budget=budget,
    )


def _process_bytes(lifecycle: Lifecycle) -> list[int]:
    return [process.resident_bytes for version in lifecycle.resident() for process in version.processes()]


def make_engine(
    options: EngineOptions,
    on_fatal: Callable[[str], None] | None = None,
    makers: Mapping[str, MakeBackend] | None = None,
) -> InferenceEngine:
    """An engine with the backends that are installed, or with `makers`. `on_fatal` is told why a device can serve no
    more.

    Call it in the process that serves, after any fork: sessions and threads do not survive one.
    """
    gpus = gpu_ids(options.min_compute_capability)
    if options.visible_gpus and not gpus:
        _log.info("CUDA_VISIBLE_DEVICES is '%s', by which CUDA finds no GPU", options.visible_gpus)
    uuids = gpu_uuids(options.visible_gpus) if gpus else ()
    response_cache = _response_cache(options)

    def on_device_lost(device: str) -> None:
        if on_fatal is not None:
            on_fatal(f"Internal - the device {device} can run no more models until the process is replaced")

    is_demand = options.control_mode == "demand"
    budget = ModelBudget(options.model_memory, engines=options.place.count) if is_demand else None
    parts = EngineParts(
        gpu_uuids=uuids,
        on_device_lost=on_device_lost,
        metrics=CustomMetrics(is_reserved, enabled=options.custom_metrics),
        wraps=(partial(with_response_cache, response_cache),),
        rate_limiter=RateLimiter(options.resource_limits) if options.resource_limits is not None else None,
        regions=Regions(options.shm_map_from, on_lost=on_device_lost),
        tracer=Tracer(options.tracing),
        payload_log=_payload_log(options),
        memory=_memory(options, gpus, uuids, budget),
    )
    loader = ModelLoader(
        options,
        BackendRegistry(options.backend_settings, gpu_ids=gpus, cpu_instead=options.cpu_instead_of_gpu, makers=makers),
        parts,
    )
    hardware = HardwareGauges(
        interval_ms=options.metrics_interval_ms,
        cpu=CpuMeter() if options.cpu_metrics else None,
        open_gpu=partial(GpuMeter.open, options.visible_gpus) if options.gpu_metrics and gpus else None,
    )
    sources = SourceOpener(
        SourceOptions(
            cache_directory=Path(options.cache_directory),
            cache_bytes=options.cache_bytes,
            credential_path=options.credential_path,
            signature_key=Path(options.signature_key) if options.signature_key else None,
        )
    )
    open_source = partial(sources.open, any_layout=options.any_layout, single_model=options.single_model)
    lifecycle = Lifecycle(options, loader, open_source)
    if budget is not None:
        budget.processes = partial(_process_bytes, lifecycle)
    loader.models = EngineBlsClient(lifecycle, parts.rate_limiter)
    return InferenceEngine(options, lifecycle, hardware, sources, parts, response_cache)
