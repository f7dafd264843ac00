"""The way by which models ask other models: that of every front end, without the front end.

Source: docs/spec/python-backend.md sections 4.3 and 4.4.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping

from core.config.model_spec import ModelSpec
from core.config.placement import Placement
from core.errors import BackendFailed, ServerError
from core.inference.deferred import Defer
from core.inference.pending_request import PendingRequest
from core.inference.request import InferenceRequest
from core.inference.response import InferenceResponse, OnResponse
from core.inference.streamed_request import StreamedRequest
from core.lifecycle.lifecycle import Lifecycle
from core.lifecycle.version import ModelVersion
from core.scheduling.rate_limiter.rate_limiter import RateLimiter


class EngineDoor:
    """Implements ModelDoor on the models of `lifecycle`, whose executions `rate_limiter` lets take turns."""

    def __init__(self, lifecycle: Lifecycle, rate_limiter: RateLimiter | None = None) -> None:
        self._lifecycle = lifecycle
        self._rate_limiter = rate_limiter
        self._models = lifecycle.models

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
        kind = _StreamedCall if decoupled else _ModelCall
        call = kind(request, on_response, defer=defer, flush=flush)
        try:
            version = self._models.find(request.model_name, request.model_version)
        except ServerError as error:
            call.refuse(_not_ready(request.model_name, error))
            return call
        if version.spec.decoupled and not decoupled:
            call.refuse(_decoupled(request.model_name))
        elif holder is not None and (resource := self._lacking(holder, version)):
            call.refuse(waits_for_itself(holder, request.model_name, resource))
        else:
            version.submit(call)
        return call

    def _lacking(self, holder: Placement, version: ModelVersion) -> str:
        """The resource for which `version`, or a step of it, waits as long as `holder` executes; "" for none."""
        if self._rate_limiter is None:
            return ""
        lacking = self._rate_limiter.lacking(holder, version.placements)
        for step in version.steps:
            lacking = lacking or self._lacking(holder, step)
        return lacking

    def spec(self, name: str, version: int = -1) -> ModelSpec:
        return self._models.find(name, version).spec

    def load(self, name: str, parameters: Mapping[str, str | bytes], *, asker: str) -> None:
        with self._lifecycle.load_slots.lent(asker, name):
            self._lifecycle.load(name, dict(parameters))

    def unload(self, name: str, unload_dependents: bool = False, *, asker: str) -> None:
        with self._lifecycle.load_slots.lent(asker, name):
            self._lifecycle.unload(name, unload_dependents)

    def is_ready(self, name: str, version: int = -1) -> bool:
        try:
            return self._models.find(name, version).answers_ready()
        except ServerError:
            return False


class _ModelCall(PendingRequest):
    """A request of a model. A refusal says that the call failed, and not the model that was called."""

    __slots__ = ()
    is_nested = True

    def refuse(self, error: ServerError) -> None:
        self.on_response(_refused(self.request, error))


class _StreamedCall(StreamedRequest):
    """A request of a model that takes many responses, each when it wants it."""

    __slots__ = ()
    is_nested = True

    def refuse(self, error: ServerError) -> None:
        self.on_response(_refused(self.request, error))


def _refused(request: InferenceRequest, error: ServerError) -> InferenceResponse:
    text = f"Model {request.model_name} - Error when running inference: {error.message}"
    return InferenceResponse.failed(request, BackendFailed(text, hint=error.hint, model=error.model))


def _not_ready(name: str, error: ServerError) -> ServerError:
    """Triton's texts for an unknown model have differed: this one has both."""
    return BackendFailed(
        f"Failed for execute the inference request. Model '{name}' is not ready. {error.message}",
        hint=error.hint,
        model=name,
    )


def waits_for_itself(holder: Placement, name: str, resource: str) -> ServerError:
    """The error of a request to model `name` for which the execution of `holder` would wait for ever."""
    # The whole cure is in the message, because a model gets no hint.
    return BackendFailed(
        f"model '{name}' needs the resource '{resource}' of the rate limiter, which instance '{holder.name}' holds "
        "until it has the answer, so it would never come. Ask without the resource: give one of the two models another "
        f"resource or none in instance_group.rate_limiter, or raise the limit with --rate-limit-resource={resource}:N",
        model=name,
    )


def _decoupled(name: str) -> ServerError:
    # The quote at the end is Triton's.
    return BackendFailed(
        f"Model {name} is using the decoupled. The current BLS request call doesn't support models using the decoupled "
        "transaction policy. Please use 'decoupled=True' argument to the 'exec' or 'async_exec' calls for decoupled "
        "models.'",
        model=name,
    )
