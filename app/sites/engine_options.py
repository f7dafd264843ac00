"""The settings that the engine takes."""

from __future__ import annotations

from app.settings.server import ServerSettings
from app.version import VERSION
from core.inference.times import TimesFor
from core.lifecycle.options import EngineOptions
from core.lifecycle.readiness import Readiness
from core.observability.metrics.options import MetricsOptions


def engine_options(settings: ServerSettings) -> EngineOptions:
    has_metrics = _has_metrics(settings)
    return EngineOptions(
        repositories=settings.model_repository,
        server_id=settings.server_id,
        server_version=VERSION,
        readiness=Readiness(settings.strict_readiness),
        auto_complete=not settings.disable_auto_complete_config,
        config_name=settings.model_config_name,
        control_mode=settings.model_control_mode,
        load_models=settings.load_model,
        poll_secs=settings.repository_poll_secs,
        namespacing=settings.model_namespacing,
        any_layout=settings.any_layout,
        single_model=settings.single_model,
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
        times_for=_times_for(settings),
        latencies=MetricsOptions(config=settings.metrics_settings).latencies,
    )


def _has_metrics(settings: ServerSettings) -> bool:
    has_page = settings.allow_metrics or settings.allow_sagemaker or settings.allow_vertex_ai
    return has_page or settings.metrics_log != "none"


def _times_for(settings: ServerSettings) -> TimesFor:
    if settings.response_timing:
        return TimesFor.CLIENTS
    return TimesFor.LOG if settings.log_access != "false" else TimesFor.NOBODY
