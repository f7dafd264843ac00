"""A request for an ensemble with a decoupled step: each response of that step runs the steps after it.

Source: docs/spec/schedulers.md section 3.5, "Decoupled".
"""

from __future__ import annotations

from collections import deque
from typing import TYPE_CHECKING

from core.errors import BackendFailed, RequestCancelled, ServerError
from core.inference.pending_request import PendingRequest
from core.inference.response import InferenceResponse
from core.inference.streamed_request import StreamedRequest
from core.scheduling.delivery import deliver
from core.scheduling.ensemble.flow import Flow
from core.scheduling.ensemble.plan import Plan
from core.scheduling.ensemble.request import EnsembleRequest, fill
from core.scheduling.ensemble.step_request import StepRequest

if TYPE_CHECKING:
    from core.scheduling.ensemble.scheduler import EnsembleScheduler


class DecoupledRequest(EnsembleRequest):
    """Sends a response when the outputs of a flow are there. The last one is final if it is made when no step is left;
    otherwise an empty one follows.

    A response of a decoupled step counts as taken when the steps after it are done and the client has taken what came
    of it. So a slow client or a slow step holds the decoupled model back.
    """

    __slots__ = ("_first_ns", "_is_sending", "_sent", "_unsent", "_untaken")

    def __init__(self, scheduler: EnsembleScheduler, pending: PendingRequest, plan: Plan) -> None:
        super().__init__(scheduler, pending, plan)
        # --- guarded by the lock: the number of responses that were made and when the first one was, those that wait to
        # be sent, and the flows of those that the client has not taken
        self._sent = 0
        self._first_ns = 0
        self._is_sending = False
        self._unsent: deque[tuple[InferenceResponse, Flow | None]] = deque()
        self._untaken: deque[Flow] = deque()

    def begin(self) -> None:
        if isinstance(self.pending, StreamedRequest):
            self.pending.on_take = self._note_taken
        super().begin()

    def take(self, part: StepRequest, response: InferenceResponse) -> None:
        ready: list[int] = []
        flow: Flow | None = None
        finished: list[StepRequest] = []
        with self._lock:
            error = response.error
            if error is None:
                try:
                    flow = self._advanced(part, response, ready)
                except ServerError as exc:
                    error = exc.with_traceback(None)
            if error is not None and self._error is None:
                self._error = error
            if self._error is not None or self.pending.cancelled:
                ready.clear()
            if flow is not None:
                flow.unfinished += len(ready)
                _settle(flow, 0, finished)
            self._unfinished += len(ready)
            if response.final:
                self._running.discard(part)
                self._unfinished -= 1
                _settle(part.flow, 1, finished)
            if not self._unfinished:
                self._conclude()
        if response.final:
            self._scheduler.leave(part.step)
        if flow is not None:
            for index in ready:
                self._scheduler.put(self, self.plan.steps[index], flow)
        self._send()
        for each in finished:
            each.take()

    def _advanced(self, part: StepRequest, response: InferenceResponse, ready: list[int]) -> Flow | None:
        """The flow with the outputs of a response; None for one that only says that it was the last.

        Under the lock. Raises a ServerError.
        """
        step, flow = part.step, part.flow
        if response.final:
            self._note_times(part, response)
            if not response.outputs and (part.responses or step.is_decoupled):
                return None
        part.responses += 1
        if step.is_decoupled:
            flow = Flow(self.plan, part)
        elif part.responses > 1:
            raise BackendFailed(f"expected a single response, got {part.responses}", model=step.name)
        fill(flow, part, response, ready)
        if not flow.unwritten:
            self._write(flow)
        return flow

    def _write(self, flow: Flow) -> None:
        """Make the response of a flow whose outputs are all there. Under the lock."""
        flow.unwritten = -1
        flow.unfinished += 1
        if not self._sent:
            self._first_ns = self._scheduler.clock()
        self._sent += 1
        self._unsent.append((self._scheduler.response(self, flow), flow))

    def _finish(self) -> None:
        with self._lock:
            self._conclude()
        self._send()

    def _conclude(self) -> None:
        """Make the final response, because no step is left. Under the lock; called once."""
        pending, scheduler = self.pending, self._scheduler
        pending.on_cancel = None
        error = self._error
        if error is None and pending.cancelled and not self._sent:
            error = RequestCancelled("", model=pending.request.model_name)
        if error is not None:
            self._unsent.append((scheduler.failure(self, error), None))
            return
        if not self._flow.unwritten:  # nothing but inputs was asked for
            self._write(self._flow)
        if self._unsent:
            last, _ = self._unsent[-1]
            last.final = True
        else:
            last = scheduler.empty_response(self)
            self._unsent.append((last, None))
        scheduler.count(self, last, self._first_ns)

    def _send(self) -> None:
        """Send what waits, in order and on one thread at a time."""
        pending = self.pending
        while True:
            with self._lock:
                if self._is_sending or not self._unsent:
                    return
                self._is_sending = True
                response, flow = self._unsent.popleft()
                if flow is not None and not response.final and isinstance(pending, StreamedRequest):
                    self._untaken.append(flow)
            if response.final and isinstance(pending, StreamedRequest):
                pending.on_take = None
            deliver(pending, response)
            with self._lock:
                self._is_sending = False
            if flow is not None and not isinstance(pending, StreamedRequest):
                self._release(flow)
            if response.final:
                self._scheduler.end(self)
            else:
                self._scheduler.flush_later(pending)

    def _note_taken(self, pending: StreamedRequest, count: int) -> None:
        """The client has taken its oldest `count` responses: what they came from may send more."""
        with self._lock:
            taken = [self._untaken.popleft() for _ in range(min(count, len(self._untaken)))]
        for flow in taken:
            self._release(flow)

    def _release(self, flow: Flow) -> None:
        finished: list[StepRequest] = []
        with self._lock:
            _settle(flow, 1, finished)
        for part in finished:
            part.take()


def _settle(flow: Flow, count: int, finished: list[StepRequest]) -> None:
    """Note that `count` more of a flow is finished, and add to `finished` what began it if that was the last.

    Under the lock of its request.
    """
    flow.unfinished -= count
    if flow.origin is not None and not flow.unfinished:
        finished.append(flow.origin)
        flow.origin = None
