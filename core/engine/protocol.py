"""The Engine protocol: everything that a front end may ask of the engine, wherever the engine runs.

A front end finds a model by name and version, submits requests to it and receives responses through a callback. All
other values are plain data, so that the engine can run in another process. A method marked with `call` is declared here
only: `core.remote` derives from its annotations what crosses the process boundary. This module imports no backend.
Source: docs/architecture.md section 5.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol, TypeVar

from trident.core.config.problem import Problem
from trident.core.config.spec import InputSpec, ModelSpec, OutputSpec
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.response import CachedAnswer
from trident.core.inference.tensors import Shape
from trident.core.lifecycle.state import IndexEntry, ServingPhase, VersionOverview
from trident.core.observability.history import VersionHistory, VersionRequests
from trident.core.observability.log import LogLevels
from trident.core.observability.statistics import DemandOverview, MetricsSnapshot, VersionStatistics
from trident.core.observability.switches import TraceGate
from trident.core.observability.tracing.trace import Changes, TraceEvent, TraceRecord
from trident.core.shared_memory import CudaRegion, RegionKind, SystemRegion

if TYPE_CHECKING:
    from trident.core.config.schema import ModelConfig


_ATTRIBUTE = "engine_call"

M = TypeVar("M", bound=Callable[..., Any])


class ModelChange(Enum):
    """The change that a call makes to the model that its first argument names."""

    LOAD = "load"
    UNLOAD = "unload"


class HoldChange(Enum):
    """The change that a call makes to the holds of its caller. A hold is a model's name and a number.

    TAKE has the name as its first argument and returns the number; RELEASE has both as arguments.
    """

    TAKE = "take"
    RELEASE = "release"


@dataclass(frozen=True, slots=True, kw_only=True)
class CallMark:
    """Decorator that marks a method of the protocol. All of its parameters and its result need annotations.

    `blocks`: the method may wait for storage, for a load or until memory is free. `change`: None if it changes no
    model. `hold`: None if it has nothing to do with holds. `changes_log_or_traces`: the method changes the log or the
    trace settings. `loads`: where models are loaded on demand, it loads the one that its first argument names, and its
    answer comes after that.
    """

    blocks: bool = False
    loads: bool = False
    change: ModelChange | None = None
    hold: HoldChange | None = None
    changes_log_or_traces: bool = False

    def __call__(self, method: M) -> M:
        setattr(method, _ATTRIBUTE, self)
        return method

    @property
    def changes_state(self) -> bool:
        """True if front ends must learn the engine's new state before the caller has its answer."""
        return self.changes_log_or_traces or self.change is not None


call = CallMark


def mark_of(method: object) -> CallMark | None:
    """Return the mark of a method; None if front ends do not call it remotely."""
    mark: CallMark | None = getattr(method, _ATTRIBUTE, None)
    return mark


@dataclass(frozen=True, slots=True)
class ConfigMessage:
    """The message in protobuf's wire format, so that it can cross a process boundary.

    A front end in another process does not load protobuf, which takes more memory than all of its own code, until a
    client asks for a configuration.
    """

    serialized: bytes

    @staticmethod
    def of(config: ModelConfig) -> ConfigMessage:
        return ConfigMessage(config.SerializeToString())

    def parse(self) -> ModelConfig:
        """A new message. The first call in a process imports protobuf, which takes tens of milliseconds."""
        from trident.core.config.schema import ModelConfig

        return ModelConfig.FromString(self.serialized)


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigReport:
    """The configuration in force, and as its author wrote it before it was completed: None if that is not known.

    `without_effect` are the settings of the author that change nothing here.
    """

    in_force: ConfigMessage
    written: ConfigMessage | None
    without_effect: list[Problem]


# Source: docs/spec/http.md section 3.


EXTENSIONS = (
    "classification",
    "sequence",
    "model_repository",
    "model_repository(unload_dependents)",
    "schedule_policy",
    "model_configuration",
    "system_shared_memory",
    "cuda_shared_memory",
    "binary_tensor_data",
    "parameters",
    "statistics",
    "trace",
    "logging",
)
"""The protocol extensions that this server has, in Triton's order: clients look for them before they use them."""


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerMetadata:
    """`name` is the value of --id, `version` the version of this server."""

    name: str
    version: str
    extensions: tuple[str, ...] = EXTENSIONS


@dataclass(frozen=True, slots=True, kw_only=True)
class TensorMetadata:
    """An input or an output. `shape` begins with -1 if the model has a batch dimension."""

    name: str
    datatype: str
    shape: Shape


@dataclass(frozen=True, slots=True, kw_only=True)
class ModelMetadata:
    """`versions` are those that the question covers and that are ready, ascending. `platform` is the backend's name
    for a model whose configuration gives no platform."""

    name: str
    versions: tuple[int, ...]
    platform: str
    inputs: tuple[TensorMetadata, ...]
    outputs: tuple[TensorMetadata, ...]


def model_metadata(spec: ModelSpec, versions: Sequence[int]) -> ModelMetadata:
    """The metadata of the version that `spec` describes."""
    return ModelMetadata(
        name=spec.name,
        versions=tuple(versions),
        platform=spec.platform or spec.backend,
        inputs=tuple(_tensor(tensor, spec) for tensor in spec.inputs.values()),
        outputs=tuple(_tensor(tensor, spec) for tensor in spec.outputs.values()),
    )


def _tensor(tensor: InputSpec | OutputSpec, spec: ModelSpec) -> TensorMetadata:
    batch = (-1,) if spec.max_batch_size > 0 else ()
    return TensorMetadata(name=tensor.name, datatype=tensor.datatype.name, shape=(*batch, *tensor.dims))


class ServedModel(Protocol):
    """The version that `Engine.model` found. Look it up again for each request: a reload replaces it.

    `spec` holds what a codec needs to know.
    """

    @property
    def spec(self) -> ModelSpec: ...

    @property
    def cached_answer(self) -> CachedAnswer | None:
        """Answers requests from the response cache of this process, without a wait. Any thread.

        None for a model without one; decided when it is loaded.
        """
        ...

    def submit(self, pending: PendingRequest) -> None:
        """Run a request that names this model and the version that was asked for. Any thread; does not block.

        An error is a response; `PendingRequest.submit_to` makes one of what is raised. `on_response` may be called
        before this returns. If the version was unloaded after it was found, the version that the request's name and
        number now mean runs the request.
        """
        ...


class Engine(Protocol):
    """The engine as front ends see it. Any thread may call any method; those that block say so."""

    def model(self, name: str, version: int = -1) -> ServedModel:
        """Find the ready `version`, -1 for the latest. Raises ModelNotFound or ModelNotReady with Triton's text.

        Where models are loaded on demand, waits for the load of one that does not serve.
        """
        ...

    def model_nowait(self, name: str, version: int = -1) -> ServedModel | None:
        """As `model`, but never waits, not even for the engine's process: None if that has to be asked first."""
        ...

    @call(loads=True)
    def model_spec(self, name: str, version: int = -1) -> ModelSpec:
        """The `spec` of the model. Raises the lookup errors of `model`."""
        ...

    @call(hold=HoldChange.TAKE, loads=True)
    def hold_version(self, name: str, version: int = -1) -> int:
        """Hold a version for requests that belong together: until `release_version` it answers them, even if it is
        unloaded or replaced meanwhile.

        Returns the number that such a request has as its `model_version`. Raises the lookup errors of `model`. A front
        end that disconnects releases all that it holds.
        """
        ...

    @call(hold=HoldChange.RELEASE)
    def release_version(self, name: str, number: int) -> None:
        """End a hold, after the last of its requests was submitted. Does nothing if it has ended."""
        ...

    @call()
    def server_metadata(self) -> ServerMetadata: ...

    @call(loads=True)
    def model_metadata(self, name: str, version: int = -1) -> ModelMetadata:
        """Raises the lookup errors of `model`."""
        ...

    @call(loads=True)
    def model_config(self, name: str, version: int = -1) -> ConfigMessage:
        """The complete configuration. Raises the lookup errors of `model`."""
        ...

    @call()
    def model_statistics(self, name: str = "", version: int = -1) -> list[VersionStatistics]:
        """One item per ready version, of all models if `name` is empty. Raises InvalidRequest if none matches,
        ModelLoading if the model is still being loaded.
        """
        ...

    @call()
    def slowest_requests(self, name: str, version: int = -1) -> list[VersionRequests]:
        """The slowest and the last failed requests of the last hour, of each ready version. Raises as
        `model_statistics` does."""
        ...

    @call()
    def overview(self, name: str = "") -> list[VersionOverview]:
        """Every version and the models without one; of all models if `name` is empty."""
        ...

    @call()
    def demand_overview(self) -> DemandOverview | None:
        """Return the state of models on demand; None if models are not loaded on demand."""
        ...

    @call()
    def history(self, models: list[str], since: int) -> list[VersionHistory]:
        """Return what all versions of these models did after the second `since` of the wall clock; the last fifteen
        minutes are known. Empty unless the server has its console."""
        ...

    @call(loads=True)
    def config_report(self, name: str, version: int = -1) -> ConfigReport:
        """Raises the lookup errors of `model`."""
        ...

    @call(blocks=True)
    def repository_index(self, ready_only: bool) -> list[IndexEntry]:
        """Every known version and, unless `ready_only`, every model directory. Blocks on storage."""
        ...

    @call(blocks=True, change=ModelChange.LOAD)
    def load_model(self, name: str, parameters: dict[str, str | bytes]) -> None:
        """Load or reload a model. Blocks until it serves what the repository and `parameters` hold.

        `parameters` may have `config`, a configuration as JSON text, and `file:PATH`, a file's content as bytes. Raises
        a ServerError, also if the control mode does not allow the call; the versions that serve then continue to.
        """
        ...

    @call()
    def prefetch_model(self, name: str) -> None:
        """Begin to load a model that is loaded on demand. Raises as `model` does, and InvalidRequest elsewhere."""
        ...

    @call(blocks=True, change=ModelChange.LOAD)
    def load_directory(self, name: str, directory: str, origin: str) -> None:
        """Load the model in a directory on the server's disk, outside all repositories, under `name`, and pin it.

        `origin` is what `directories` shows of it. Blocks until it serves. Before the start of the engine it is only
        registered. Raises AlreadyLoaded if a directory was loaded under that name, and as `load_model` does; nothing
        is left of a load that failed.
        """
        ...

    @call()
    def directories(self) -> dict[str, str]:
        """The models that `load_directory` loaded and `unload_model` did not unload, with their origins."""
        ...

    @call(blocks=True, change=ModelChange.UNLOAD)
    def unload_model(self, name: str, unload_dependents: bool, *, wait: bool = False) -> None:
        """Begin to unload; requests in flight are still answered. With `wait` blocks until all memory is free.

        `unload_dependents` is for ensembles.
        """
        ...

    def is_live(self) -> bool: ...

    def is_ready(self) -> bool: ...

    @call()
    def is_model_ready(self, name: str, version: int = -1) -> bool:
        """Raises the lookup errors of `model`."""
        ...

    def phase(self) -> ServingPhase:
        """The progress of the server's start."""
        ...

    @call(changes_log_or_traces=True)
    def change_log(self, levels: LogLevels) -> None:
        """Change the log of all processes that serve."""
        ...

    @property
    def trace_gate(self) -> TraceGate:
        """True if requests may be traced. The same object each time."""
        ...

    @call()
    def trace_settings(self, model: str = "") -> dict[str, list[str] | str]:
        """The trace settings in force for a model, or for all without settings of their own, as clients see them."""
        ...

    @call()
    def recent_traces(self) -> list[tuple[TraceRecord, ...]]:
        """The last traces, each request with those that it led to. Empty unless the server has its console."""
        ...

    @call(changes_log_or_traces=True)
    def change_trace(self, model: str, changes: Changes) -> None:
        """Change the trace settings of a model, "" for the server's. Raises InvalidRequest, and then changes none."""
        ...

    def trace_answered(self, number: int, ahead: Sequence[TraceEvent], behind: Sequence[TraceEvent]) -> None:
        """The answer to a request whose responses had this trace number was sent: the front end's events before and
        after those of the model.
        """
        ...

    @call()
    def system_regions(self, name: str) -> list[SystemRegion]:
        """The regions of system shared memory by name, or the one called `name`. Raises RegionNotFound."""
        ...

    @call()
    def cuda_regions(self, name: str) -> list[CudaRegion]:
        """The regions of CUDA shared memory by name, or the one called `name`. Raises RegionNotFound."""
        ...

    @call()
    def register_system_region(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Let requests name `byte_size` bytes from `offset` of the object `key` of POSIX shared memory.

        Raises a ServerError with Triton's text.
        """
        ...

    @call()
    def register_cuda_region(self, name: str, handle: bytes, device_id: int, byte_size: int) -> None:
        """Let requests name `byte_size` bytes of the allocation on a GPU that `handle`, of CUDA IPC, refers to.

        Raises a ServerError with Triton's text.
        """
        ...

    @call()
    def unregister_regions(self, kind: RegionKind, name: str) -> None:
        """Remove the region `name`, all of `kind` if it is empty, after the requests that use it."""
        ...

    @call()
    def metrics(self) -> MetricsSnapshot: ...
