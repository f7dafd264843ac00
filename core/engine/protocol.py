"""The Engine protocol: everything that a front end may ask of the engine, wherever the engine runs.

A front end finds a model by name and version, submits requests to it and receives responses through a callback. All
other values are plain data, so that the engine can run in another process. A method marked with `call` is declared here
only: `core.remote` derives from its annotations what crosses the process boundary. This module imports no backend.
Source: docs/architecture.md section 5.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Protocol

from core.config.model_spec import ModelSpec
from core.engine.call import HoldChange, ModelChange, call
from core.engine.config_message import ConfigMessage
from core.engine.metadata import ModelMetadata, ServerMetadata
from core.engine.served_model import ServedModel
from core.lifecycle.repository_index import IndexEntry
from core.lifecycle.serving_phase import ServingPhase
from core.observability.logging import LogLevels
from core.observability.metrics.snapshot import MetricsSnapshot
from core.observability.slowest_requests import VersionRequests
from core.observability.statistics import VersionStatistics
from core.observability.tracing.settings import Changes
from core.observability.tracing.trace import Event
from core.observability.tracing.trace_gate import TraceGate
from core.shared_memory.region import CudaRegion, RegionKind, SystemRegion


class Engine(Protocol):
    """What a front end may ask. Any thread may call any method, and no method blocks unless its docstring says so."""

    def model(self, name: str, version: int = -1) -> ServedModel:
        """Find the ready `version`, -1 for the latest. Raises ModelNotFound or ModelNotReady with Triton's text."""
        ...

    def model_at_hand(self, name: str, version: int = -1) -> ServedModel | None:
        """As `model`, but never waits, not even for the engine's process: None if that has to be asked first."""
        ...

    @call()
    def model_spec(self, name: str, version: int = -1) -> ModelSpec:
        """The `spec` of the model. Raises the lookup errors of `model`."""
        ...

    @call(hold=HoldChange.TAKE)
    def hold_version(self, name: str, version: int = -1) -> int:
        """Hold a version for requests that belong together: until `release_version` it answers them, though it is
        unloaded or replaced meanwhile.

        Returns the number that such a request has as its `model_version`. Raises the lookup errors of `model`. A
        front end that goes away releases all that it holds.
        """
        ...

    @call(hold=HoldChange.RELEASE)
    def release_version(self, name: str, number: int) -> None:
        """End a hold, after the last of its requests was submitted. Does nothing if it has ended."""
        ...

    @call()
    def server_metadata(self) -> ServerMetadata: ...

    @call()
    def model_metadata(self, name: str, version: int = -1) -> ModelMetadata:
        """Raises the lookup errors of `model`."""
        ...

    @call()
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

    @call(blocks=True, change=ModelChange.LOAD)
    def load_directory(self, name: str, directory: str) -> None:
        """As `load_model`, for the model in a directory on the server's disk, outside all repositories."""
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
        """How far the server's start is."""
        ...

    @call(changes_state=True)
    def change_log(self, levels: LogLevels) -> None:
        """Change the log of all processes that serve."""
        ...

    @property
    def trace_gate(self) -> TraceGate:
        """Whether requests may be traced. The same object each time."""
        ...

    @call()
    def trace_settings(self, model: str = "") -> dict[str, list[str] | str]:
        """The trace settings in force for a model, or for all without settings of their own, as clients see them."""
        ...

    @call(changes_state=True)
    def change_trace(self, model: str, changes: Changes) -> None:
        """Change the trace settings of a model, "" for the server's. Raises InvalidRequest, and then changes none."""
        ...

    def trace_answered(self, number: int, ahead: Sequence[Event], behind: Sequence[Event]) -> None:
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
