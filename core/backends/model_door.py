"""The ModelDoor protocol: how a model asks other models of its server, and loads and unloads them, while it executes.

Triton calls this business logic scripting. Source: docs/spec/python-backend.md sections 4.3 and 4.4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Protocol

from core.config.model_spec import ModelSpec
from core.config.placement import Placement
from core.inference.deferred import Defer
from core.inference.pending_request import PendingRequest
from core.inference.request import InferenceRequest
from core.inference.response import OnResponse


class ModelDoor(Protocol):
    """Any thread may call any method, and none blocks unless its docstring says so."""

    def infer(
        self,
        request: InferenceRequest,
        on_response: OnResponse,
        *,
        decoupled: bool = False,
        holder: Placement | None = None,
        defer: Defer | None = None,
        flush: Callable[[], None] | None = None,
    ) -> PendingRequest:
        """Submit `request` to the model that it names, as a front end does. Never raises: an error is a response.

        `decoupled`: the caller takes any number of responses, and the result is a StreamedRequest; without it, a model
        that may send many is refused. `holder` is the instance that asks, if its execution waits for the responses: a
        model that would wait for that instance, or for resources that the execution holds, is refused. See
        PendingRequest for `on_response`, which may be called before this returns, `defer`, `flush` and `cancel`.
        """
        ...

    def spec(self, name: str, version: int = -1) -> ModelSpec:
        """The spec of the ready `version`, -1 for the latest. Raises ModelNotFound or ModelNotReady."""
        ...

    def load(self, name: str, parameters: Mapping[str, str | bytes], *, asker: str) -> None:
        """Load or reload a model; see `Engine.load_model`. Blocks until it serves. Raises a ServerError, also if
        the model `asker` is being loaded and this load would wait for that."""
        ...

    def unload(self, name: str, unload_dependents: bool = False, *, asker: str) -> None:
        """Begin to unload a model; requests in flight are still answered. Raises ModelNotReady unless the control mode
        is explicit, ModelLoadFailed as `load`.
        """
        ...

    def is_ready(self, name: str, version: int = -1) -> bool:
        """Whether `version` serves. False, too, for a model that does not exist."""
        ...
