"""The scheduler of an ensemble: its requests run as steps on other models, not on instances of its own.

A step is submitted as soon as its inputs are there. The first steps are submitted with the request; those after them by
the thread that has delivered the responses of a whole batch. So requests that were batched in one step come to the next
together, and if that is a short one, the same thread executes it (see `inline_execution.py`).
Source: docs/spec/schedulers.md section 3.5.
"""

from __future__ import annotations

import logging
import threading
import time
from collections import deque
from collections.abc import Callable, Sequence

from core.backends.base import BackendInstance
from core.config.ensemble.graph import EnsembleStep
from core.config.model_spec import ModelSpec
from core.errors import RequestCancelled, ServerError
from core.inference.deferred import Defer, Deferred
from core.inference.pending_request import PendingRequest
from core.inference.response import InferenceResponse
from core.inference.times import InferenceTimes, asks_for_times
from core.observability.model_statistics import ModelStatistics
from core.observability.statistics import FailureReason
from core.observability.switches import SWITCHES
from core.scheduling.ensemble.decoupled_request import DecoupledRequest
from core.scheduling.ensemble.flow import Flow
from core.scheduling.ensemble.places import Places, Ready
from core.scheduling.ensemble.plan import PlannedStep, Plans, StepModel
from core.scheduling.ensemble.request import EnsembleRequest
from core.scheduling.execution import Clock
from core.scheduling.rejection import stopping

_log = logging.getLogger("trident.scheduling")


class EnsembleScheduler:
    """Implements Scheduler. `models[i]` runs step i; it must accept requests until this scheduler is closed.

    `spec` is that of the ensemble; its `decoupled` says whether a model of a step is. `max_in_flight` limits the
    requests of each step, 0 for no limit.
    """

    def __init__(
        self,
        spec: ModelSpec,
        steps: Sequence[EnsembleStep],
        models: Sequence[StepModel],
        statistics: ModelStatistics,
        *,
        max_in_flight: int = 0,
        clock: Clock = time.monotonic_ns,
    ) -> None:
        self._make_request = DecoupledRequest if spec.decoupled else EnsembleRequest
        self._spec = spec
        self._statistics = statistics
        self.clock = clock
        self._plans = Plans(spec, steps, models)
        # None without a limit.
        self.places: Places | None = None
        if max_in_flight:
            _log.info("Ensemble model '%s' configured with max_inflight_requests: %d", spec.name, max_in_flight)
            self.places = Places(max_in_flight, len(steps))
        # What has a place and waits for the thread that delivers a batch; its callers whose requests were answered.
        self._ready: deque[Ready] = deque()
        self._flushes: deque[Callable[[], None]] = deque()
        # The threads that submit what is ready.
        self._proceeding: set[int] = set()
        self._lock = threading.Lock()
        self._drained = threading.Condition(self._lock)
        # --- guarded by the lock
        self._stopped = False
        self._accepts_nested = False
        self._requests: set[EnsembleRequest] = set()
        self._drainers = 0

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

    def remove(self, instance: BackendInstance) -> None:
        raise ValueError("an ensemble has no instances")

    def forget(self, instance: BackendInstance) -> None:
        raise ValueError("an ensemble has no instances")

    def submit(self, pending: PendingRequest) -> None:
        """Run the first steps of a validated request. Raises ServerStopping after `stop`."""
        pending.enqueue_ns = now_ns = self.clock()
        if not pending.start_ns:
            pending.start_ns = now_ns
        request = self._make_request(self, pending, self._plans.of(pending.request.outputs))
        with self._lock:
            if self._stopped and not (self._accepts_nested and pending.is_nested):
                raise stopping(pending, self._spec.name)
            self._requests.add(request)
        request.begin()
        if self._ready or self._flushes:  # a step was answered while it was submitted
            self.proceed()

    def stop(self, *, accept_nested: bool = False) -> None:
        with self._lock:
            self._stopped = True
            self._accepts_nested = accept_nested

    def drain(self, timeout_s: float | None = None) -> bool:
        with self._lock:
            self._drainers += 1
            try:
                return self._drained.wait_for(lambda: not self._requests, timeout_s)
            finally:
                self._drainers -= 1

    def close(self, timeout_s: float | None = None, because: str = "") -> bool:
        """Stop, and block until the requests are answered, at most `timeout_s` seconds. Returns whether they are."""
        self.stop()
        return self.drain(timeout_s)

    # --- for the requests

    def admit(self, request: EnsembleRequest, step: PlannedStep, flow: Flow, defer: Defer | None) -> None:
        """Run a step now if there is a place for it, otherwise in its turn."""
        if self.places is None or self.places.enter((request, step, flow)):
            request.run(step, flow, defer)

    def put(self, request: EnsembleRequest, step: PlannedStep, flow: Flow) -> None:
        """Run a step when `proceed` is called next on this thread, if there is a place for it."""
        ready = request, step, flow
        if self.places is None or self.places.enter(ready):
            self._ready.append(ready)

    def leave(self, step: PlannedStep) -> None:
        """Note that a step's request is done, where there is a limit."""
        ready = self.places.leave(step) if self.places is not None else None
        if ready is not None:
            self._ready.append(ready)

    def withdraw(self, request: EnsembleRequest) -> int:
        """Give up the steps of `request` that wait for a place. Returns how many."""
        return self.places.withdraw(request) if self.places is not None else 0

    def proceed(self) -> None:
        """Submit what is ready and execute what is short, until nothing is left; then flush for the callers.

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
                try:
                    request, step, flow = ready.popleft()
                except IndexError:  # another thread has taken the last one
                    break
                request.run(step, flow, deferred.add)
                if not ready:
                    deferred.run()
        finally:
            self._proceeding.discard(thread)
        if self._flushes:
            self._flush()

    def _flush(self) -> None:
        flushes: set[Callable[[], None]] = set()
        while self._flushes:
            try:
                flushes.add(self._flushes.popleft())
            except IndexError:  # as above
                break
        for flush in flushes:
            flush()

    def response(self, request: EnsembleRequest, flow: Flow) -> InferenceResponse:
        """A response with the outputs of a flow. That of an ensemble that is not decoupled is the last."""
        spec, plan = self._spec, request.plan
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

    def empty_response(self, request: EnsembleRequest) -> InferenceResponse:
        """The last response of a decoupled ensemble, which only says that it is the last."""
        return InferenceResponse(self._spec.name, self._spec.version, [], id=request.pending.request.id)

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
        self._statistics.record_composed(pending, first_ns, self.clock(), input_ns, infer_ns, output_ns)
        if SWITCHES.times or pending.wants_times:
            response.times = InferenceTimes(queue_ns, input_ns, infer_ns, output_ns, pending.batch_size or 1)
            if SWITCHES.timing and asks_for_times(pending.request):
                response.parameters = {**(response.parameters or {}), **response.times.parameters()}

    def failure(self, request: EnsembleRequest, error: ServerError) -> InferenceResponse:
        """The final response with the first error of a step; counts the request."""
        pending = request.pending
        reason = FailureReason.CANCELED if isinstance(error, RequestCancelled) else FailureReason.OTHER
        self._statistics.record_failure(pending, reason, self.clock(), error.message)
        named = type(error)(f"in ensemble '{self._spec.name}', {error.message}", hint=error.hint, model=error.model)
        return InferenceResponse.failed(pending.request, named)

    def flush_later(self, pending: PendingRequest) -> None:
        """Have `proceed` flush for a caller who was given a response."""
        if pending.flush is not None:
            self._flushes.append(pending.flush)

    def end(self, request: EnsembleRequest) -> None:
        """Forget a request whose final response was delivered."""
        self.flush_later(request.pending)
        with self._lock:
            self._requests.discard(request)
            if self._drainers and not self._requests:
                self._drained.notify_all()
