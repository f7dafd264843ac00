"""The request of one step, on its way through the step's model."""

from __future__ import annotations

import logging
from typing import TYPE_CHECKING

from core.inference.deferred import Defer
from core.inference.request import InferenceRequest
from core.inference.response import InferenceResponse
from core.inference.streamed_request import StreamedRequest
from core.scheduling.ensemble.flow import Flow
from core.scheduling.ensemble.plan import PlannedStep

if TYPE_CHECKING:
    from core.scheduling.ensemble.request import EnsembleRequest

_log = logging.getLogger("trident.scheduling")


class StepRequest(StreamedRequest):
    """`flow` has the inputs of `step` and, unless that is decoupled, gets its outputs. `responses` counts those."""

    __slots__ = ("_origin", "flow", "responses", "step")

    is_nested = True

    def __init__(
        self, origin: EnsembleRequest, step: PlannedStep, flow: Flow, request: InferenceRequest, defer: Defer | None
    ) -> None:
        super().__init__(request, self._answer, defer=defer, flush=origin.proceed)
        self.wants_times = True
        self._origin = origin
        self.step = step
        self.flow = flow
        self.responses = 0

    def _answer(self, response: InferenceResponse) -> None:
        """Take a response of the step's model. After the final one, nothing is taken any more."""
        if response.final:
            # Also ends a cycle of references, which would keep the tensors until the garbage collector runs.
            self.on_response = _drop
        self._origin.take(self, response)


def _drop(response: InferenceResponse) -> None:
    _log.error("model '%s' answered a request of an ensemble again after its last response", response.model_name)
