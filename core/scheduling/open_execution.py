"""Executing one batch on an instance that answers later."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from core.backends.base import BackendInstance, Execution
from core.inference.close_reason import CloseReason
from core.inference.pending_request import PendingRequest
from core.inference.response import Outputs
from core.inference.response_sender import AGAIN, LATER
from core.observability.model_statistics import ModelStatistics
from core.scheduling.delivery import Respond
from core.scheduling.dropped_senders import DroppedSenders
from core.scheduling.execution import Clock, checked
from core.scheduling.open_request import OpenRequest
from core.scheduling.open_requests import OpenRequests
from core.scheduling.request_sender import RequestSender


class Claimed(NamedTuple):
    """A request that its execution answers itself, for the last time, with an outcome."""

    request: OpenRequest
    outcome: Outputs | Exception


class OpenExecution:
    """Belongs to one backend instance, and runs on its thread."""

    def __init__(
        self,
        backend: BackendInstance,
        requests: OpenRequests,
        dropped: DroppedSenders,
        statistics: ModelStatistics,
        clock: Clock,
    ) -> None:
        self._backend = backend
        self._requests = requests
        self._dropped = dropped
        self._statistics = statistics
        self._clock = clock
        self.respond_unrun: Respond = requests.respond_unrun

    def run(self, batch: Sequence[PendingRequest], reason: CloseReason) -> tuple[Execution | None, list[Claimed]]:
        """Execute `batch`, which was closed for `reason`, and claim the requests that it answers itself: all that are
        open if it raises.

        Counts the batch and its successful requests; the caller counts the failed ones, and answers. Such a batch is
        never executed again: a part of it may have been answered. Requests that the model gives back are queued again.
        """
        start_ns = self._clock()
        opened = self._requests.open(batch, start_ns)
        senders = [RequestSender(request, self._dropped) for request in opened]
        batch_sizes = [pending.batch_size or 1 for pending in batch]
        try:
            execution = checked(
                self._backend.execute([pending.request for pending in batch], batch_sizes, senders), len(batch)
            )
        except Exception as error:
            return None, [Claimed(request, error) for request in opened if not request.is_closed and request.claim()]
        execution.start_ns = start_ns
        execution.end_ns = end_ns = self._clock()
        execution.items = items = execution.items or sum(batch_sizes)
        input_end_ns = execution.input_end_ns
        claimed: list[Claimed] = []
        again: list[OpenRequest] = []
        for request, sender, outcome in zip(opened, senders, execution.outputs, strict=True):
            if outcome is LATER:
                request.input_end_ns = input_end_ns
            elif outcome is AGAIN:
                sender.end()
                again.append(request)
            elif request.claim():
                claimed.append(Claimed(request, outcome))
        # Until here the senders had to live: a request whose sender is gone is failed.
        del senders, sender
        successful = [each.request.pending for each in claimed if not isinstance(each.outcome, Exception)]
        output_start_ns = execution.output_start_ns
        self._statistics.record_batch(successful, items, start_ns, input_end_ns, output_start_ns, end_ns, reason)
        for request in again:
            self._requests.give_back(request)
        return execution, claimed
