"""One request for an ensemble: runs the steps that are ready, until none is left.

    EnsembleRequest       has one response, when all steps have ended
    └── DecoupledRequest  has any number of them (decoupled_request.py)

Source: docs/spec/schedulers.md section 3.5.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import TYPE_CHECKING

from core.errors import BackendFailed, InvalidRequest, RequestCancelled, ServerError
from core.inference.cancel_cause import CancelCause
from core.inference.deferred import Defer
from core.inference.pending_request import PendingRequest
from core.inference.request import InferenceRequest
from core.inference.response import InferenceResponse
from core.inference.times import InferenceTimes
from core.scheduling.delivery import deliver
from core.scheduling.ensemble.flow import Flow
from core.scheduling.ensemble.plan import REQUEST, Plan, PlannedStep
from core.scheduling.ensemble.sequence_part import place_of, sequence_part
from core.scheduling.ensemble.step_request import StepRequest

if TYPE_CHECKING:
    from core.scheduling.ensemble.scheduler import EnsembleScheduler


class EnsembleRequest:
    """`pending` is the request as the client sent it. Any thread.

    The first error ends the request, after the steps that run have been answered: what they use must stay there.
    `times` are those of the steps' executions.
    """

    __slots__ = (
        "_error",
        "_flow",
        "_lock",
        "_running",
        "_scheduler",
        "_unfinished",
        "pending",
        "plan",
        "proceed",
        "times",
    )

    def __init__(self, scheduler: EnsembleScheduler, pending: PendingRequest, plan: Plan) -> None:
        self.pending = pending
        self.proceed: Callable[[], None] = scheduler.proceed
        self.times: list[InferenceTimes] = []
        self._scheduler = scheduler
        self.plan = plan
        self._flow = Flow(plan)
        self._running: set[StepRequest] = set()
        self._lock = threading.Lock()
        # --- guarded by the lock: the number of steps that are ready or run, and the first error
        self._unfinished = 0
        self._error: ServerError | None = None

    def begin(self) -> None:
        """Run the steps for which the request has the tensors. On the thread that submits."""
        pending, plan, flow = self.pending, self.plan, self._flow
        pending.on_cancel = self._cancel
        inputs = pending.request.inputs
        flow.sources[REQUEST] = inputs if plan.passes_runs else list(inputs)
        self._unfinished = flow.unfinished = len(plan.first)
        for index in plan.first:
            self._scheduler.admit(self, plan.steps[index], flow, pending.defer)
        if not plan.first:  # nothing but inputs was asked for
            self._finish()

    def run(self, step: PlannedStep, flow: Flow, defer: Defer | None) -> None:
        """Submit the request of `step`, which has a place. It may be answered before this returns."""
        pending = self.pending
        if self._error is not None or pending.cancelled:
            self._scheduler.leave(step)
            self._give_up(1)
            return
        part = StepRequest(self, step, flow, self._step_request(step, flow), defer)
        self._running.add(part)
        step.model.submit(part)
        if pending.cancelled:  # perhaps after `_cancel` looked at what runs
            part.cancel(pending.cancelled)

    def _step_request(self, step: PlannedStep, flow: Flow) -> InferenceRequest:
        origin = self.pending.request
        request = origin.with_inputs(step.inputs.inputs(flow.sources), model_version=step.version, id=origin.id)
        request.model_name = step.name
        request.outputs = step.outputs
        if origin.trace is not None:
            request.trace = origin.trace.child()
        if flow.parts is not None:
            for source in step.sources:
                if source in flow.parts:
                    request.correlation_id, request.sequence_start, request.sequence_end = flow.parts[source]
        return request

    def take(self, part: StepRequest, response: InferenceResponse) -> None:
        """A response to the request of a step. Any thread; several at once."""
        ready: list[int] = []
        with self._lock:
            error = response.error
            if error is None:
                try:
                    self._advance(part, response, ready)
                except ServerError as exc:
                    error = exc.with_traceback(None)
            if error is not None and self._error is None:
                self._error = error
            if ready and (self._error is not None or self.pending.cancelled):
                ready.clear()
            self._unfinished += len(ready)
            if response.final:
                self._running.discard(part)
                self._unfinished -= 1
            is_over = not self._unfinished
        scheduler = self._scheduler
        if response.final and scheduler.places is not None:
            scheduler.leave(part.step)
        for index in ready:
            scheduler.put(self, self.plan.steps[index], part.flow)
        if is_over:
            self._finish()

    def _advance(self, part: StepRequest, response: InferenceResponse, ready: list[int]) -> None:
        """Put the outputs of a response into the flow, and what they make ready into `ready`.

        Under the lock. Raises a ServerError.
        """
        if response.final:
            self._note_times(part, response)
            if part.responses and not response.outputs:
                return  # it only says that the one before it was the last
        part.responses += 1
        if part.responses > 1:
            raise BackendFailed(f"expected a single response, got {part.responses}", model=part.step.name)
        fill(part.flow, part, response, ready)

    def _note_times(self, part: StepRequest, response: InferenceResponse) -> None:
        times = response.times
        if times is None:
            # A step that is answered later: nobody has measured more than the whole.
            duration_ns = self._scheduler.clock() - part.start_ns
            times = InferenceTimes(0, 0, duration_ns, 0, part.batch_size or 1)
        self.times.append(times)

    def _cancel(self, pending: PendingRequest) -> None:
        """Cancel the steps that run, and give up those that wait for a place."""
        for part in self._running.copy():
            part.cancel(pending.cancelled or CancelCause.CLIENT)
        self._give_up(self._scheduler.withdraw(self))

    def _give_up(self, count: int) -> None:
        """Note that `count` steps that were ready will not run."""
        with self._lock:
            self._unfinished -= count
            is_over = count > 0 and not self._unfinished
        if is_over:
            self._finish()

    def _finish(self) -> None:
        """Answer the client, because no step is left. Called once."""
        pending, scheduler, flow = self.pending, self._scheduler, self._flow
        pending.on_cancel = None
        error = self._error
        if error is None and flow.unwritten:
            error = self._unfinished_error()
        if error is None:
            response = scheduler.response(self, flow)
            scheduler.count(self, response)
        else:
            response = scheduler.failure(self, error)
        deliver(pending, response)
        scheduler.end(self)

    def _unfinished_error(self) -> ServerError:
        """Why there are no outputs though no step has failed."""
        request = self.pending.request
        if self.pending.cancelled:
            return RequestCancelled("", model=request.model_name)
        return InvalidRequest(
            f"{request.log_prefix}unexpected deadlock, at least one output is not set while no more ensemble steps can "
            "be made"
        )


def fill(flow: Flow, part: StepRequest, response: InferenceResponse, ready: list[int]) -> None:
    """Put the outputs of a response to `part` into `flow`. Raises InvalidRequest for a wrong place in a sequence."""
    index = part.step.index
    place = sequence_part(response.parameters, part.request) if response.parameters else None
    if place is None and flow.parts is not None and any(source in flow.parts for source in part.step.sources):
        place = place_of(part.request)  # a step before it has changed it
    if place is not None:
        flow.parts = {**(flow.parts or {}), index: place}
    flow.add(index, response.outputs, ready)
