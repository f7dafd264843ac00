"""An engine for tests of front ends, whose models and answers the test sets."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from trident.core.config.schema import ModelConfig
from trident.core.config.spec import InputSpec, ModelSpec, OutputSpec
from trident.core.engine.protocol import ConfigMessage, ConfigReport, ModelMetadata, ServerMetadata, model_metadata
from trident.core.errors import InvalidRequest, ModelNotFound, RequestCancelled, ServerError
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import CachedAnswer, InferenceResponse, OnResponse
from trident.core.inference.tensors import BY_NAME
from trident.core.lifecycle.state import IndexEntry, ModelState, Phase, ServingPhase, VersionOverview
from trident.core.observability.history import VersionHistory, VersionRequests
from trident.core.observability.log import LogLevels
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.observability.statistics import DemandOverview, MetricsSnapshot, VersionStatistics
from trident.core.observability.tracing.trace import Changes, TraceEvent, TraceOptions, TraceRecord
from trident.core.observability.tracing.tracer import Tracer
from trident.core.shared_memory import CudaRegion, RegionKind, Regions, SystemRegion


def identity_spec(name: str, version: int = 1) -> ModelSpec:
    return ModelSpec(
        name=name,
        version=version,
        platform="onnxruntime_onnx",
        backend="onnxruntime",
        max_batch_size=0,
        inputs={"IN": InputSpec(name="IN", datatype=BY_NAME["INT32"], dims=(-1,))},
        outputs={"OUT": OutputSpec(name="OUT", datatype=BY_NAME["INT32"], dims=(-1,))},
    )


class FakeModel:
    """A ServedModel whose requests its engine answers."""

    cached_answer: CachedAnswer | None = None

    def __init__(self, engine: FakeEngine, spec: ModelSpec) -> None:
        self._engine = engine
        self.spec = spec

    def submit(self, pending: PendingRequest) -> None:
        pending.on_cancel = self._engine.cancel
        self._engine.submit(pending)


def empty_response(request: InferenceRequest) -> InferenceResponse:
    return InferenceResponse(request.model_name, 1, [], id=request.id)


class FakeEngine:
    """Has the models `simple` (versions 1 and 3) and `a%2Fb`; `calls` lists the calls that change something.

    `holds` lists the names and versions that were asked to be held; the numbers of the holds are -2, -3 and so on.
    `released` lists the names and numbers of those that ended.
    `knows_models` is whether `model_nowait` knows the models.
    `respond` makes the response to a request, on the caller's thread; None leaves it unanswered until it is cancelled.
    """

    def __init__(self, respond: Callable[[InferenceRequest], InferenceResponse | None] = empty_response) -> None:
        self.respond = respond
        self.versions: dict[str, tuple[int, ...]] = {"simple": (1, 3), "a%2Fb": (1,)}
        self.serving = ServingPhase(name=Phase.READY, done=2, total=2)
        self.live = True
        self.ready = True
        self.model_ready = True
        self.refusal: ServerError | None = None
        self.calls: list[tuple[Any, ...]] = []
        self.cancelled: list[InferenceRequest] = []
        self.holds: list[tuple[str, int]] = []
        self.released: list[tuple[str, int]] = []
        self.knows_models = True
        self.regions = Regions()
        self._pending: dict[int, OnResponse] = {}
        self._tracer = Tracer(TraceOptions())
        self.trace_gate = self._tracer.gate

    def submit(self, pending: PendingRequest) -> None:
        response = self.respond(pending.request)
        if response is not None:
            pending.on_response(response)
            return
        self._pending[id(pending.request)] = pending.on_response

    def cancel(self, pending: PendingRequest) -> None:
        request = pending.request
        self.calls.append(("cancel", request.model_name))
        self.cancelled.append(request)
        on_response = self._pending.pop(id(request), None)
        if on_response is not None:
            on_response(InferenceResponse(request.model_name, 1, [], error=RequestCancelled("cancelled")))

    def _noted(self, *call: Any) -> None:
        if self.refusal is not None:
            raise self.refusal
        self.calls.append(call)

    def _version(self, name: str, version: int) -> int:
        if name not in self.versions:
            raise ModelNotFound(f"Request for unknown model: '{name}' is not found", model=name)
        if version < 0:  # the latest, or a held one
            return max(self.versions[name])
        if version not in self.versions[name]:
            raise ModelNotFound(f"Request for unknown model: '{name}' version {version} is not found", model=name)
        return version

    def model(self, name: str, version: int = -1) -> FakeModel:
        return FakeModel(self, self.model_spec(name, version))

    def model_nowait(self, name: str, version: int = -1) -> FakeModel | None:
        return self.model(name, version) if self.knows_models else None

    def model_spec(self, name: str, version: int = -1) -> ModelSpec:
        return identity_spec(name, self._version(name, version))

    def hold_version(self, name: str, version: int = -1) -> int:
        if self.refusal is not None:
            raise self.refusal
        self.holds.append((name, version))
        return -1 - len(self.holds)

    def release_version(self, name: str, number: int) -> None:
        self.released.append((name, number))

    def server_metadata(self) -> ServerMetadata:
        return ServerMetadata(name="triton", version="2", extensions=("statistics",))

    def model_metadata(self, name: str, version: int = -1) -> ModelMetadata:
        found = self._version(name, version)
        return model_metadata(identity_spec(name, found), [found])

    def model_config(self, name: str, version: int = -1) -> ConfigMessage:
        return ConfigMessage.of(ModelConfig(name=name, max_batch_size=self._version(name, version)))

    def model_statistics(self, name: str = "", version: int = -1) -> list[VersionStatistics]:
        if name and name not in self.versions:
            raise InvalidRequest(f"requested model '{name}' is not available")
        return [VersionStatistics(name=name or "all", version=version, statistics=ModelStatistics().snapshot())]

    def slowest_requests(self, name: str, version: int = -1) -> list[VersionRequests]:
        return [VersionRequests(name=name, version=self._version(name, version), slowest=(), failed=())]

    def overview(self, name: str = "") -> list[VersionOverview]:
        ready = [(each, v) for each, versions in self.versions.items() for v in versions if name in ("", each)]
        return [
            VersionOverview(entry=IndexEntry(name=name, version=version, state=ModelState.READY))
            for name, version in ready
        ]

    def recent_traces(self) -> list[tuple[TraceRecord, ...]]:
        return self._tracer.recent()

    def history(self, models: list[str], since: int) -> list[VersionHistory]:
        return []

    def config_report(self, name: str, version: int = -1) -> ConfigReport:
        return ConfigReport(in_force=self.model_config(name, version), written=None, without_effect=[])

    def repository_index(self, ready_only: bool) -> list[IndexEntry]:
        if ready_only:
            return [IndexEntry(name="simple", state=ModelState.READY)]
        return [IndexEntry(name="simple"), IndexEntry(name="broken")]

    def load_model(self, name: str, parameters: dict[str, Any]) -> None:
        self._noted("load", name, parameters)

    def load_directory(self, name: str, directory: str, origin: str) -> None:
        self._noted("load_directory", name, directory)

    def directories(self) -> dict[str, str]:
        return {}

    def demand_overview(self) -> DemandOverview | None:
        return None

    def unload_model(self, name: str, unload_dependents: bool, *, wait: bool = False) -> None:
        self._noted("unload", name, unload_dependents)

    def is_live(self) -> bool:
        return self.live and self.serving.name != Phase.EXITING

    def is_ready(self) -> bool:
        return self.ready and self.serving.name != Phase.EXITING

    def is_model_ready(self, name: str, version: int = -1) -> bool:
        self._version(name, version)
        return self.model_ready

    def phase(self) -> ServingPhase:
        return self.serving

    def change_log(self, levels: LogLevels) -> None:
        self.calls.append(("change_log", levels))

    def system_regions(self, name: str) -> list[SystemRegion]:
        return self.regions.system_regions(name)

    def cuda_regions(self, name: str) -> list[CudaRegion]:
        return self.regions.cuda_regions(name)

    def register_system_region(self, name: str, key: str, offset: int, byte_size: int) -> None:
        self.regions.register_system(name, key, offset, byte_size)

    def register_cuda_region(self, name: str, handle: bytes, device_id: int, byte_size: int) -> None:
        self.calls.append(("register_cuda", name, handle, device_id, byte_size))

    def unregister_regions(self, kind: RegionKind, name: str) -> None:
        self.regions.unregister(kind, name)

    def trace_settings(self, model: str = "") -> dict[str, list[str] | str]:
        return self._tracer.settings(model)

    def change_trace(self, model: str, changes: Changes) -> None:
        self.calls.append(("change_trace", model, changes))
        self._tracer.change(model, changes)

    def trace_answered(self, number: int, ahead: Sequence[TraceEvent], behind: Sequence[TraceEvent]) -> None:
        self.calls.append(("trace_answered", number, ahead, behind))

    def metrics(self) -> MetricsSnapshot:
        raise NotImplementedError
