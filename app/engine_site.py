"""The site of a model server: the engine, the v2 application before it, and the metrics page beside it."""

from __future__ import annotations

import gc
import logging
import threading
from collections.abc import Mapping
from functools import partial
from typing import Any
from wsgiref.types import WSGIApplication

import gevent

from app.progress_bar import ProgressBar
from app.settings import ServerSettings
from app.settings_source import DEFAULT
from app.tables import ModelRow, addresses_table, models_table, options_table
from app.version import VERSION
from core.backends.onnxruntime import gpu_ids
from core.engine import InferenceEngine, make_engine
from core.http.application import V2Application
from core.http.bridge import Bridge, ThreadBridge
from core.http.gevent_bridge import GeventBridge
from core.http.metrics_application import MetricsApplication
from core.http.options import LOG_DEFAULT, HttpOptions
from core.http.restricted import parse_restricted
from core.lifecycle.options import EngineOptions
from core.observability.exposition import render
from core.observability.logging import log_table
from core.observability.metrics import MetricsOptions, metric_families

_log = logging.getLogger("trident.server")

# How often the start is looked at; a progress bar moves as often.
_LOOK_SECONDS = 0.25
_ALLOCATIONS_BETWEEN_COLLECTIONS = 20_000


class EngineSite:
    """Made in the worker, after the fork. Under this project's worker it waits on the hub, else on native threads."""

    def __init__(self, settings: ServerSettings, *, on_hub: bool) -> None:
        self._settings = settings
        self._failure: str | None = None
        self._engine: InferenceEngine = make_engine(engine_options(settings), on_fatal=self._fail)
        self._on_hub = on_hub
        self._v2 = V2Application(self._engine, http_options(settings), self._bridge(settings.http_thread_count))
        self._sagemaker = self._sagemaker_application()
        self._vertex = self._vertex_application()
        self._metrics_options = MetricsOptions(
            gpu=settings.allow_gpu_metrics, cpu=settings.allow_cpu_metrics, interval_ms=settings.metrics_interval_ms
        )
        self._watch = threading.Thread(target=self._report_start, name="trident-start-report", daemon=True)

    @property
    def applications(self) -> Mapping[int, WSGIApplication]:
        applications: dict[int, Any] = {}
        if self._settings.allow_http:
            applications[self._settings.http_port] = self._v2
        if self._sagemaker is not None:
            applications[self._settings.sagemaker_port] = self._sagemaker
        if self._vertex is not None:
            applications[self._settings.vertex_ai_port] = self._vertex
        if self._settings.allow_metrics:
            # Of several front ends the page has the requests of the plain one: the others' ports have pages of their
            # own.
            front_end = self._v2 if self._settings.allow_http else self._sagemaker or self._vertex or self._v2
            applications[self._settings.metrics_port] = MetricsApplication(partial(self._metrics_page, front_end))
        return applications

    @property
    def failure(self) -> str | None:
        return self._failure

    def start(self) -> None:
        self._engine.start()
        self._watch.start()

    def begin_exit(self) -> None:
        self._engine.begin_exit()

    def finish(self, timeout_s: float) -> bool:
        return self._engine.finish(timeout_s)

    def _report_start(self) -> None:
        """When loading has ended: say what is served, or that the server cannot go on. On a native thread."""
        shown = ProgressBar()
        while not self._engine.wait_loaded(timeout_s=_LOOK_SECONDS):
            phase = self._engine.phase()
            if phase.name == "exiting":
                return
            shown.show(phase.download)
        shown.show(None)
        # What exists now stays: without this, full collections walk it all and hold every request up (p99 at 64
        # connections 33-72 ms, with it 16). What requests make has no cycles but for errors, so it is enough to look
        # now and then: by default the collector looks after every 15 requests, at those in flight.
        gc.collect()
        gc.freeze()
        gc.set_threshold(_ALLOCATIONS_BETWEEN_COLLECTIONS, 10, 10)
        phase = self._engine.phase()
        given = [row for row in self._settings.describe() if row.source != DEFAULT]
        log_table(_log, "options that are not at their defaults", options_table(given))
        if self._settings.allow_sagemaker and self._settings.sagemaker is not None:
            log_table(_log, "SageMaker's settings", options_table(self._settings.sagemaker.describe()))
        if self._settings.vertex is not None:
            log_table(_log, "Vertex AI's settings", options_table(self._settings.vertex.describe()))
        rows = [
            ModelRow(v.model, v.version, v.state, v.device, v.execution_provider, v.reason)
            for v in self._engine.overview()
        ]
        log_table(_log, "models", models_table(rows))
        if phase.name == "failed" and self._settings.exit_on_error:
            self._fail("Internal - failed to load all models")
            return
        log_table(_log, "addresses", addresses_table(self._addresses()))

    def _addresses(self) -> list[tuple[str, str]]:
        services = self._settings.services()
        return [(name[0].upper() + name[1:], f"{address}:{port}") for name, (address, port) in services.items()]

    def _bridge(self, threads: int) -> Bridge:
        return GeventBridge(gevent.get_hub(), threads) if self._on_hub else ThreadBridge()

    def _sagemaker_application(self) -> V2Application | None:
        settings = self._settings
        if settings.sagemaker is None or not settings.allow_sagemaker:
            return None
        from adapters.sagemaker.application import SageMakerApplication
        from adapters.sagemaker.memory import MemoryBudget

        memory = MemoryBudget.of_machine(
            gpu_ids=gpu_ids(settings.min_supported_compute_capability),
            visible_gpus=settings.visible_gpus,
            limit=settings.sagemaker_memory_limit_mb * 1_000_000 or None,
        )
        bridge = self._bridge(settings.sagemaker_thread_count)
        application: V2Application = SageMakerApplication(
            self._engine,
            http_options(settings),
            bridge,
            settings.sagemaker,
            lambda: self._metrics_page(application),
            memory=memory,
        )
        return application

    def _vertex_application(self) -> V2Application | None:
        settings = self._settings
        if settings.vertex is None:
            return None
        from adapters.vertex.application import VertexApplication

        bridge = self._bridge(settings.vertex_ai_thread_count)
        application: V2Application = VertexApplication(
            self._engine, http_options(settings), bridge, settings.vertex, lambda: self._metrics_page(application)
        )
        return application

    def _fail(self, reason: str) -> None:
        self._failure = reason

    def _metrics_page(self, front_end: V2Application) -> bytes:
        page = render(metric_families(self._engine.metrics(), self._metrics_options))
        return page + front_end.request_metrics_page()


def engine_options(settings: ServerSettings) -> EngineOptions:
    has_metrics = settings.allow_metrics or settings.allow_sagemaker or settings.allow_vertex_ai
    return EngineOptions(
        repositories=settings.model_repository,
        server_id=settings.server_id,
        server_version=VERSION,
        strict_readiness=settings.strict_readiness,
        auto_complete=not settings.disable_auto_complete_config,
        config_name=settings.model_config_name,
        control_mode=settings.model_control_mode,
        load_models=settings.load_model,
        poll_secs=settings.repository_poll_secs,
        namespacing=settings.model_namespacing,
        any_layout=settings.any_layout,
        cache_directory=settings.model_cache_directory,
        cache_bytes=settings.model_cache_bytes,
        credential_path=settings.cloud_credential_path,
        load_threads=settings.model_load_thread_count,
        load_retries=settings.model_load_retry_count,
        backend_settings=settings.backend_settings,
        min_compute_capability=settings.min_supported_compute_capability,
        delay_scheduler=settings.delay_scheduler,
        metrics_interval_ms=settings.metrics_interval_ms,
        visible_gpus=settings.visible_gpus,
        gpu_metrics=has_metrics and settings.allow_gpu_metrics,
        cpu_metrics=has_metrics and settings.allow_cpu_metrics,
        settings={row.option: row.value for row in settings.describe()},
    )


def http_options(settings: ServerSettings) -> HttpOptions:
    return HttpOptions(
        max_input_size=settings.http_max_input_size,
        header_forward_pattern=settings.http_header_forward_pattern,
        restricted=parse_restricted(settings.http_restricted_api),
        log_settings={
            **LOG_DEFAULT,
            "log_file": settings.log_file,
            "log_info": settings.log_info,
            "log_warning": settings.log_warning,
            "log_error": settings.log_error,
            "log_verbose_level": settings.log_verbose,
            "log_format": settings.log_format,
        },
    )
