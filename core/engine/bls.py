"""Requests that models make while they execute (Triton's business logic scripting).

A model that asks must not wait for itself: for a resource that its instance holds, or for its own instance.
Source: docs/spec/python-backend.md section 4.4.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping
from functools import partial

from trident.core.config.placement import Placement
from trident.core.config.spec import ModelSpec
from trident.core.errors import BackendFailed, ModelCold, ServerError
from trident.core.inference.pending_request import Defer, PendingRequest, StreamedRequest
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import InferenceResponse, OnResponse, Origin
from trident.core.lifecycle.lifecycle import Lifecycle
from trident.core.lifecycle.version import ModelVersion
from trident.core.scheduling.rate_limiter import RateLimiter


class EngineBlsClient:
    """Implements BlsClient on the models of `lifecycle`, whose executions `rate_limiter` coordinates."""

    def __init__(self, lifecycle: Lifecycle, rate_limiter: RateLimiter | None = None) -> None:
        self._lifecycle = lifecycle
        self._rate_limiter = rate_limiter
        self._models = lifecycle.models
        self._waiting = WaitingInstances()

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
        wait = None if holder is None else InstanceWait(holder)
        if wait is not None:
            on_response = partial(self._waiting.answered, wait, on_response)
        call = kind(request, on_response, defer=defer, flush=flush)
        self._submit(call, decoupled, holder, wait)
        return call

    def _submit(
        self, call: PendingRequest, decoupled: bool, holder: Placement | None, wait: InstanceWait | None
    ) -> None:
        name = call.request.model_name
        try:
            version = self._models.find(name, call.request.model_version)
        except ModelCold as cold:
            call.defer = None
            cold.await_load(partial(self._submit, call, decoupled, holder, wait))
            return
        except ServerError as error:
            # Triton's texts for an unknown model have differed: this one has both.
            text = f"Failed for execute the inference request. Model '{name}' is not ready. {error.message}"
            call.refuse(BackendFailed(text, hint=error.hint, model=name))
            return
        # The whole cures are in the messages, because a model gets no hint.
        if version.spec.decoupled and not decoupled:
            text = (  # the quote at the end is Triton's
                f"Model {name} is using the decoupled. The current BLS request call doesn't support models using the "
                "decoupled transaction policy. Please use 'decoupled=True' argument to the 'exec' or 'async_exec' "
                "calls for decoupled models.'"
            )
        elif holder is not None and (resource := self._lacking(holder, version)):
            text = (
                f"model '{name}' needs the resource '{resource}' of the rate limiter, which instance '{holder.name}' "
                "holds until it has the answer, so it would never come. Ask without the resource: give one of the two "
                "models another resource or none in instance_group.rate_limiter, or raise the limit with "
                f"--rate-limit-resource={resource}:N"
            )
        elif wait is not None and not self._waiting.begin(wait, version):
            text = (
                f"model '{name}' would never answer: instance '{wait.instance.name}' waits for it, and each of its "
                "instances is that one or waits for it. Give a model on the way one instance more "
                "(instance_group.count), or ask after 'execute' has returned"
            )
        else:
            call.submit_to(version)
            return
        call.refuse(BackendFailed(text, model=name))

    def _lacking(self, holder: Placement, version: ModelVersion) -> str:
        """The resource for which `version`, or a step of it, waits as long as `holder` executes; "" for none."""
        if self._rate_limiter is None or not holder.limit.needs:
            return ""
        lacking = self._rate_limiter.lacking(holder, version.placements)
        for step in version.steps:
            lacking = lacking or self._lacking(holder, step)
        return lacking

    def spec(self, name: str, version: int = -1) -> ModelSpec:
        return self._models.find(name, version).spec

    def load(self, name: str, parameters: Mapping[str, str | bytes], *, asker: str) -> None:
        with self._lifecycle.loads.slots.released(asker, name):
            self._lifecycle.load(name, dict(parameters))

    def unload(self, name: str, unload_dependents: bool = False, *, asker: str) -> None:
        with self._lifecycle.loads.slots.released(asker, name):
            self._lifecycle.unload(name, unload_dependents)

    def is_ready(self, name: str, version: int = -1) -> bool:
        try:
            return self._models.find(name, version).answers_ready()
        except ServerError:
            return False


class InstanceWait:
    """An execution of `instance` waits for `version` to answer it."""

    __slots__ = ("instance", "version")

    def __init__(self, instance: Placement) -> None:
        self.instance = instance
        self.version: ModelVersion | None = None


class WaitingInstances:
    """The instances whose executions wait for other models. Any thread.

    A placement is known by its identity: versions of a model have instances of the same name.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._waits: dict[int, list[InstanceWait]] = {}

    def begin(self, wait: InstanceWait, version: ModelVersion) -> bool:
        """Note that an execution waits for `version`. False, and nothing is noted, if that would never answer."""
        with self._lock:
            # Most models that are asked have an instance that waits for nothing.
            if not self._can_answer(version, wait.instance, set()):
                return False
            wait.version = version
            self._waits.setdefault(id(wait.instance), []).append(wait)
        return True

    def answered(self, wait: InstanceWait, on_response: OnResponse, response: InferenceResponse) -> None:
        if response.final and wait.version is not None:
            with self._lock:
                waits = self._waits[id(wait.instance)]
                waits.remove(wait)
                if not waits:
                    del self._waits[id(wait.instance)]
        on_response(response)

    def _can_answer(self, version: ModelVersion, asker: Placement, seen: set[ModelVersion]) -> bool:
        """Return whether one instance of `version`, and of each step of it, will be free while `asker` waits."""
        if version in seen:
            return False
        seen = {*seen, version}
        if version.steps:
            return all(self._can_answer(step, asker, seen) for step in version.steps)
        placements = version.placements
        return not placements or any(
            placement is not asker
            and all(
                wait.version is None or self._can_answer(wait.version, asker, seen)
                for wait in self._waits.get(id(placement), ())
            )
            for placement in placements
        )


class _ModelCall(PendingRequest):
    """A request of a model. Refusals say that the call failed, and not the called model."""

    __slots__ = ()
    is_nested = True

    def refusal(self, error: ServerError, origin: Origin) -> InferenceResponse:
        return _refusal(self.request, error, origin)


class _StreamedCall(StreamedRequest):
    """A request of a model that takes many responses, each when it wants it."""

    __slots__ = ()
    is_nested = True

    def refusal(self, error: ServerError, origin: Origin) -> InferenceResponse:
        return _refusal(self.request, error, origin)


def _refusal(request: InferenceRequest, error: ServerError, origin: Origin) -> InferenceResponse:
    text = f"Model {request.model_name} - Error when running inference: {error.message}"
    return InferenceResponse.failed(request, BackendFailed(text, hint=error.hint, model=error.model), origin)
