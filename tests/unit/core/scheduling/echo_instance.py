"""A backend instance for tests, without a framework."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from trident.core.backends.backend import Execution
from trident.core.config.placement import DeviceKind, Placement
from trident.core.errors import InvalidRequest
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import OutputTensor
from trident.core.inference.streaming import ResponseSender


class EchoInstance:
    """A backend instance that returns each request's id, or fails as the id asks.

    `x…` makes the whole batch raise, `e…` is an error of that request alone.
    """

    placement = Placement("m_0_0", DeviceKind.CPU)

    def __init__(self, error: type[Exception] = RuntimeError, *, poison: bool = False) -> None:
        self.error = error
        self.poison = poison
        self.poisoned = False
        self.may_run_inline = True
        self.answers_later = False
        self.batches: list[str] = []

    def execute(
        self,
        requests: Sequence[InferenceRequest],
        batch_sizes: Sequence[int],
        senders: Sequence[ResponseSender] = (),
    ) -> Execution:
        self.batches.append("".join(request.id for request in requests))
        if any(request.id == "x" for request in requests):
            self.poisoned = self.poison
            raise self.error("no such gather")
        outputs: list[list[OutputTensor] | Exception] = [
            InvalidRequest("its own fault") if request.id == "e" else output(request.id) for request in requests
        ]
        return Execution(outputs, 20, 30)

    def close(self) -> None: ...


def output(text: str) -> list[OutputTensor]:
    return [OutputTensor("OUT", "BYTES", (1,), np.array([text], dtype=object))]
