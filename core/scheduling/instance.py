"""A model instance: its thread, the execution of batches on its backend instance, and the answers to their requests.

The pool knows which of a scheduler's threads rest, and how many requests they have taken.

Source: docs/spec/schedulers.md section 3, docs/architecture.md section 7.
"""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Sequence
from enum import Enum
from functools import partial
from typing import Final

from trident.core.backends.backend import BackendInstance, Execution
from trident.core.borders import guarded, text_of
from trident.core.config.request_check import BatchForm
from trident.core.config.spec import ModelSpec
from trident.core.errors import BackendFailed, ServerError
from trident.core.inference.pending_request import AGAIN, LATER, DeferredOutcome, PendingRequest
from trident.core.inference.request import (
    IDLE as NO_WAIT,
)
from trident.core.inference.request import CloseReason, InferenceRequest, InferenceTimes, Parameter, asks_for_times
from trident.core.inference.response import InferenceResponse, Outputs, OutputTensor
from trident.core.inference.tensors import BYTES
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.observability.switches import SWITCHES
from trident.core.scheduling.batch_forming import BatchTuner, Wait, Work
from trident.core.scheduling.open_requests import OpenRequest, OpenRequests
from trident.core.scheduling.queue import Clock, RequestQueue, Respond, flush_callers, reason_of, reject
from trident.core.scheduling.rate_limiter import Claim, Needs
from trident.core.waiting import Mailbox, ThreadMailbox

_log = logging.getLogger("trident.scheduling")

OnPoisoned = Callable[[BackendInstance], None]


class ThreadState(Enum):
    """`next` are the states that may follow."""

    next: tuple[ThreadState, ...]

    RUNNING = "executes, or looks for work"
    IDLE = "rests until it is woken"
    HOLDING = "rests until it is woken or the queue delay is over"
    WAITING = "rests until it is its turn to hold the resources of an execution"
    WOKEN = "has its token and will look for work"
    LENT = "rests while the submitting thread executes on its instance"
    ENDED = "has ended, or has its token and will end"


# In Python 3.11 a member costs a function call when it is looked up on its class.
RUNNING: Final = ThreadState.RUNNING
IDLE: Final = ThreadState.IDLE
HOLDING: Final = ThreadState.HOLDING
WAITING: Final = ThreadState.WAITING
WOKEN: Final = ThreadState.WOKEN
LENT: Final = ThreadState.LENT
ENDED: Final = ThreadState.ENDED

RUNNING.next = (IDLE, HOLDING, WAITING, ENDED)
IDLE.next = (WOKEN, LENT, RUNNING, ENDED)
HOLDING.next = (WOKEN, LENT, IDLE, RUNNING, ENDED)
WAITING.next = (RUNNING,)
WOKEN.next = (RUNNING,)
LENT.next = (IDLE, WOKEN, ENDED)
ENDED.next = ()


class ModelInstance:
    """One instance of a model version. It executes on its own thread, or on a submitting one while its own rests.

    The scheduler's lock guards `state`, `retired`, `errand`, `taken` and `wait`. `token` is a binary semaphore: the
    thread rests by acquiring it, and whoever moves it to WOKEN or ENDED releases it. `retired` tells the thread to end
    when it next looks for work, and `errand` is what it calls once after that. `taken` is the number of requests that
    it has taken and not finished, without those of `open_requests`, which are done when their final response was
    delivered. `wait` is valid while HOLDING.
    """

    def __init__(
        self,
        backend: BackendInstance,
        executing: BackendInstance,
        spec: ModelSpec,
        statistics: ModelStatistics,
        respond: Respond,
        refuse: Respond,
        short: ShortExecutions,
        *,
        clock: Clock = time.monotonic_ns,
        on_poisoned: OnPoisoned | None = None,
        open_requests: OpenRequests | None = None,
        claim: Claim | None = None,
        tuner: BatchTuner | None = None,
    ) -> None:
        """`executing` executes in place of `backend`, or is the same. `refuse` answers requests that are not executed.

        `open_requests` are those of an instance that answers later. `claim` is that on the resources which its
        executions hold. `tuner` is told of each execution.
        """
        self.backend = backend
        self.executing = executing
        self.name = backend.placement.name
        self.claim = claim
        self.open_requests = open_requests
        self.token = threading.Lock()
        self.token.acquire()
        self.state: ThreadState = RUNNING
        self.retired = False
        self.errand: Callable[[], None] | None = None
        self.taken = 0
        self.wait = Wait(0, 0, None, 0)
        self._own_thread: threading.Thread | None = None
        self._spec = spec
        self._statistics = statistics
        self._respond = respond
        self._short = short
        self._clock = clock
        self._respond_unexecuted = refuse if open_requests is None else open_requests.respond_unexecuted
        self._on_poisoned = on_poisoned
        self._tuner = tuner

    # --- its thread

    def start(self, serve: Callable[[ModelInstance], None]) -> None:
        """Call `serve` with this instance on the thread."""
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
        """Whether the caller runs on its thread."""
        return self._own_thread is threading.current_thread()

    def move(self, state: ThreadState) -> None:
        """Raises RuntimeError for a move that the states do not allow, which is a bug."""
        if state not in self.state.next:
            raise RuntimeError(f"instance thread '{self.name}' cannot go from {self.state} to {state}")
        self.state = state

    @property
    def needs(self) -> Needs:
        """The resources that its executions hold; empty for none."""
        return {} if self.claim is None else self.claim.needs

    # --- executions

    def perform(self, work: Work, inline: bool = False) -> None:
        """Answer the rejected requests, then execute the batch. `inline`: not on the instance's own thread.

        The caller holds the claim, if there is one, which ends with the execution: requests that are answered later
        hold nothing. Returns normally, and has answered each request or, if it is answered later, opened it.
        """
        for rejection in work.rejections:
            reject(rejection, self._statistics, self._respond_unexecuted, self._clock)
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
        if self.claim is not None:
            self.claim.end()
        try:
            self._statistics.end_execution(self.name)
            end_ns = self._clock()
            self._short.note(batch, end_ns - begin_ns, inline)
        except Exception:
            _log.exception("noting an execution of model '%s' failed unexpectedly", self._spec.name)
        # Not part of the execution: the next steps of an ensemble may be executed meanwhile.
        flush_callers(batch)
        if self._tuner is not None:
            guarded(partial(self._tuner.note, batch, begin_ns, end_ns), "tuning the batcher")

    def execute(self, requests: Sequence[PendingRequest], reason: CloseReason = NO_WAIT) -> None:
        """Execute a batch, which was closed for `reason`, and answer each request that is not answered later.

        Returns normally. A batch that fails as a whole is executed again in halves, down to the requests that fail
        alone. If the backend instance is poisoned afterwards, so that it can execute nothing again, `on_poisoned` is
        called, once.
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
        """Each request gets its one response."""
        respond = self._respond
        parts = [requests]
        while parts:
            part = parts.pop()
            try:
                execution = self._run(part, reason)
                # Only an instance that answers later may give LATER.
                responses = [
                    self._response(pending, outcome, execution, reason)  # type: ignore[arg-type]
                    for pending, outcome in zip(part, execution.outputs, strict=True)
                ]
            except Exception as exc:
                # Executed after this block, so that the next exception is not chained to this one.
                parts += self._split(part, exc)
                continue
            for pending, response in zip(part, responses, strict=True):
                respond(pending, response)

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
            execution, claimed, again = self._run_open(opened, start_ns, open_requests)
        except Exception as error:
            # All are closed first: with the frames of the error their senders end.
            unanswered = opened or open_requests.open(requests, 0)
            for request in [each for each in unanswered if not each.is_closed and each.claim()]:
                request.answer(self._failed(request.pending, error))
            return
        successful = [request.pending for request, outcome in claimed if not isinstance(outcome, Exception)]
        self._count(execution, successful, reason)
        for request in again:
            open_requests.give_back(request)
        for request, outcome in claimed:
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
        claimed: list[tuple[OpenRequest, Outputs | Exception]] = []
        again: list[OpenRequest] = []
        for request, sender, outcome in zip(opened, senders, execution.outputs, strict=True):
            if outcome is LATER:
                request.input_end_ns = execution.input_end_ns
            elif outcome is AGAIN:
                sender.end()
                again.append(request)
            elif request.claim():
                claimed.append((request, outcome))
        return execution, claimed, again

    def _note_end(self, execution: Execution, start_ns: int, batch_sizes: Sequence[int]) -> None:
        execution.start_ns = start_ns
        execution.end_ns = self._clock()
        execution.items = execution.items or sum(batch_sizes)

    def _count(self, execution: Execution, successful: Sequence[PendingRequest], reason: CloseReason) -> None:
        """Count an execution, its batch and its successful requests. Returns normally."""
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

    def _split(self, requests: Sequence[PendingRequest], exc: Exception) -> list[Sequence[PendingRequest]]:
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
        """The response with an outcome of the execution and, on demand, its times."""
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

    def _failed(self, pending: PendingRequest, exc: Exception) -> InferenceResponse:
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


class InstancePool:
    """Moves the threads between their states.

    Every method but `open_one` and `close_one` is called under the scheduler's lock.

    `idle` are the IDLE threads, the one that went to rest last at the end. `holder` is the HOLDING thread, one at most.
    `waking` counts the WOKEN and the WAITING threads, which will take requests. `in_flight` counts requests that were
    taken and are not finished. A `closed` pool keeps no thread at rest.
    """

    __slots__ = (
        "_drained",
        "_drainers",
        "_max_batch_size",
        "_waiting",
        "closed",
        "holder",
        "idle",
        "in_flight",
        "waking",
    )

    def __init__(self, lock: threading.Lock, max_batch_size: int) -> None:
        self._max_batch_size = max_batch_size
        self._drained = threading.Condition(lock)
        self._drainers = 0
        self.idle: list[ModelInstance] = []
        self.holder: ModelInstance | None = None
        self._waiting: list[ModelInstance] = []
        self.waking = 0
        self.in_flight = 0
        self.closed = False

    def rest(self, instance: ModelInstance) -> None:
        """RUNNING, HOLDING or LENT -> IDLE."""
        instance.move(IDLE)
        self.idle.append(instance)

    def hold(self, instance: ModelInstance, wait: Wait) -> None:
        """RUNNING -> HOLDING. A thread that holds already becomes idle, because the later decision counts."""
        if self.holder is not None:
            self._relieve(self.holder)
        instance.move(HOLDING)
        instance.wait = wait
        self.holder = instance

    def wait(self, instance: ModelInstance) -> None:
        """RUNNING -> WAITING

        Wakes a thread that rests, too, if no waiting one needs the same as it: its turn may come earlier.
        """
        instance.move(WAITING)
        self._waiting.append(instance)
        self.waking += 1
        awaited = [waiting.needs for waiting in self._waiting]
        for idle in self.idle:
            if idle.needs not in awaited:
                self.idle.remove(idle)
                self._wake(idle)
                return

    def _relieve(self, holder: ModelInstance) -> None:
        """HOLDING -> IDLE. The thread's time limit may still wake it once, in vain."""
        self.holder = None
        self.rest(holder)

    def wake_idle(self, items: int) -> None:
        """IDLE -> WOKEN for one thread, if the queue holds more `items` than the WOKEN threads can take."""
        if self.idle and items > self.waking * self._max_batch_size:
            self._wake(self.idle.pop())

    def wake(self, items: int) -> None:
        """Wake the holder, or without one an idle thread for `items`."""
        holder = self.holder
        if holder is None:
            self.wake_idle(items)
        else:
            self.holder = None
            self._wake(holder)

    def send(self, device: str, errand: Callable[[], None]) -> bool:
        """IDLE -> WOKEN for a thread of `device`, which calls `errand`. False if none of them rests."""
        for instance in self.idle:
            if instance.backend.placement.device == device:
                instance.errand = errand
                self.idle.remove(instance)
                self._wake(instance)
                return True
        return False

    def rise(self, instance: ModelInstance) -> None:
        """WOKEN or WAITING -> RUNNING, or IDLE or HOLDING -> RUNNING if the time limit has woken the thread."""
        state = instance.state
        if state is ENDED:
            return
        if state is WOKEN:
            self.waking -= 1
            instance.token.acquire(blocking=False)  # the token may have been released just after the time limit
        elif state is WAITING:
            self.waking -= 1
            self._waiting.remove(instance)
        else:
            self._withdraw(instance)
        instance.move(RUNNING)

    @property
    def lendable(self) -> ModelInstance | None:
        """The thread that holds, because it waits for the requests that are queued, or that went to rest last."""
        return self.holder or (self.idle[-1] if self.idle else None)

    def lend(self, instance: ModelInstance) -> None:
        """IDLE or HOLDING -> LENT. The time limit of a thread that held may still wake it once, in vain."""
        self._withdraw(instance)
        instance.move(LENT)

    def take_back(self, instance: ModelInstance, items: int) -> None:
        """LENT -> IDLE, or on its way to end if it was retired or the pool closed. `items` are still queued."""
        if instance.retired:
            self._end_resting(instance)
        elif self.closed:
            self._wake(instance)
        else:
            self.rest(instance)
            if items:
                self.wake_idle(items)

    def retire(self, instance: ModelInstance) -> None:
        """Have the thread end when it next looks for work.

        A resting thread ends at once. It does not count as woken, so a request that arrives wakes another.
        """
        instance.retired = True
        if instance.state is WAITING:
            _interrupt(instance)
        elif instance.state is IDLE or instance.state is HOLDING:
            self._withdraw(instance)
            self._end_resting(instance)

    def end(self, instance: ModelInstance) -> None:
        """RUNNING -> ENDED, unless it was told so already."""
        if instance.state is RUNNING:
            instance.move(ENDED)

    def close(self) -> None:
        """Wake every resting thread and keep none at rest from now on."""
        self.closed = True
        if self.holder is not None:
            self._relieve(self.holder)
        for waiting in self._waiting:
            _interrupt(waiting)
        while self.idle:
            self._wake(self.idle.pop())

    def take(self, instance: ModelInstance, work: Work, queue: RequestQueue) -> None:
        """Note that an instance has taken `work` from `queue`, and wake another thread for the rest of the queue.

        The holder may have waited for requests that left with the batch, so it becomes idle first.
        """
        instance.taken = taken = len(work.batch) + len(work.rejections)
        self.in_flight += taken
        if work.batch:
            if instance.open_requests is not None:
                instance.taken = len(work.rejections)
                instance.open_requests.size += len(work.batch)
            if self.holder is not None:
                self._relieve(self.holder)
            if queue.size:
                self.wake_idle(queue.items)

    def finish(self, instance: ModelInstance) -> None:
        """Note that all requests that an instance has taken are done, except for open ones."""
        self.in_flight -= instance.taken
        instance.taken = 0
        if self._drainers and not self.in_flight:
            self._drained.notify_all()

    def count_off(self, count: int) -> None:
        """Note that `count` requests in flight are done which no instance has taken."""
        self.in_flight -= count
        self._drained.notify_all()

    def open_one(self, requests: OpenRequests) -> None:
        """Note that one more of `requests` is open. Not under the lock."""
        with self._drained:
            requests.size += 1
            self.in_flight += 1

    def close_one(self, requests: OpenRequests) -> None:
        """Note that one of `requests` is done. Not under the lock."""
        with self._drained:
            requests.size -= 1
            self.in_flight -= 1
            if self._drainers:
                self._drained.notify_all()

    def drain_open(self, requests: OpenRequests) -> None:
        """Release the lock and block until none of `requests` is open."""
        self._drainers += 1
        try:
            self._drained.wait_for(lambda: not requests.size)
        finally:
            self._drainers -= 1

    def drain(self, queue: RequestQueue, timeout_s: float | None) -> bool:
        """Release the lock and block until nothing is queued or in flight. Returns whether that came in time."""
        self._drainers += 1
        try:
            return self._drained.wait_for(lambda: not queue.size and not self.in_flight, timeout_s)
        finally:
            self._drainers -= 1

    def _wake(self, instance: ModelInstance) -> None:
        instance.move(WOKEN)
        self.waking += 1
        instance.token.release()

    def _end_resting(self, instance: ModelInstance) -> None:
        instance.move(ENDED)
        instance.token.release()

    def _withdraw(self, instance: ModelInstance) -> None:
        """Take an IDLE or HOLDING thread out of the resting ones."""
        if instance is self.holder:
            self.holder = None
        else:
            self.idle.remove(instance)


def _interrupt(instance: ModelInstance) -> None:
    """Have a WAITING thread look for work now."""
    if instance.claim is not None:
        instance.claim.interrupt()


def checked(execution: Execution, count: int) -> Execution:
    """`execution`, which must have `count` outcomes. Raises BackendFailed."""
    if len(execution.outputs) != count:
        raise BackendFailed(f"the backend gave {len(execution.outputs)} outcomes for {count} requests")
    return execution


# On its own thread an execution takes two to three times its computing time, because that thread shares the interpreter
# with the submitting one. So these limits only tell that running inline does no harm: the execution takes no longer
# than the rest of the work for as many requests.
_SHORT_NS: Final = 1_000_000
_SHORT_NS_PER_REQUEST: Final = 30_000
_IN_A_ROW: Final = 16
# These limits are for durations measured inline, which are computing time. They tell that running inline is a gain: an
# execution that computes longer is worth another thread on a machine with another core. The work that Python does for
# each request takes the same time on either thread.
_INLINE_NS: Final = 200_000
_INLINE_NS_PER_REQUEST: Final = 8_000
# The durations measured inline are averaged over this many executions. If the average is too high, inline execution is
# tried again after this many other executions.
_AVERAGED: Final = 16
_PAUSE: Final = 1000


class ShortExecutions:
    """The measured durations of one model's executions. Any thread; a note may be lost if two arrive at once.

    No client may block the submitting thread, so the amount of input that a client sends must not make the next
    execution a long one. An execution with twice the input of a short one takes some milliseconds at most, even if the
    time grows with the cube of the size.

    `lasting` tells whether the last 16 executions were short.
    """

    __slots__ = ("_average", "_largest", "_measured", "_short", "lasting")

    def __init__(self, spec: ModelSpec) -> None:
        # The time that a model spends on a string does not follow from the size of the string.
        self._measured = all(tensor.datatype is not BYTES for tensor in spec.inputs.values())
        self._short = 0
        self._largest = 0
        self._average = 0.0
        self.lasting = False

    def expected(self, batch: Sequence[PendingRequest]) -> bool:
        """Whether executing `batch` will be short: the last 16 were, and one of them had at least half its input."""
        return self.lasting and _size(batch) <= 2 * self._largest

    def note(self, batch: Sequence[PendingRequest], duration_ns: int, inline: bool) -> None:
        """Note that executing `batch` took `duration_ns` nanoseconds, on the submitting thread if `inline`."""
        if not self._measured:
            return
        count = len(batch)
        if duration_ns >= _SHORT_NS + _SHORT_NS_PER_REQUEST * count:
            self._short = self._largest = 0
            self.lasting = False
            return
        self._short += 1
        self._largest = max(self._largest, _size(batch))
        if inline:
            self._average += (duration_ns / (_INLINE_NS + _INLINE_NS_PER_REQUEST * count) - self._average) / _AVERAGED
            if self._average > 1:
                self._average = 0.0
                self._short = -_PAUSE
        self.lasting = self._short >= _IN_A_ROW


def _size(batch: Sequence[PendingRequest]) -> int:
    return sum([pending.request.nbytes for pending in batch])


def run_once(
    backend: BackendInstance, requests: Sequence[InferenceRequest], check: Callable[[InferenceRequest], BatchForm]
) -> list[list[OutputTensor]]:
    """Check `requests` and execute them as one batch, without a queue: for warmup and golden requests.

    Nothing is counted, because no client sent them. Blocks until each request is answered or, if the model wants to
    execute it again, has had its first execution. Returns the outputs of each
    request, the first ones of a request with several responses; raises the first error. Must not run while the
    instance's thread does.
    """
    batch_sizes = [check(request)[0] or 1 for request in requests]
    if not backend.answers_later:
        return [_outputs(outcome) for outcome in backend.execute(requests, batch_sizes).outputs]
    answers = [CollectedAnswer() for _ in requests]
    execution = checked(
        backend.execute(requests, batch_sizes, [CollectingSender(answer) for answer in answers]), len(requests)
    )
    pairs = list(zip(answers, execution.outputs, strict=True))
    for answer, outcome in pairs:
        if outcome is AGAIN:
            answer.note(None, True)
    return [_outputs(answer.wait() if isinstance(outcome, DeferredOutcome) else outcome) for answer, outcome in pairs]


def _outputs(outcome: Outputs | Exception | DeferredOutcome) -> list[OutputTensor]:
    """Raises an outcome that is an error."""
    if isinstance(outcome, Exception):
        raise outcome
    if isinstance(outcome, DeferredOutcome):
        raise BackendFailed("the backend answers later, which it did not announce")
    return list(outcome)


class CollectedAnswer:
    """The outputs of the first response that has some, or the first error. `wait` on one thread; the rest on any."""

    def __init__(self) -> None:
        self._answer: Outputs | ServerError | None = None
        self._is_over = False
        self._end: Mailbox[bool] = ThreadMailbox()

    def note(self, response: Outputs | ServerError | None, final: bool) -> None:
        if self._is_over:
            return
        if self._answer is None or (isinstance(response, ServerError) and not isinstance(self._answer, ServerError)):
            self._answer = response
        if final:
            self._is_over = True
            self._end.put(True)

    def wait(self) -> Outputs | ServerError:
        """Block until the final response. Once."""
        self._end.get()
        return [] if self._answer is None else self._answer


class CollectingSender:
    """Implements ResponseSender, without a window. Only the backend instance refers to it."""

    is_cancelled = False
    is_full = False

    def __init__(self, answer: CollectedAnswer) -> None:
        self._answer = answer

    def __del__(self) -> None:
        # Does nothing after the final response. It takes no lock that its thread may hold, so it may be done anywhere.
        self._answer.note(BackendFailed("the model dropped its response sender before the final response"), True)

    def send(
        self,
        outputs: Outputs | None,
        *,
        final: bool = False,
        error: ServerError | None = None,
        parameters: dict[str, Parameter] | None = None,
    ) -> None:
        self._answer.note(outputs if error is None else error, final)

    def watch(self, callback: Callable[[], None]) -> None:
        """Nothing changes."""
