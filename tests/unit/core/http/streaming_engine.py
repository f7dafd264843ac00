"""An engine whose model is decoupled, and answers each request with a script of responses."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace

import numpy as np

from tests.unit.fake_engine import FakeEngine
from trident.core.config.spec import ModelSpec
from trident.core.errors import ServerError
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import InferenceResponse, Origin, OutputTensor

Script = Callable[[InferenceRequest], Iterable[InferenceResponse]]


def said(text: str, *, final: bool = False) -> InferenceResponse:
    output = OutputTensor("OUT", "BYTES", (1,), np.array([text.encode()], object))
    return InferenceResponse("simple", 3, [output], final=final)


def failed(error: ServerError, *, final: bool = False, origin: Origin = Origin.FAILED) -> InferenceResponse:
    return InferenceResponse("simple", 3, [], error=error, origin=origin, final=final)


def end() -> InferenceResponse:
    """The end of the responses, which is no response itself."""
    return InferenceResponse("simple", 3, [], is_end=True)


class StreamingEngine(FakeEngine):
    """`script` gives the responses to a request; one that is not final at its end stays open until it is cancelled."""

    def __init__(self, script: Script) -> None:
        super().__init__(lambda request: None)
        self._script = script

    def model_spec(self, name: str, version: int = -1) -> ModelSpec:
        return replace(super().model_spec(name, version), decoupled=True)

    def submit(self, pending: PendingRequest) -> None:
        super().submit(pending)
        for response in self._script(pending.request):
            pending.on_response(response)
