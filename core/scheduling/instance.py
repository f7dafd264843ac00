"""A model instance: its thread, the execution of batches on its backend instance, and the answers to their requests.

Source: docs/spec/schedulers.md section 3, docs/architecture.md section 7.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Final

from trident.core.backends.backend import BackendInstance, Execution
from trident.core.borders import guarded, text_of
from trident.core.errors import BackendFailed, ServerError
from trident.core.inference.pending_request import AGAIN, LATER, PendingRequest
from trident.core.inference.request import (
    IDLE as NO_WAIT,
)
from trident.core.inference.request import CloseReason, InferenceTimes, asks_for_times
from trident.core.inference.response import InferenceResponse, Outputs
from trident.core.observability.switches import SWITCHES
from trident.core.scheduling.batch_forming import Wait, Work
from trident.core.scheduling.context import SchedulingContext
from trident.core.scheduling.open_requests import OpenRequest, OpenRequests
from trident.core.scheduling.queue import flush_callers, reason_of, reject
from trident.core.scheduling.rate_limiter import Needs

_log = logging.getLogger("trident.scheduling")

# Called with the requests of an execution, its begin and its end, and whether it was on the submitting thread.
Observer = Callable[[Sequence[PendingRequest], int, int, bool], None]


def ignore(batch: Sequence[PendingRequest], begin_ns: int, end_ns: int, inline: bool) -> None:
    pass


class ThreadState(Enum):
    """`next` are the states that may follow."""

    next: tuple[ThreadState, ...]

    RUNNING = "executes, or looks for work"
    IDLE = "is idle until it is woken"
    DELAYING = "waits until it is woken or the queue delay is over"
    WAITING = "waits for the resources of an execution"
    WOKEN = "has its token and will look for work"
    BORROWED = "waits while the submitting thread executes on its instance"
    ENDED = "has ended, or has its token and will end"


# In Python 3.11 a member costs a function call when it is looked up on its class.
RUNNING: Final = ThreadState.RUNNING
IDLE: Final = ThreadState.IDLE
DELAYING: Final = ThreadState.DELAYING
WAITING: Final = ThreadState.WAITING
WOKEN: Final = ThreadState.WOKEN
BORROWED: Final = ThreadState.BORROWED
ENDED: Final = ThreadState.ENDED

RUNNING.next = (IDLE, DELAYING, WAITING, ENDED)
IDLE.next = (WOKEN, BORROWED, RUNNING, ENDED)
DELAYING.next = (WOKEN, BORROWED, IDLE, RUNNING, ENDED)
WAITING.next = (RUNNING,)
WOKEN.next = (RUNNING,)
BORROWED.next = (IDLE, WOKEN, ENDED)
ENDED.next = ()


class ModelInstance:
    """One instance of a model version. It executes on its own thread, or on a submitting one while its own is idle.

    The scheduler's lock guards `state`, `is_removed`, `call`, `taken` and `wait`. `token` is a binary semaphore: the
    thread waits by acquiring it, and whoever moves it to WOKEN or ENDED releases it. `is_removed` tells the thread to
    end when it next looks for work, and `call` is what it calls once after that. `taken` is the number of requests that
    it has taken and not finished, without those of `open_requests`, which are done when their final response was
    delivered. `wait` is valid while DELAYING.
    """

    def __init__(
        self,
        context: SchedulingContext,
        backend: BackendInstance,
        *,
        executing: BackendInstance | None = None,
        open_requests: OpenRequests | None = None,
        observe: Observer = ignore,
    ) -> None:
        """`executing` executes instead of `backend`. `open_requests` are those of an instance that answers later.

        `observe` is called after each execution.
        """
        self.backend = backend
        self.executing = executing or backend
        self.name = backend.placement.name
        self.reservation = context.reservations.of(backend)
        self.open_requests = open_requests
        self.token = threading.Lock()
        self.token.acquire()
        self.state: ThreadState = RUNNING
        self.is_removed = False
        self.call: Callable[[], None] | None = None
        self.taken = 0
        self.wait = Wait(0, 0, None, 0)
        self._own_thread: threading.Thread | None = None
        self._context = context
        self._spec = context.spec
        self._statistics = context.statistics
        self._clock = context.clock
        self._respond = context.respond
        self._respond_unexecuted = context.refuse if open_requests is None else open_requests.respond_unexecuted
        self._on_poisoned = context.on_poisoned
        self._observe = observe

    # --- its thread

    def start(self, serve: Callable[[ModelInstance], None]) -> None:
        self._own_thread = threading.Thread(target=serve, args=(self,), name=f"trident-{self.name}", daemon=True)
        self._own_thread.start()

    def join(self, timeout_s: float | None) -> bool:
        """Wait for the thread to end, unless it is the calling one or was never started. Returns whether it ended."""
        thread = self._own_thread
        if thread is None:
            return True
        if not self.is_current:
            thread.join(timeout_s)
        return not thread.is_alive()

    @property
    def is_current(self) -> bool:
        return self._own_thread is threading.current_thread()

    def move(self, state: ThreadState) -> None:
        """Raises RuntimeError for a move that the states do not allow, which is a bug."""
        if state not in self.state.next:
            raise RuntimeError(f"instance thread '{self.name}' cannot go from {self.state} to {state}")
        self.state = state

    @property
    def needs(self) -> Needs:
        return {} if self.reservation is None else self.reservation.needs

    # --- executions

    def perform(self, work: Work, inline: bool = False) -> None:
        """Answer the rejected requests, then execute the batch. `inline`: not on the instance's own thread.

        The caller holds the reservation, if there is one, which ends with the execution: requests that are answered
        later hold nothing. Never raises: each request has been answered or, if it is answered later, opened.
        """
        for rejection in work.rejections:
            reject(rejection, self._context, self._respond_unexecuted)
        batch = work.batch
        if not batch:
            return
        begin_ns = end_ns = 0
        try:
            begin_ns = self._clock()
            self._statistics.begin_execution(self.name, batch, begin_ns)
        except Exception:
            _log.exception("noting an execution of model '%s' failed unexpectedly", self._spec.name)
        self.execute(batch, work.reason)
        if self.reservation is not None:
            self.reservation.end()
        try:
            self._statistics.end_execution(self.name)
            end_ns = self._clock()
        except Exception:
            _log.exception("noting an execution of model '%s' failed unexpectedly", self._spec.name)
        # Not part of the execution: the next steps of an ensemble may be executed meanwhile.
        flush_callers(batch)
        if begin_ns and end_ns:
            try:
                self._observe(batch, begin_ns, end_ns, inline)
            except Exception:
                _log.exception("observing an execution of model '%s' failed unexpectedly", self._spec.name)

    def execute(self, requests: Sequence[PendingRequest], reason: CloseReason = NO_WAIT) -> None:
        """Execute a batch, which was closed for `reason`, and answer each request that is not answered later.

        Never raises. A batch that fails as a whole is executed again in halves, down to the requests that fail alone.
        If the backend instance is poisoned afterwards, so that it can execute nothing again, `on_poisoned` is called,
        once.
        """
        if self.open_requests is None:
            self._execute(requests, reason)
        else:
            self._execute_open(requests, reason, self.open_requests)
        if self._on_poisoned is not None and self._is_poisoned:
            on_poisoned, self._on_poisoned = self._on_poisoned, None
            guarded(partial(on_poisoned, self.executing), "ending a poisoned instance")

    @property
    def _is_poisoned(self) -> bool:
        try:
            return self.executing.poisoned
        except Exception:
            _log.exception("asking whether instance '%s' is poisoned failed unexpectedly", self.name)
            return False

    def _execute(self, requests: Sequence[PendingRequest], reason: CloseReason) -> None:
        respond = self._respond
        parts = [requests]
        while parts:
            part = parts.pop()
            try:
                execution = self._run(part, reason)
                outcomes = execution.outputs
                # By index, because mypyc makes an object and a tuple for each pair of a strict `zip`. Only an instance
                # that answers later may give LATER.
                responses = [
                    self._response(pending, outcomes[index], execution, reason)  # type: ignore[arg-type]
                    for index, pending in enumerate(part)
                ]
            except BaseException as exc:  # a panic of a library in Rust, and what ends a thread, are no Exception
                # Executed after this block, so that the next exception is not chained to this one.
                parts += self._split(part, exc)
                continue
            for index, response in enumerate(responses):
                respond(part[index], response)

    def _run(self, requests: Sequence[PendingRequest], reason: CloseReason) -> Execution:
        """Execute `requests` as one batch; raises what the backend raises.

        Counts the batch and its successful requests; the caller counts the failed ones. An execution that raised is not
        counted as an execution, as in Triton's ONNX Runtime backend.
        """
        start_ns = self._clock()
        batch_sizes = [pending.batch_size or 1 for pending in requests]
        execution = self.executing.execute([pending.request for pending in requests], batch_sizes)
        outcomes = checked(execution, len(requests)).outputs
        self._note_end(execution, start_ns, batch_sizes)
        successful = requests
        for outcome in outcomes:
            if isinstance(outcome, Exception):
                pairs = zip(requests, outcomes, strict=True)
                successful = [pending for pending, outcome in pairs if not isinstance(outcome, Exception)]
                break
        self._count(execution, successful, reason)
        return execution

    def _execute_open(
        self, requests: Sequence[PendingRequest], reason: CloseReason, open_requests: OpenRequests
    ) -> None:
        """Requests that are answered later stay open, and those that the model gives back are queued again.

        Such a batch is never executed again split: a part of it may have been answered.
        """
        opened: list[OpenRequest] = []
        try:
            start_ns = self._clock()
            opened = open_requests.open(requests, start_ns)
            execution, closed, again = self._run_open(opened, start_ns, open_requests)
        except BaseException as error:
            # All are closed first: with the frames of the error their senders end.
            unanswered = opened or open_requests.open(requests, 0)
            for request in [each for each in unanswered if not each.is_closed and each.close()]:
                request.answer(self._failed(request.pending, error))
            return
        successful = [request.pending for request, outcome in closed if not isinstance(outcome, Exception)]
        self._count(execution, successful, reason)
        for request in again:
            open_requests.give_back(request)
        for request, outcome in closed:
            request.answer(self._response(request.pending, outcome, execution, reason))

    def _run_open(
        self, opened: Sequence[OpenRequest], start_ns: int, open_requests: OpenRequests
    ) -> tuple[Execution, list[tuple[OpenRequest, Outputs | Exception]], list[OpenRequest]]:
        """The execution, the requests that it has answered itself, and those to execute again.

        Only the backend refers to the senders after that: a request whose sender is gone is failed.
        """
        senders = [open_requests.sender(request) for request in opened]
        batch_sizes = [request.pending.batch_size or 1 for request in opened]
        execution = self.executing.execute([request.pending.request for request in opened], batch_sizes, senders)
        checked(execution, len(opened))
        self._note_end(execution, start_ns, batch_sizes)
        closed: list[tuple[OpenRequest, Outputs | Exception]] = []
        again: list[OpenRequest] = []
        for request, sender, outcome in zip(opened, senders, execution.outputs, strict=True):
            if outcome is LATER:
                request.input_end_ns = execution.input_end_ns
            elif outcome is AGAIN:
                sender.end()
                again.append(request)
            elif request.close():
                closed.append((request, outcome))
        return execution, closed, again

    def _note_end(self, execution: Execution, start_ns: int, batch_sizes: Sequence[int]) -> None:
        execution.start_ns = start_ns
        execution.end_ns = self._clock()
        execution.items = execution.items or sum(batch_sizes)

    def _count(self, execution: Execution, successful: Sequence[PendingRequest], reason: CloseReason) -> None:
        """Count an execution, its batch and its successful requests. Never raises."""
        try:
            self._statistics.record_batch(
                successful,
                execution.items,
                execution.start_ns,
                execution.input_end_ns,
                execution.output_start_ns,
                execution.end_ns,
                reason,
            )
            if execution.bucket is not None:
                self._statistics.record_bucket(execution.bucket)
        except Exception:
            _log.exception("counting an execution of model '%s' failed unexpectedly", self._spec.name)

    def _split(self, requests: Sequence[PendingRequest], exc: BaseException) -> list[Sequence[PendingRequest]]:
        """The halves of a batch that failed, the second one first; fails a single request.

        On a poisoned instance every request fails.
        """
        if len(requests) == 1 or self._is_poisoned:
            for pending in requests:
                self._respond(pending, self._failed(pending, exc))
            return []
        count, model = len(requests), self._spec.name
        reason = text_of(exc)
        _log.warning("a batch of %d requests for model '%s' failed, running it again split: %s", count, model, reason)
        middle = count // 2
        return [requests[middle:], requests[:middle]]

    def _response(
        self, pending: PendingRequest, outcome: Outputs | Exception, execution: Execution, reason: CloseReason
    ) -> InferenceResponse:
        if isinstance(outcome, Exception):
            return self._failed(pending, outcome)
        response = InferenceResponse(self._spec.name, self._spec.version, outcome, id=pending.request.id)
        if SWITCHES.times or pending.wants_times:
            response.times = times = InferenceTimes(
                execution.start_ns - pending.enqueue_ns,
                execution.input_end_ns - execution.start_ns,
                execution.output_start_ns - execution.input_end_ns,
                execution.end_ns - execution.output_start_ns,
                execution.items,
                reason,
            )
            if SWITCHES.timing and asks_for_times(pending.request):
                response.parameters = {**(response.parameters or {}), **times.parameters()}
        return response

    def _failed(self, pending: PendingRequest, exc: BaseException) -> InferenceResponse:
        """Count a failed request and make its response. Logs an exception that is not a ServerError."""
        if isinstance(exc, ServerError):
            error = exc
        else:
            _log.error("model '%s', instance '%s' failed", self._spec.name, self.name, exc_info=exc)
            error = BackendFailed(text_of(exc), model=self._spec.name)
        origin = pending.origin_of(error)
        try:
            self._statistics.record_failure(pending, reason_of(origin), self._clock(), error.message)
        except Exception:
            _log.exception("counting a request for model '%s' failed unexpectedly", self._spec.name)
        return InferenceResponse.failed(pending.request, error, origin)


def checked(execution: Execution, count: int) -> Execution:
    if len(execution.outputs) != count:
        raise BackendFailed(f"the backend gave {len(execution.outputs)} outcomes for {count} requests")
    return execution
