"""The one door for every front end: what it may ask of the engine, wherever that lives.

A front end knows a model by name and version, hands over requests and gets responses through a callback. Everything
that crosses is plain data, so that the engine may as well live in another process: `core.remote` reads the annotations
here to know what a call sends and what comes back. This module brings no backend in.
Source: docs/architecture.md section 5.
"""

from __future__ import annotations

from typing import Any, Protocol

from core.config.model_spec import ModelSpec
from core.inference.pending_request import PendingRequest
from core.lifecycle.serving_phase import ServingPhase
from core.observability.metrics import MetricsSnapshot


class Engine(Protocol):
    """What a front end may ask. Unless a method says otherwise it may be called on any thread and does not block.

    `handover` is how many requests, of those that come at one moment, a front end submits one right after the other.
    """

    handover: int

    def submit(self, pending: PendingRequest) -> None:
        """Run a request. Never raises: an error is a response. `on_response` may be called before this returns."""
        ...

    def cancel(self, pending: PendingRequest) -> None:
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

    def repository_index(self, ready_only: bool) -> list[dict[str, str]]:
        """Every version that is known and, unless `ready_only`, every model directory there is. Blocks on storage."""
        ...

    def load_model(self, name: str, parameters: dict[str, str | bytes]) -> None:
        """Blocks until the model serves as the repository, and `parameters`, say: `config` as text, `file:PATH` as
        bytes. Raises a ServerError, also where the control mode does not allow it; what served before then serves on.
        """
        ...

    def load_directory(self, name: str, directory: str) -> None:
        """As `load_model`, for the model in a directory of the server's disk, outside of all repositories."""
        ...

    def unload_model(self, name: str, unload_dependents: bool, *, wait: bool = False) -> None:
        """Begin to unload; what is in flight is still answered. With `wait` blocks until all memory is free.

        `unload_dependents` is for ensembles.
        """
        ...

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
