"""The scheduler of an ensemble: its requests run as steps on other models, not on instances of its own.

A step is submitted as soon as its inputs are there. The first steps are submitted with the request; those after them by
the thread that has delivered the responses of a whole batch. So requests that were batched in one step come to the next
together, and if that is a short one, the same thread executes it (see `dynamic_batcher.py`).
Source: docs/spec/schedulers.md section 3.5.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import NamedTuple

from trident.core.backends.backend import BackendInstance
from trident.core.borders import expected, guarded
from trident.core.config.ensemble import EnsembleStep, may_match, needed_steps
from trident.core.config.spec import ModelSpec
from trident.core.errors import BackendFailed, InvalidRequest, RequestCancelled, ServerError
from trident.core.inference.pending_request import (
    CancelCause,
    Defer,
    Deferred,
    PendingRequest,
    StreamedRequest,
    deliver,
)
from trident.core.inference.request import (
    InferenceRequest,
    InferenceTimes,
    Inputs,
    InputTensor,
    PackedInputs,
    Parameter,
    asks_for_times,
)
from trident.core.inference.response import (
    NO_SEQUENCE,
    InferenceResponse,
    Origin,
    Outputs,
    OutputTensor,
    PackedOutputs,
    ReceivedOutput,
)
from trident.core.inference.tensors import BYTES, Array, LayoutEntry, PackedTensors, Shape, TensorLayout, layout_of
from trident.core.memo import Memo
from trident.core.observability.statistics import FailureReason
from trident.core.observability.switches import SWITCHES
from trident.core.scheduling.context import SchedulingContext, StepModel
from trident.core.scheduling.queue import COUNTING, InFlight, stopping

_log = logging.getLogger("trident.scheduling")

# A client may ask for any choice of outputs.
_MOST_PLANS = 64
_MOST_RENAMED = 64
REQUEST = -1
"""The request as a source of tensors, beside the indices of the steps."""

# The results of the steps so far, by index, and at the end those of the request: its index is -1.
Sources = list[Inputs | Outputs | None]
# Requests that wait until their step has fewer in flight, or may be submitted.
Ready = tuple["EnsembleRequest", "PlannedStep", "Flow"]


class EnsembleScheduler:
    """Implements Scheduler. The models of the steps must accept requests until this scheduler is closed.

    The `decoupled` of its spec says whether a model of a step is. With `preserves_order` the responses of a decoupled
    step are passed on in their order, to each step after it and to the client.
    """

    def __init__(self, context: SchedulingContext) -> None:
        spec, max_in_flight = context.spec, context.max_in_flight
        self.preserves_order = context.preserves_order
        self._make_request = DecoupledRequest if spec.decoupled else EnsembleRequest
        self.spec = spec
        self.subject = f"a request for ensemble '{spec.name}'"
        self._statistics = context.statistics
        self.clock = context.clock
        self._plans = EnsemblePlans(spec, context.steps)
        # None without a limit.
        self.limit: InFlightLimit | None = None
        if max_in_flight:
            _log.info("Ensemble model '%s' configured with max_inflight_requests: %d", spec.name, max_in_flight)
            self.limit = InFlightLimit(max_in_flight, len(context.steps))
        # Steps that wait for the thread that delivers a batch; the flushes of callers whose requests were answered.
        self._ready: deque[Ready] = deque()
        self._flushes: deque[Callable[[], None]] = deque()
        # The threads that submit ready steps.
        self._proceeding: set[int] = set()
        self._lock = threading.Lock()
        # --- guarded by the lock
        self._stopped = False
        self._accepts_nested = False
        self._requests: set[EnsembleRequest] = set()
        self._ends = InFlight(self._lock)

    @property
    def queued(self) -> int:
        """Always 0: its requests wait in the queues of the steps' models."""
        return 0

    @property
    def in_flight(self) -> int:
        return len(self._requests)

    def start(self) -> None:
        """There is nothing to start: the models of the steps execute."""

    def add(self, instance: BackendInstance) -> None:
        raise ValueError("an ensemble has no instances")

    def remove(self, instance: BackendInstance) -> Callable[[], None]:
        raise ValueError("an ensemble has no instances")

    def forget(self, instance: BackendInstance) -> None:
        raise ValueError("an ensemble has no instances")

    def submit(self, pending: PendingRequest) -> None:
        pending.enqueue_ns = now_ns = self.clock()
        if not pending.start_ns:
            pending.start_ns = now_ns
        request = self._make_request(self, pending, self._plans.of(pending.request.outputs))
        with self._lock:
            if self._stopped and not (self._accepts_nested and pending.is_nested):
                raise stopping(pending, self.spec.name)
            self._requests.add(request)
        try:
            request.begin()
        except Exception:
            self.end(request)
            raise
        if self._ready or self._flushes:  # a step was answered while it was submitted
            self.proceed()

    def stop(self, *, accept_nested: bool = False) -> None:
        with self._lock:
            self._stopped = True
            self._accepts_nested = accept_nested

    def drain(self, timeout_s: float | None = None) -> bool:
        with self._lock:
            return self._ends.wait_until(lambda: not self._requests, timeout_s)

    def close(self, timeout_s: float | None = None, because: str = "") -> bool:
        self.stop()
        return self.drain(timeout_s)

    # --- for the requests

    def admit(self, request: EnsembleRequest, step: PlannedStep, flow: Flow, defer: Defer | None) -> None:
        """Run a step now if it is below its limit, otherwise queue it."""
        if self.limit is None or self.limit.enter((request, step, flow)):
            request.run(step, flow, defer)

    def put(self, request: EnsembleRequest, step: PlannedStep, flow: Flow) -> None:
        """Run a step at the next `proceed` of this thread if it is below its limit, otherwise queue it."""
        ready = request, step, flow
        if self.limit is None or self.limit.enter(ready):
            self._ready.append(ready)

    def leave(self, step: PlannedStep) -> None:
        ready = self.limit.leave(step) if self.limit is not None else None
        if ready is not None:
            self._ready.append(ready)

    def withdraw(self, request: EnsembleRequest) -> list[Flow]:
        """Drop the waiting steps of `request`. Return the flow of each."""
        return self.limit.withdraw(request) if self.limit is not None else []

    def proceed(self) -> None:
        """Submit ready steps and execute short ones until none remains; then flush for the callers.

        The thread that delivered responses of steps calls it afterwards; it may do so during a call of its own.
        """
        ready = self._ready
        if not ready and not self._flushes:
            return
        thread = threading.get_ident()
        if thread in self._proceeding:
            return
        self._proceeding.add(thread)
        try:
            deferred = Deferred()
            while ready:
                while ready:
                    try:
                        request, step, flow = ready.popleft()
                    except IndexError:  # another thread has taken the last one
                        break
                    request.run(step, flow, deferred.add)
                deferred.run()
        finally:
            self._proceeding.discard(thread)
        if self._flushes:
            self._flush()

    def _flush(self) -> None:
        flushes: dict[Callable[[], None], None] = {}
        while self._flushes:
            try:
                flushes[self._flushes.popleft()] = None
            except IndexError:  # as above
                break
        for flush in flushes:
            guarded(flush, "sending the responses of an ensemble")

    def response(self, request: EnsembleRequest, flow: Flow) -> InferenceResponse:
        """A response with the outputs of a flow. That of an ensemble that is not decoupled is the last."""
        spec, plan = self.spec, request.plan
        outputs = plan.response.outputs(flow.sources)
        if len(outputs) < len(plan.names):
            left_out = set(plan.names) - {output.name for output in outputs}
            _log.debug("Composing models did not output tensor %s", ", ".join(sorted(left_out)))
        return InferenceResponse(
            spec.name,
            spec.version,
            outputs,
            id=request.pending.request.id,
            parameters=flow.place(request.pending.request).parameters(),
            final=not spec.decoupled,
        )

    def count(self, request: EnsembleRequest, response: InferenceResponse, first_ns: int = 0) -> None:
        """Count a request that succeeded, and add the times of its steps to its final response.

        `first_ns` is when its first response was made, 0 if that is the final one.
        """
        pending = request.pending
        queue_ns = input_ns = infer_ns = output_ns = 0
        for queue, gather, infer, split, *_ in request.times:
            queue_ns += queue
            input_ns += gather
            infer_ns += infer
            output_ns += split
        guarded(
            lambda: self._statistics.record_composed(pending, first_ns, self.clock(), input_ns, infer_ns, output_ns),
            COUNTING,
        )
        if SWITCHES.times or pending.wants_times:
            response.times = InferenceTimes(queue_ns, input_ns, infer_ns, output_ns, pending.batch_size or 1)
            if SWITCHES.timing and asks_for_times(pending.request):
                response.parameters = {**(response.parameters or {}), **response.times.parameters()}

    def failure(self, request: EnsembleRequest, error: ServerError) -> InferenceResponse:
        pending = request.pending
        origin = pending.origin_of(error)
        reason = FailureReason.CANCELED if origin is Origin.CANCELLED else FailureReason.OTHER
        guarded(lambda: self._statistics.record_failure(pending, reason, self.clock(), error.message), COUNTING)
        if origin is not Origin.CANCELLED and request.failed_step is not None:
            guarded(self._statistics.record_step_failure, COUNTING)
            if request.failed_step is not Origin.FAILED:
                origin = Origin.REJECTED
        message = f"in ensemble '{self.spec.name}', {error.message}"
        try:
            named = type(error)(message, hint=error.hint, model=error.model)
        except TypeError:  # a class with other arguments
            named = ServerError(message, hint=error.hint, model=error.model)
        named.code = error.code
        return InferenceResponse.failed(pending.request, named, origin)

    def flush_later(self, pending: PendingRequest) -> None:
        """Have `proceed` flush for a caller who was given a response."""
        if pending.flush is not None:
            self._flushes.append(pending.flush)

    def end(self, request: EnsembleRequest) -> None:
        self.flush_later(request.pending)
        with self._lock:
            self._requests.discard(request)
            self._ends.end(0)


class EnsembleRequest:
    """A request for an ensemble, which has one response, when all steps have ended. Any thread.

    `pending` is the request as the client sent it. The first error ends the request, after the steps that run have been
    answered: what they use must stay there. `times` are those of the steps' executions. `failed_step` is the origin of
    that error in its step, None for an error that no step has given.
    """

    __slots__ = (
        "_error",
        "_flow",
        "_lock",
        "_running",
        "_scheduler",
        "_unfinished",
        "failed_step",
        "pending",
        "plan",
        "proceed",
        "times",
    )

    def __init__(self, scheduler: EnsembleScheduler, pending: PendingRequest, plan: EnsemblePlan) -> None:
        self.pending = pending
        self.proceed: Callable[[], None] = scheduler.proceed
        self.times: list[InferenceTimes] = []
        self.failed_step: Origin | None = None
        self._scheduler = scheduler
        self.plan = plan
        self._flow = Flow(plan)
        self._running: dict[StepRequest, None] = {}
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
        """Submit the request of `step`, which counts as in flight. It may be answered before this returns."""
        pending = self.pending
        if self._drops(flow):
            self._scheduler.leave(step)
            self._give_up([flow])
            return
        part = StepRequest(self, step, flow, pending.request, defer)
        self._running[part] = None
        try:
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
            part.request = request
        except Exception as error:
            part.fail(error)
        else:
            part.submit_to(step.model)
        if pending.cancelled:  # perhaps after `_cancel` looked at what runs
            part.cancel(pending.cancelled)

    def _drops(self, flow: Flow) -> bool:
        return self._error is not None or self.pending.cancelled is not None

    def take(self, part: StepRequest, response: InferenceResponse) -> None:
        """A response to the request of a step. Any thread; several at once."""
        ready: list[int] = []
        with self._lock:
            error = response.error
            if error is None:
                try:
                    self._advance(part, response, ready)
                except Exception as exc:
                    error = expected(exc, self._scheduler.subject)
            if error is not None and self._error is None:
                self._error = error
                if response.error is not None:
                    self.failed_step = response.origin
            if ready and (self._error is not None or self.pending.cancelled):
                ready.clear()
            self._unfinished += len(ready)
            if response.final:
                self._running.pop(part, None)
                self._unfinished -= 1
            is_over = not self._unfinished
        scheduler = self._scheduler
        if response.final and scheduler.limit is not None:
            scheduler.leave(part.step)
        for index in ready:
            scheduler.put(self, self.plan.steps[index], part.flow)
        if is_over:
            self._finish()

    def _advance(self, part: StepRequest, response: InferenceResponse, ready: list[int]) -> None:
        """Put the outputs of a response into the flow, and what they make ready into `ready`.

        Under the lock. Raises BackendFailed, and what the tensors of the response raise.
        """
        if response.final:
            self._note_times(part, response)
            if part.responses and not response.outputs:
                return  # it only says that the one before it was the last
        part.responses += 1
        if part.responses > 1:
            raise BackendFailed(f"expected a single response, got {part.responses}", model=part.step.name)
        part.flow.fill(part, response, ready)

    def _note_times(self, part: StepRequest, response: InferenceResponse) -> None:
        times = response.times
        if times is None:
            # A step that is answered later: only the whole was measured.
            duration_ns = self._scheduler.clock() - part.start_ns
            times = InferenceTimes(0, 0, duration_ns, 0, part.batch_size or 1)
        self.times.append(times)

    def _cancel(self, pending: PendingRequest) -> None:
        for part in self._running.copy():
            part.cancel(pending.cancelled or CancelCause.CLIENT)
        self._give_up(self._scheduler.withdraw(self))
        self.proceed()  # flushes, if that was the last of it

    def _give_up(self, flows: Sequence[Flow]) -> None:
        """Note that a step of each of `flows` was ready and will not run."""
        finished: list[StepRequest] = []
        with self._lock:
            self._unfinished -= len(flows)
            for flow in flows:
                _settle(flow, 1, finished)
            is_over = len(flows) > 0 and not self._unfinished
        if is_over:
            self._finish()
        for part in finished:
            part.take()

    def _finish(self) -> None:
        """Answer the client, because no step is left. Called once."""
        pending, scheduler, flow = self.pending, self._scheduler, self._flow
        pending.on_cancel = None
        error = self._error
        if error is None and flow.unwritten:
            error = self._unfinished_error()
        if error is None:
            try:
                response = scheduler.response(self, flow)
                scheduler.count(self, response)
            except Exception as exc:
                error = expected(exc, scheduler.subject)
        if error is not None:
            response = scheduler.failure(self, error)
        deliver(pending, response)
        scheduler.end(self)

    def _unfinished_error(self) -> ServerError:
        request = self.pending.request
        if self.pending.cancelled:
            return RequestCancelled("", model=request.model_name)
        return InvalidRequest(
            f"{request.log_prefix}unexpected deadlock, at least one output is not set while no more ensemble steps can "
            "be made"
        )


class DecoupledRequest(EnsembleRequest):
    """Sends a response when the outputs of a flow are there. The last one is final if it is made when no step is left;
    otherwise an empty one follows.

    A response of a decoupled step counts as taken when the steps after it are done and the client has taken what came
    of it. So a slow client or a slow step holds the decoupled model back.

    In order, each step is submitted for the flows of a decoupled step one after the other, and so are the responses
    made; a flow whose step is ready earlier is in `_early`. The next request of a decoupled step is submitted after the
    final response to the one before: it could fill its window with responses that wait for those, and never end. An
    error ends what comes after it in the order, and what comes before it goes on. Without order, it ends all.
    """

    __slots__ = (
        "_early",
        "_failed_at",
        "_first_ns",
        "_flows",
        "_is_sending",
        "_next",
        "_sent",
        "_unsent",
        "_untaken",
    )

    def __init__(self, scheduler: EnsembleScheduler, pending: PendingRequest, plan: EnsemblePlan) -> None:
        super().__init__(scheduler, pending, plan)
        # --- guarded by the lock: the number of responses that were made and when the first one was, those that wait to
        # be sent, and the flows of those that the client has not taken
        self._sent = 0
        self._first_ns = 0
        self._is_sending = False
        self._unsent: deque[tuple[InferenceResponse, Flow | None]] = deque()
        self._untaken: deque[Flow] = deque()
        # The number of flows that each step has begun, and the position of the error.
        self._flows = [0] * len(plan.steps)
        self._failed_at: tuple[int, ...] = ()
        # By step, and at the end for the response: the number of the flow for which it is next, None without order; the
        # flows that are ready before.
        self._next = [0] * (len(plan.steps) + 1) if scheduler.preserves_order else None
        self._early: dict[tuple[int, int], Flow] = {}

    def begin(self) -> None:
        if isinstance(self.pending, StreamedRequest):
            self.pending.on_take = self._note_taken
        super().begin()

    def run(self, step: PlannedStep, flow: Flow, defer: Defer | None) -> None:
        super().run(step, flow, defer)
        if not step.is_decoupled:
            with self._lock:
                following = self._pass(step.index)
            if following is not None:
                self._scheduler.put(self, step, following)

    def take(self, part: StepRequest, response: InferenceResponse) -> None:
        step = part.step
        ready: list[int] = []
        flow: Flow | None = None
        following: Flow | None = None
        finished: list[StepRequest] = []
        with self._lock:
            error = response.error
            if error is None:
                try:
                    flow = self._advanced(part, response, ready)
                except Exception as exc:
                    error = expected(exc, self._scheduler.subject)
            if error is not None:
                # The first error in the order is the answer, or else in time.
                position: tuple[int, ...] = ()
                if self._next is not None:
                    position = part.flow.position
                    if part.step.is_decoupled:
                        position += (self._flows[part.step.index],)
                if self._error is None or position < self._failed_at:
                    self._error, self._failed_at = error, position
                    self.failed_step = None if response.error is None else response.origin
                    self._drop_early(finished)
                if not response.final:
                    finished.append(part)  # nothing comes of it that the client would take
            if flow is not None:
                if self._drops(flow):
                    ready.clear()
                flow.unfinished += len(ready)
                self._unfinished += len(ready)
                if self._next is not None:
                    ready = [index for index in ready if self._is_next(index, flow)]
                _settle(flow, 0, finished)
            if response.final:
                self._running.pop(part, None)
                self._unfinished -= 1
                _settle(part.flow, 1, finished)
                if step.is_decoupled:
                    following = self._pass(step.index)
            if not self._unfinished:
                self._conclude()
        if response.final:
            self._scheduler.leave(step)
        if flow is not None:
            for index in ready:
                self._scheduler.put(self, self.plan.steps[index], flow)
        if following is not None:
            self._scheduler.put(self, step, following)
        self._send()
        for each in finished:
            each.take()

    def _advanced(self, part: StepRequest, response: InferenceResponse, ready: list[int]) -> Flow | None:
        """The flow with the outputs of a response; None for one that only says that it was the last.

        Under the lock. Raises BackendFailed, and what the tensors of the response raise.
        """
        step, flow = part.step, part.flow
        if response.final:
            self._note_times(part, response)
            if not response.outputs and (part.responses or step.is_decoupled):
                return None
        part.responses += 1
        if step.is_decoupled:
            flow = Flow(self.plan, part, self._flows[step.index])
            self._flows[step.index] += 1
        elif part.responses > 1:
            raise BackendFailed(f"expected a single response, got {part.responses}", model=step.name)
        flow.fill(part, response, ready)
        if not flow.unwritten and not self._drops(flow):
            self._write(flow)
        return flow

    def _drops(self, flow: Flow) -> bool:
        if self._error is not None and flow.position >= self._failed_at:
            return True
        return self.pending.cancelled is not None

    def _drop_early(self, finished: list[StepRequest]) -> None:
        """Drop flows that wait for their order and are no longer run. Under the lock."""
        for (index, number), flow in list(self._early.items()):
            if self._drops(flow):
                del self._early[index, number]
                if index != REQUEST:
                    self._unfinished -= 1
                _settle(flow, 1, finished)

    def _is_next(self, index: int, flow: Flow) -> bool:
        """Return whether a flow is the next for the step `index`, or for its response; if not, it is noted. Under the
        lock."""
        if self._next is None or self._next[index] == flow.number:
            return True
        self._early[index, flow.number] = flow
        return False

    def _pass(self, index: int) -> Flow | None:
        """Go on to the next flow of the step `index`, or to the next response. Returns it if it is ready.

        Under the lock.
        """
        if self._next is None:
            return None
        self._next[index] += 1
        return self._early.pop((index, self._next[index]), None)

    def _write(self, flow: Flow) -> None:
        """Make the response of a flow whose outputs are all there, and those that waited for it. Under the lock."""
        flow.unwritten = -1
        flow.unfinished += 1
        if not self._is_next(REQUEST, flow):
            return
        following: Flow | None = flow
        while following is not None:
            response = self._scheduler.response(self, following)
            if not self._sent:
                self._first_ns = self._scheduler.clock()
            self._sent += 1
            self._unsent.append((response, following))
            following = self._pass(REQUEST)

    def _cancel(self, pending: PendingRequest) -> None:
        super()._cancel(pending)
        finished: list[StepRequest] = []
        with self._lock:
            was_over = not self._unfinished
            self._drop_early(finished)
            if not (was_over or self._unfinished):
                self._conclude()
        self._send()
        self.proceed()
        for part in finished:
            part.take()

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
        if error is None and not self._flow.unwritten:  # nothing but inputs was asked for
            try:
                self._write(self._flow)
            except Exception as exc:
                error = expected(exc, scheduler.subject)
        if error is not None:
            self._unsent.append((scheduler.failure(self, error), None))
            return
        if self._unsent:
            last, _ = self._unsent[-1]
            last.final = True
        else:
            name, version = scheduler.spec.name, scheduler.spec.version
            last = InferenceResponse(name, version, [], id=pending.request.id, is_end=True)
            self._unsent.append((last, None))
        scheduler.count(self, last, self._first_ns)

    def _send(self) -> None:
        """Send waiting responses in order, on one thread at a time."""
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
        self._origin.take(self, response)


class Flow:
    """Results of the steps of a request so far. Not thread-safe: the lock of the request guards it.

    A request has one flow; each response of a decoupled step, `origin`, begins another. `number` counts those of a step
    from 0, and `position` is where a flow is among all of the request.

    `sources` is what was given. `parts` are the places in a sequence that came with it, by source; None as long as
    there are none. `unwritten` is the number of steps that outputs wait for. `unfinished` are its steps that are not
    done, and its response as long as the client has not taken it; counted only for decoupled ensembles.
    """

    __slots__ = ("_missing", "_plan", "number", "origin", "parts", "position", "sources", "unfinished", "unwritten")

    def __init__(self, plan: EnsemblePlan, origin: StepRequest | None = None, number: int = 0) -> None:
        self._plan = plan
        self.number = number
        self.position: tuple[int, ...] = () if origin is None else (*origin.flow.position, number)
        self._missing = list(plan.missing)
        self.origin = origin
        self.sources: Sources = [None] * (len(plan.steps) + 1)
        self.parts: dict[int, SequencePart] | None = None
        self.unwritten = len(plan.writers)
        self.unfinished = 0

    def fill(self, part: StepRequest, response: InferenceResponse, ready: list[int]) -> None:
        """Add the outputs of a response to `part`, and to `ready` the steps that waited only for them.

        Raises InvalidRequest for a wrong place in a sequence.
        """
        plan, missing, index = self._plan, self._missing, part.step.index
        place = sequence_part(response.parameters, part.request) if response.parameters else None
        if place is None and self.parts is not None and any(source in self.parts for source in part.step.sources):
            place = sequence_of(part.request)  # a step before it has changed it
        if place is not None:
            self.parts = {**(self.parts or {}), index: place}
        self.sources[index] = response.outputs
        if index in plan.writers:
            self.unwritten -= 1
        for reader in plan.readers[index]:
            missing[reader] -= 1
            if not missing[reader]:
                ready.append(reader)

    def place(self, request: InferenceRequest) -> SequencePart:
        """The position in a sequence that came with an output, or that of the original `request`."""
        if self.parts is not None:
            for index in sorted(self._plan.writers.intersection(self.parts)):
                return self.parts[index]
        return sequence_of(request)


class InFlightLimit:
    """At most `limit` requests of each step may be in flight; what exceeds them waits in its order. Any thread.

    Nothing blocks, unlike in Triton: a decoupled step before a full one is held back by the window of its responses,
    because a response counts as taken only when the steps after it are done.
    Source: docs/spec/schedulers.md section 3.5, "max_inflight_requests".
    """

    def __init__(self, limit: int, steps: int) -> None:
        self._lock = threading.Lock()
        self._free = [limit] * steps
        self._waiting: list[deque[Ready]] = [deque() for _ in range(steps)]

    def enter(self, ready: Ready) -> bool:
        """Count `ready` as in flight; False if it must wait until `leave` returns it."""
        index = ready[1].index
        with self._lock:
            if not self._free[index]:
                self._waiting[index].append(ready)
                return False
            self._free[index] -= 1
        return True

    def leave(self, step: PlannedStep) -> Ready | None:
        """Note that a request of a step is done. Return the waiting request that is now in flight instead, or None."""
        with self._lock:
            waiting = self._waiting[step.index]
            if waiting:
                return waiting.popleft()
            self._free[step.index] += 1
        return None

    def withdraw(self, request: EnsembleRequest) -> list[Flow]:
        removed: list[Flow] = []
        with self._lock:
            for index, waiting in enumerate(self._waiting):
                removed += [flow for owner, _, flow in waiting if owner is request]
                self._waiting[index] = deque(ready for ready in waiting if ready[0] is not request)
        return removed


@dataclass(frozen=True, slots=True)
class EnsemblePlan:
    """The steps to run for certain outputs of the ensemble. Shared by requests, never changed.

    `first` are the indices of the steps that need only the request; `readers[i]` are those that wait for step i, and
    `missing` is the number of steps that each waits for. `response` takes the outputs, of which `names` are the names,
    from `writers`. `passes_runs`: the inputs of a request may be passed on as they arrived.
    """

    steps: tuple[PlannedStep, ...]
    first: tuple[int, ...]
    readers: tuple[tuple[int, ...], ...]
    missing: tuple[int, ...]
    response: TensorMap
    names: tuple[str, ...]
    writers: frozenset[int]
    passes_runs: bool


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step and its model. `inputs` takes the tensors for it from `sources`, the steps before it or the request.

    `outputs` are those to request, empty if they are all that the model has.
    """

    index: int
    model: StepModel
    name: str
    version: int
    inputs: TensorMap
    sources: tuple[int, ...]
    outputs: tuple[str, ...]
    is_decoupled: bool


class EnsemblePlans:
    """The plans of one ensemble version, by requested outputs. Any thread; two may make the same plan."""

    def __init__(self, spec: ModelSpec, steps: Sequence[tuple[EnsembleStep, StepModel]]) -> None:
        self._spec = spec
        self._graph = tuple(step for step, _ in steps)
        # Where each tensor comes from: the source, its name there, and whether it has a batch dimension.
        self._origins = {name: (REQUEST, name, spec.max_batch_size > 0) for name in spec.inputs}
        for index, (step, model) in enumerate(steps):
            has_batch = model.spec.max_batch_size > 0
            self._origins |= {tensor: (index, name, has_batch) for name, tensor in step.outputs}
        self._steps = tuple(self._planned(index, step, model) for index, (step, model) in enumerate(steps))
        self._made: Memo[frozenset[str], EnsemblePlan] = Memo(_MOST_PLANS)
        self._whole = self._make(spec.outputs)

    def of(self, outputs: tuple[str, ...]) -> EnsemblePlan:
        if not outputs:
            return self._whole
        key = frozenset(outputs)
        plan = self._made.get(key)
        if plan is None:
            plan = self._made[key] = self._make(outputs)
        return plan

    def _make(self, outputs: Collection[str]) -> EnsemblePlan:
        needed = needed_steps(self._graph, outputs)
        waits = {index: set(self._steps[index].sources) - {REQUEST} for index in needed}
        taken: list[MappedTensor] = []
        for name, output in self._spec.outputs.items():
            if name in outputs:
                dims = output.dims if output.model_dims is None else output.model_dims
                taken.append(self._taken(name, name, self._spec.max_batch_size > 0, dims))
        inputs = self._spec.inputs.values()
        return EnsemblePlan(
            steps=self._steps,
            first=tuple(index for index in needed if not waits[index]),
            readers=tuple(tuple(index for index in needed if step.index in waits[index]) for step in self._steps),
            missing=tuple(len(waits.get(step.index, ())) for step in self._steps),
            response=TensorMap(taken),
            names=tuple(each.name for each in taken),
            writers=frozenset(each.source for each in taken) - {REQUEST},
            # The arrays of other requests are made when they are checked.
            passes_runs=all(entry.datatype is not BYTES and entry.model_dims is None for entry in inputs),
        )

    def _planned(self, index: int, step: EnsembleStep, model: StepModel) -> PlannedStep:
        spec = model.spec
        results = tuple(name for name, _ in step.outputs)
        return PlannedStep(
            index=index,
            model=model,
            name=spec.name,
            version=step.version,
            inputs=TensorMap(
                [
                    self._taken(name, tensor, spec.max_batch_size > 0, spec.inputs[name].dims)
                    for name, tensor in step.inputs
                ]
            ),
            sources=tuple({self._origins[tensor][0]: None for tensor in step.sources}),
            outputs=() if set(results) == spec.outputs.keys() else results,
            is_decoupled=spec.decoupled,
        )

    def _taken(self, name: str, tensor: str, takes_batch: bool, dims: Shape) -> MappedTensor:
        source, original, has_batch = self._origins[tensor]
        change = None if has_batch == takes_batch else ShapeChange(takes_batch, dims)
        return MappedTensor(name, source, original, change)


class MappedTensor(NamedTuple):
    """A tensor for a step or for the client: `name` there, `original` where `source` gives it."""

    name: str
    source: int
    original: str
    change: ShapeChange | None


class TensorMap:
    """Takes the tensors `taken` from their sources, for one step or for the client. Any thread.

    The outputs of a small step are one run of bytes. If a step or the client takes such a run, or a part of it, that is
    passed on as it is, under other names; nothing is cut out of it. The renamed layouts are remembered.
    """

    __slots__ = ("_renamed", "_source", "_taken")

    def __init__(self, taken: Sequence[MappedTensor]) -> None:
        self._taken = tuple(taken)
        # The only source, if it may be passed on as a run, and what comes of it by its layout.
        sources = {each.source for each in taken}
        is_plain = len(sources) == 1 and all(each.change is None for each in taken)
        self._source = sources.pop() if is_plain else None
        self._renamed: Memo[TensorLayout, tuple[TensorLayout, int]] = Memo(_MOST_RENAMED)

    def inputs(self, sources: Sources) -> Inputs:
        """The tensors as inputs of the step, without omitted ones."""
        run = self._run(sources)
        if run is not None:
            return PackedInputs(*run)
        return [InputTensor(name, datatype, shape, content) for name, datatype, shape, content in self._parts(sources)]

    def outputs(self, sources: Sources) -> Outputs:
        """The tensors as outputs of the ensemble, without omitted ones."""
        run = self._run(sources)
        if run is not None:
            return PackedOutputs(*run)
        outputs: list[OutputTensor] = []
        for name, datatype, shape, content in self._parts(sources):
            if isinstance(content, memoryview):
                outputs.append(ReceivedOutput(name, datatype, shape, content))
            else:
                outputs.append(OutputTensor(name, datatype, shape, content))
        return outputs

    def _run(self, sources: Sources) -> tuple[TensorLayout, memoryview] | None:
        """The tensors as a part of the run of bytes that their only source is; None if it is not that."""
        if self._source is None:
            return None
        packed = sources[self._source]
        if not isinstance(packed, PackedTensors):
            return None
        layout = packed.layout
        renamed = self._renamed.get(layout)
        if renamed is None:
            renamed = self._renamed[layout] = self._rename(layout)
        made, start = renamed
        if start < 0:
            return None
        return made, packed.content if made.size == layout.size else packed.content[start : start + made.size]

    def _rename(self, layout: TensorLayout) -> tuple[TensorLayout, int]:
        """The layout of the tensors and its first byte in a run of `layout`; -1 if they are not neighbours there."""
        entries = {entry[0]: entry for entry in layout.entries}
        found: list[tuple[LayoutEntry, str]] = []
        for name, _, original, _ in self._taken:
            if original not in entries:
                return _NO_RUN
            found.append((entries[original], name))
        found.sort(key=lambda each: each[0][3])
        if any(entry[4] != after[3] for (entry, _), (after, _) in pairwise(found)):
            return _NO_RUN
        made = layout_of([(name, datatype, shape, end - start) for (_, datatype, shape, start, end), name in found])
        return made, found[0][0][3]

    def _parts(self, sources: Sources) -> list[tuple[str, str, Shape, memoryview | Array]]:
        """Name, datatype, shape and content of each tensor, without omitted ones."""
        named: dict[int, dict[str, InputTensor | OutputTensor]] = {}
        parts: list[tuple[str, str, Shape, memoryview | Array]] = []
        for name, source, original, change in self._taken:
            if source not in named:
                given = sources[source]
                named[source] = {tensor.name: tensor for tensor in given} if given is not None else {}
            tensor = named[source].get(original)
            if tensor is None:
                continue
            if isinstance(tensor, ReceivedOutput):  # it may never need an array
                parts.append((name, tensor.datatype, _changed(tensor.shape, change), tensor.content()))
            else:
                array = tensor.array
                shape = _changed(array.shape, change)
                parts.append((name, tensor.datatype, shape, array.reshape(shape)))
        return parts


_NO_RUN: tuple[TensorLayout, int] = (TensorLayout(()), -1)


def _changed(shape: Shape, change: ShapeChange | None) -> Shape:
    return shape if change is None else change.apply(shape)


class ShapeChange(NamedTuple):
    """A tensor gains or loses a first dimension of 1, unless it already fits `dims`, those of its reader.

    Source: docs/spec/schedulers.md section 3.5, "Batch adaptation".
    """

    gains: bool
    dims: Shape

    def apply(self, shape: Shape) -> Shape:
        fits = may_match(self.dims, shape)
        if self.gains:
            return (1, *shape) if fits else shape
        return shape[1:] if not fits and shape[:1] == (1,) else shape


_NAMES = ("sequence_id", "sequence_start", "sequence_end")


class SequencePart(NamedTuple):
    """Position of a request or response in its sequence. Each response of an ensemble names it, as in Triton."""

    correlation_id: int | str
    start: bool
    end: bool

    def parameters(self) -> dict[str, Parameter]:
        """The position as parameters of a response. Large numbers become signed ones of the same bits, as in Triton."""
        id = self.correlation_id
        if not (id or self.start or self.end):
            return NO_SEQUENCE
        if type(id) is int and id >= 1 << 63:
            id -= 1 << 64
        return {"sequence_id": id, "sequence_start": self.start, "sequence_end": self.end}


def sequence_of(request: InferenceRequest) -> SequencePart:
    return SequencePart(request.correlation_id, request.sequence_start, request.sequence_end)


def sequence_part(parameters: Mapping[str, Parameter], request: InferenceRequest) -> SequencePart | None:
    """Return the position in the parameters of a response to `request`, or None. Raises InvalidRequest."""
    if not any(name in parameters for name in _NAMES):
        return None
    correlation_id = parameters.get("sequence_id", request.correlation_id)
    if type(correlation_id) not in (int, str):
        raise InvalidRequest(
            "expected parameter 'sequence_id' to be TRITONSERVER_PARAMETER_INT or TRITONSERVER_PARAMETER_STRING"
        )
    flags = []
    for name in _NAMES[1:]:
        flag = parameters.get(name, False)
        if type(flag) is not bool:
            raise InvalidRequest(f"expect parameter '{name}' to be TRITONSERVER_PARAMETER_BOOL")
        flags.append(flag)
    return SequencePart(correlation_id, *flags)  # type: ignore[arg-type]
