"""Runs golden requests on an ensemble before it serves."""

from __future__ import annotations

import queue
from collections.abc import Sequence

from core.backends.base import Execution
from core.config.placement import DeviceKind, Placement
from core.inference.pending_request import PendingRequest
from core.inference.request import InferenceRequest
from core.inference.response import InferenceResponse, Outputs
from core.inference.response_sender import ResponseSender
from core.scheduling.protocol import Scheduler


class EnsembleProbe:
    """A BackendInstance in front of the scheduler of an ensemble, for the golden check. The steps count its requests.

    A request of a decoupled ensemble gets its first response.
    """

    poisoned = False
    may_run_inline = False
    answers_later = False

    def __init__(self, name: str, scheduler: Scheduler) -> None:
        self.placement = Placement(name, DeviceKind.CPU)
        self._scheduler = scheduler

    def execute(
        self,
        requests: Sequence[InferenceRequest],
        batch_sizes: Sequence[int],
        senders: Sequence[ResponseSender] = (),
    ) -> Execution:
        outcomes: list[Outputs | Exception] = []
        for request, size in zip(requests, batch_sizes, strict=True):
            responses: queue.SimpleQueue[InferenceResponse] = queue.SimpleQueue()
            pending = PendingRequest(request, responses.put)
            pending.batch_size = size
            self._scheduler.submit(pending)
            first = last = responses.get()
            while not last.final:
                last = responses.get()
            error = first.error or last.error
            outcomes.append(error if error is not None else first.outputs)
        return Execution(outcomes, 0, 0)

    def close(self) -> None:
        """It holds nothing."""
