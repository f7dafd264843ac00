"""The engine of a server: its options, its start before the modules in front of it are imported, and the watch until
its models are loaded and the server serves or fails.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from functools import partial
from pathlib import Path

from trident.app.process.environment import keep_freed_memory, process_environment, settle_collector
from trident.app.settings.reading import KSERVE_NAME
from trident.app.settings.server import SERVER_OPTIONS, ServerSettings
from trident.app.terminal import (
    ModelRow,
    StatusLine,
    log_first_request,
    log_models,
    log_services,
    log_settings,
    model_row,
)
from trident.app.version import VERSION
from trident.core.backends.python.environment import CACHE_DIRECTORY
from trident.core.backends.registry import MakeBackend
from trident.core.config.platforms import ENSEMBLE
from trident.core.config.spec import ModelSpec
from trident.core.engine.in_process import InferenceEngine, make_engine
from trident.core.errors import ServerError
from trident.core.lifecycle.options import AUTO, UNLIMITED, EngineOptions, EnginePlace, MemoryShare, Readiness
from trident.core.lifecycle.state import ModelState, Phase, ServingPhase
from trident.core.observability.metrics_log import Format, MetricsLog, cloud_logging_line, embedded_metrics_line
from trident.core.observability.statistics import MetricsOptions
from trident.core.options import SECRETS, PayloadLogOptions, WindowLimits

_ALONE = EnginePlace()
_KEPT_TRACES = 100
# Between two looks at the files of the models with --reload.
_RELOAD_S = 0.5


def engine_options(settings: ServerSettings, place: EnginePlace = _ALONE) -> EngineOptions:
    """The options of one of the server's engines. The memory of the response cache is divided among them."""
    has_page = settings.allow_metrics or settings.http_metrics or bool(settings.open_platforms)
    has_metrics = has_page or settings.metrics_log != "none"
    backends = settings.backend_settings
    if CACHE_DIRECTORY not in backends.get("", {}):  # the environments of Python models are cached beside the models
        cache = str(Path(settings.model_cache_directory, "environments"))
        backends = {**backends, "python": {CACHE_DIRECTORY: cache, **backends.get("python", {})}}
    # Engines after the first write traces to files of their own, and no two of them give a trace the same number.
    traces = settings.trace_options
    tracing = replace(
        traces,
        file=f"{traces.file}.engine-{place.index}" if traces.file and place.index else traces.file,
        numbers=(1 + place.index, place.count),
        kept=_KEPT_TRACES if settings.console else 0,
    )
    memory = settings.model_memory
    gpu_memory, words = settings.gpu_memory_per_model, {"auto": AUTO, "none": UNLIMITED}
    return EngineOptions(
        repositories=settings.model_repository,
        server_id=settings.server_id,
        server_version=VERSION,
        readiness=Readiness(settings.strict_readiness),
        auto_complete=not settings.disable_auto_complete_config,
        config_name=settings.model_config_name,
        control_mode="poll" if settings.reload else settings.model_control_mode,
        load_models=settings.load_model,
        model_memory=MemoryShare(
            bytes=int(memory) // place.count if memory.isdigit() else 0,
            part=float(memory[:-1]) / 100 / place.count if memory.endswith("%") else 0.0,
        ),
        model_idle_s=settings.model_idle_secs,
        poll_secs=_RELOAD_S if settings.reload else settings.repository_poll_secs,
        namespacing=settings.model_namespacing and not settings.multi_model,
        any_layout=settings.any_layout,
        single_model=settings.single_model,
        cache_directory=settings.model_cache_directory,
        cache_bytes=settings.model_cache_bytes,
        credential_path=settings.cloud_credential_path,
        signature_key=settings.model_signature,
        load_threads=settings.model_load_thread_count,
        load_retries=settings.model_load_retry_count,
        load_timeout_s=settings.model_load_timeout_secs,
        unload_timeout_s=settings.model_unload_timeout_secs,
        backend_settings=backends,
        cpu_instead_of_gpu=settings.gpu_missing == "cpu",
        gpu_memory_per_model=words[gpu_memory] if gpu_memory in words else int(gpu_memory),
        gpu_memory_idle_s=settings.gpu_memory_idle_secs,
        min_compute_capability=settings.min_supported_compute_capability,
        delay_scheduler=settings.delay_scheduler,
        backlog_delay_scheduler=settings.backlog_delay_scheduler,
        metrics_interval_ms=settings.metrics_interval_ms,
        visible_gpus=settings.visible_gpus,
        gpu_metrics=has_metrics and settings.allow_gpu_metrics,
        cpu_metrics=has_metrics and settings.allow_cpu_metrics,
        custom_metrics=has_page,
        response_cache_bytes=settings.response_cache_bytes // place.count,
        redis_cache=settings.redis_options,
        shm_map_from=settings.client_shm_map_bytes,
        response_window=WindowLimits(settings.response_window_count, settings.response_window_bytes),
        resource_limits=settings.resource_limits,
        tracing=tracing,
        payload_log=_payload_log(settings),
        latencies=replace(MetricsOptions(config=settings.metrics_settings).latencies, steps=settings.console),
        console=settings.console,
        place=place,
    )


# Of any pod.
_NAMESPACE_FILE = Path("/var/run/secrets/kubernetes.io/serviceaccount/namespace")


def _payload_log(settings: ServerSettings) -> PayloadLogOptions | None:
    if not settings.payload_log:
        return None
    namespace = ""
    with suppress(OSError, ValueError):
        namespace = _NAMESPACE_FILE.read_text().strip()
    return PayloadLogOptions(
        target=settings.payload_log,
        sample=settings.payload_log_sample,
        max_bytes=settings.payload_log_max_bytes,
        redacted=SECRETS | {name.lower() for name in settings.payload_log_redact},
        service=process_environment().get(KSERVE_NAME, ""),
        namespace=namespace,
    )


def make_metrics_log(settings: ServerSettings, engine: InferenceEngine) -> MetricsLog | None:
    dimensions = settings.metrics_log_dimensions
    formats: dict[str, Format] = {
        "emf": partial(embedded_metrics_line, settings.metrics_log_namespace, dimensions),
        "gcp": partial(cloud_logging_line, dimensions),
    }
    chosen = formats.get(settings.metrics_log)
    if chosen is None:
        return None
    return MetricsLog(engine.metrics, engine.is_ready, chosen, settings.metrics_log_interval_secs)


# Longer than the imports of a storage's client and a listing take; a slow storage is better waited for with imports.
_LISTING_S = 0.5


class EngineStart:
    """The engine, and why it cannot serve any more.

    Models are listed, downloaded and opened on native threads, most of the time without the interpreter's lock: on one
    core, while the modules of the worker and of the protocols are imported on the other. The client of a storage needs
    the interpreter to itself until it has listed its models; so the worker begins after that, unless the storage is
    slow. Made in the worker, after the fork.
    """

    def __init__(self, settings: ServerSettings, makers: Mapping[str, MakeBackend] | None = None) -> None:
        self.failure: str | None = None
        keep_freed_memory()  # before the first model: weights in a thread's heap would not return to the system
        self.engine: InferenceEngine = make_engine(engine_options(settings), self.fail, makers)
        self.engine.start()
        self.engine.wait_listed(_LISTING_S)

    def fail(self, reason: str) -> None:
        """End the whole server with `reason`, as `CODE - message`. Any thread."""
        self.failure = reason


# The interval at which the progress of loading is read and drawn.
_POLL_SECONDS = 0.25


def watch_start(
    settings: ServerSettings,
    engine: InferenceEngine,
    fail: Callable[[str], None],
    *,
    reports: bool = True,
    on_success: Callable[[], None] = lambda: None,
) -> None:
    """Watch `engine` on a thread until its models are loaded. Calls `fail` with the reason if the server cannot serve.

    The lines that tools wait for are logged when the models are loaded, as Triton does, although the ports are open
    before. `reports`: of several engines one logs what the server serves. `on_success` is called before it does.
    """

    def specs(models: Iterable[str]) -> list[ModelSpec]:
        """Return the specs of `models` without the steps of ensembles, whose inputs may come from other steps only."""
        found, steps = [], set()
        for model in models:
            with suppress(ServerError):  # unloaded meanwhile, or one of two that have the name
                found.append(engine.model_spec(model))
                if found[-1].platform == ENSEMBLE:
                    config = engine.model_config(model).parse()
                    steps |= {step.model_name for step in config.ensemble_scheduling.step}
        return [spec for spec in found if spec.name not in steps]

    def watch() -> None:
        line = StatusLine()
        while not engine.wait_loaded(timeout_s=_POLL_SECONDS):
            phase = engine.phase()
            if phase.name == Phase.EXITING:
                return
            if reports:
                line.show_download(phase.download)
        line.clear()
        rows = [model_row(each) for each in engine.overview()]
        if reports:
            log_settings(settings)
            log_models(rows)
        if failure := start_failure(settings, engine.phase(), rows):
            fail(failure)
            return
        on_success()
        settle_collector()
        if reports:
            log_services(settings)
            ready = dict.fromkeys(row.model for row in rows if row.state == ModelState.READY.value)
            log_first_request(settings, specs(ready))

    threading.Thread(target=watch, name="trident-start", daemon=True).start()


_MAX_SHOWN = 3
# The group of routes through which clients load models.
_CONTROL = "model-repository"


def start_failure(settings: ServerSettings, phase: ServingPhase, rows: Sequence[ModelRow]) -> str:
    """Return why the server cannot start, as `CODE - message`; "" if it can. `rows` are the versions after startup."""
    if not settings.exit_on_error:
        return ""
    if phase.name == Phase.FAILED:
        return f"Internal - failed to load all models{_reasons(phase.failures)}"
    problem = default_model_problem(settings, rows)
    return f"Invalid argument - {problem}" if problem and phase.name != Phase.EXITING else ""


def default_model_problem(settings: ServerSettings, rows: Sequence[ModelRow]) -> str:
    """Return why a platform's default model will never be ready, given the `rows` after startup; "" if it may be.

    The health probe asks for that model, so the server would stay unhealthy.
    """
    loaded = sorted({row.model for row in rows if row.state == ModelState.READY.value})
    for platform, own in settings.open_platforms.items():
        if not platform.required_model or not own.default_model or own.default_model in loaded:
            continue
        changes = settings.allow_http or _CONTROL in own.public_groups
        if (
            settings.reload
            or settings.model_control_mode in ("poll", "demand")
            or (settings.model_control_mode == "explicit" and changes)
        ):
            continue
        listed = ", ".join(loaded[:_MAX_SHOWN]) + (" …" if loaded[_MAX_SHOWN:] else "")
        flag = SERVER_OPTIONS[platform.required_model].flag
        return f"--{flag} is '{own.default_model}', which is not among the loaded models: {listed}"
    return ""


def _reasons(failures: Mapping[str, str]) -> str:
    """The first failures and their reasons, for the last line of the log; earlier lines have all of them."""
    if not failures:
        return ""
    shown = [f"{name}: {reason}" for name, reason in sorted(failures.items())[:_MAX_SHOWN]]
    more = len(failures) - len(shown)
    return f" ({'; '.join(shown)}{f'; and {more} more' if more else ''})"
