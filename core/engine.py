"""The one door for every front end: the Engine protocol, and the engine that serves in its own process.

A front end knows a model by name and version, hands over requests and gets responses through a callback. Everything
that crosses is plain data, so that the engine may as well live in another process.
Source: architecture section 5; lookup texts: spec/http.md section 3.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any, Protocol

from core.backends.base import BackendInstance
from core.backends.onnxruntime import OnnxRuntimeBackend, gpu_ids
from core.config.model_spec import ModelSpec
from core.config.render import config_json
from core.errors import InvalidRequest, ModelNotReady, ServerError
from core.inference import InferenceRequest, InferenceResponse, OnResponse, ServingPhase
from core.lifecycle import metadata
from core.lifecycle.lifecycle import Lifecycle
from core.lifecycle.loader import ModelLoader
from core.lifecycle.metadata import VersionOverview
from core.lifecycle.options import EngineOptions
from core.lifecycle.version import ModelVersion
from core.observability.gpu import GpuMeter, gpu_uuids
from core.observability.hardware import CpuMeter, HardwareGauges
from core.observability.metrics import MetricsSnapshot, ModelMetrics

NOT_EXPLICIT = "explicit model load / unload is not allowed if polling is enabled"


class Engine(Protocol):
    """What a front end may ask. Unless a method says otherwise it may be called on any thread and does not block."""

    def submit(self, request: InferenceRequest, on_response: OnResponse) -> None:
        """Run `request`. Never raises: an error comes as a response. `on_response` may be called on any thread, also
        before `submit` returns, and as often as the model answers; the last time with `final` set."""
        ...

    def cancel(self, request: InferenceRequest) -> None:
        """The caller no longer wants an answer. A queued request leaves the queue unrun and is answered CANCELLED."""
        ...

    def model_spec(self, name: str, version: int = -1) -> ModelSpec:
        """What a codec needs of the model. Raises ModelNotFound or ModelNotReady with Triton's text."""
        ...

    def server_metadata(self) -> dict[str, Any]: ...

    def model_metadata(self, name: str, version: int = -1) -> dict[str, Any]: ...

    def model_config(self, name: str, version: int = -1) -> dict[str, Any]: ...

    def model_statistics(self, name: str = "", version: int = -1) -> dict[str, Any]:
        """`{"model_stats": [...]}`, of all ready models if `name` is empty. Raises InvalidRequest for an unknown."""
        ...

    def repository_index(self, ready_only: bool) -> list[dict[str, str]]: ...

    def load_model(self, name: str, parameters: dict[str, Any]) -> None:
        """Blocks until the model is loaded. Raises a ServerError where the control mode does not allow it."""
        ...

    def unload_model(self, name: str, unload_dependents: bool) -> None: ...

    def is_live(self) -> bool: ...

    def is_ready(self) -> bool: ...

    def is_model_ready(self, name: str, version: int = -1) -> bool:
        """Raises the lookup errors of `model_spec`."""
        ...

    def phase(self) -> ServingPhase:
        """How far the server is: starting, loading, ready, failed or exiting."""
        ...

    def settings(self) -> dict[str, object]:
        """The settings in force, by their option names; secrets masked."""
        ...

    def metrics(self) -> MetricsSnapshot: ...


class InferenceEngine:
    """The engine in the process of its front end."""

    def __init__(self, options: EngineOptions, lifecycle: Lifecycle, hardware: HardwareGauges) -> None:
        self._options = options
        self._lifecycle = lifecycle
        self._models = lifecycle.models
        self._hardware = hardware

    def start(self) -> None:
        """Begin to load the models, on native threads; `phase` says how far it is."""
        self._hardware.start()
        self._lifecycle.start()

    def wait_loaded(self, timeout_s: float) -> bool:
        """Whether loading ended, well or badly, within `timeout_s` seconds. Blocks."""
        return self._lifecycle.wait_loaded(timeout_s)

    def begin_exit(self) -> None:
        """Neither live nor ready from now on; requests are still served."""
        self._lifecycle.begin_exit()

    def finish(self, timeout_s: float) -> bool:
        """Serve what was taken, at most for `timeout_s` seconds, and free everything. Whether all of it was. Blocks."""
        drained = self._lifecycle.finish(timeout_s)
        self._hardware.close()
        return drained

    def overview(self) -> list[VersionOverview]:
        """Every version for a person to read, and the models that have none."""
        return metadata.overview(self._models.entries())

    def submit(self, request: InferenceRequest, on_response: OnResponse) -> None:
        request.on_response = on_response
        try:
            self._models.find(request.model_name, request.model_version).submit(request)
        except ServerError as error:
            on_response(InferenceResponse(request.model_name, request.model_version, [], id=request.id, error=error))

    def cancel(self, request: InferenceRequest) -> None:
        request.cancelled = True

    def model_spec(self, name: str, version: int = -1) -> ModelSpec:
        return self._models.find(name, version).spec

    def server_metadata(self) -> dict[str, Any]:
        return metadata.server_metadata(self._options.server_id, self._options.server_version)

    def model_metadata(self, name: str, version: int = -1) -> dict[str, Any]:
        found = self._models.find(name, version)
        versions = self._models.ready_versions(name) if version == -1 else [version]
        return metadata.model_metadata(found.spec, versions)

    def model_config(self, name: str, version: int = -1) -> dict[str, Any]:
        return config_json(self._models.find(name, version).config)

    def model_statistics(self, name: str = "", version: int = -1) -> dict[str, Any]:
        ready = [v for v in self._models.versions() if v.is_ready]
        if name:
            ready = [v for v in ready if v.name == name]
            if not ready:
                raise InvalidRequest(f"requested model '{name}' is not available")
        if version != -1:
            ready = [v for v in ready if v.version == version]
            if not ready:
                raise InvalidRequest(f"requested model version is not available for model '{name}'")
        return metadata.model_statistics(ready)

    def repository_index(self, ready_only: bool) -> list[dict[str, str]]:
        return metadata.repository_index(self._models.entries(), ready_only)

    def load_model(self, name: str, parameters: dict[str, Any]) -> None:
        raise ModelNotReady(NOT_EXPLICIT, hint="start with --model-control-mode=explicit")

    def unload_model(self, name: str, unload_dependents: bool) -> None:
        raise ModelNotReady(NOT_EXPLICIT, hint="start with --model-control-mode=explicit")

    def is_live(self) -> bool:
        return self._lifecycle.phase().name != "exiting"

    def is_ready(self) -> bool:
        """Whether loading has ended and, under strict readiness, every model that is known can serve."""
        phase = self._lifecycle.phase().name
        if phase == "exiting":
            return False
        if not self._options.strict_readiness:
            return True
        return phase in ("ready", "failed") and all(e.is_ready for e in self._models.entries())

    def is_model_ready(self, name: str, version: int = -1) -> bool:
        return self._models.find(name, version).is_ready

    def phase(self) -> ServingPhase:
        return self._lifecycle.phase()

    def settings(self) -> dict[str, object]:
        return dict(self._options.settings)

    def metrics(self) -> MetricsSnapshot:
        ready = [v for v in self._models.versions() if v.is_ready]
        return MetricsSnapshot(models=tuple(map(_model_metrics, ready)), hardware=self._hardware.reading)


def _model_metrics(version: ModelVersion) -> ModelMetrics:
    return ModelMetrics(
        model=version.name,
        version=version.version,
        statistics=version.statistics.snapshot(version.queued),
        load_duration_secs=version.load_seconds,
        tags=version.spec.metric_tags,
        gpu_uuid=version.gpu_uuid,
    )


def _report_poisoned(on_fatal: Callable[[str], None] | None, instance: BackendInstance) -> None:
    if on_fatal is not None:
        on_fatal(f"Internal - the device {instance.placement.device} can run no more models")


def make_engine(options: EngineOptions, on_fatal: Callable[[str], None] | None = None) -> InferenceEngine:
    """An engine with every backend that is installed. `on_fatal` is told why a device can serve no more.

    Call it in the process that serves, after any fork: sessions and threads do not survive one.
    """
    gpus = gpu_ids(options.min_compute_capability)
    loader = ModelLoader(
        options,
        {OnnxRuntimeBackend.name: OnnxRuntimeBackend()},
        gpu_ids=gpus,
        gpu_uuids=gpu_uuids(options.visible_gpus) if gpus else (),
        on_poisoned=partial(_report_poisoned, on_fatal),
    )
    hardware = HardwareGauges(
        interval_ms=options.metrics_interval_ms,
        cpu=CpuMeter() if options.cpu_metrics else None,
        open_gpu=partial(GpuMeter.open, options.visible_gpus) if options.gpu_metrics and gpus else None,
    )
    return InferenceEngine(options, Lifecycle(options, loader), hardware)
