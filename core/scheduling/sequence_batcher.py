"""The sequence batcher: requests with the same correlation id run in their order, on the same instance.

A sequence is bound to a slot of an instance from its START on; while all slots are taken, it waits in the backlog. In a
slot, one of its requests at a time is in flight in the instance's dynamic batcher, where it is batched with those of
other sequences; the others wait behind it. A sequence ends when

    the last request was answered, or it was idle for too long   its slot is free
    it waited for too long in the backlog                        what waits in it gets DeadlineExceeded
    one of its requests was cancelled                            RequestCancelled
    its instance has lost its states                             InvalidRequest, as without a START
    the scheduler is closed                                      ServerStopping

Source: docs/spec/schedulers.md sections 3.3 and 3.4; docs/spec/repository.md section 1.6.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import sys
import threading
import time
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from functools import partial

import numpy as np

from trident.core.backends.backend import BackendInstance, Execution
from trident.core.borders import expected
from trident.core.config.spec import BatchingSpec, ModelSpec
from trident.core.errors import DeadlineExceeded, InvalidRequest, SequenceNotFound, ServerStopping
from trident.core.inference.pending_request import PendingRequest, ResponseSender, deliver
from trident.core.inference.request import InferenceRequest, Inputs, InputTensor
from trident.core.inference.response import InferenceResponse, OnResponse, Origin
from trident.core.inference.tensors import BY_NAME, BYTES, bytes_array, element_count
from trident.core.scheduling.context import SchedulingContext
from trident.core.scheduling.dynamic_batcher import DynamicBatcher, Through
from trident.core.scheduling.open_requests import ResponseOrder, refuse_again
from trident.core.scheduling.queue import InFlight, Rejection, TimeoutThread, reject, stopping
from trident.core.scheduling.run_once import CollectedAnswer, CollectingSender
from trident.core.scheduling.sequence_tensors import Controls, RequestBuilder, States, made_tensor

_log = logging.getLogger("trident.scheduling")

Reject = Callable[[PendingRequest], Rejection]


class SequenceScheduler:
    """Implements Scheduler for models whose requests form sequences.

    No lock is held while a request enters a batcher or is answered.

    An iterative sequence is one request, whose id the scheduler may choose. It has its slot until its final response;
    whenever its model gives it back, it enters the batcher again, together with those that are new.
    """

    def __init__(
        self,
        context: SchedulingContext,
        instances: Sequence[BackendInstance],
        make_batcher: Callable[..., DynamicBatcher] = DynamicBatcher,
    ) -> None:
        spec, sequence = context.spec, context.spec.sequence
        assert sequence is not None
        self._spec = spec
        self._sequence = sequence
        self._subject = f"a request of a sequence for model '{spec.name}'"
        # As in Triton the requests in all slots count for a direct scheduler, those of each instance for the other one.
        self._batched = replace(
            context, spec=_batched(spec), delay_until=0 if sequence.is_direct else context.delay_until
        )
        self._make_batcher = make_batcher
        self._clock = context.clock
        self._controls = Controls(sequence, batching=spec.max_batch_size > 0)
        self._states = States(spec, context.initial_states) if sequence.states else None
        self._first_states: Inputs = [] if self._states is None else self._states.first
        self._builder = RequestBuilder(spec, self._controls, self._states)
        self._order: ResponseOrder | None = None
        if sequence.preserve_ordering:
            self._order = ResponseOrder(context.respond)
            context = replace(context, respond=self._order.respond, refuse=self._order.refuse)
        self._context = context
        self._timeouts = TimeoutThread(spec.name, self._end_overdue)
        self._lock = threading.Lock()
        # --- guarded by the lock
        self._waits_for_first = sequence.is_direct and context.delay_until > 0
        self._instances = [self._made(instance, ()) for instance in instances]
        # The sequences that further requests may join, by correlation id.
        self._open: dict[int | str, OpenSequence] = {}
        # The sequences in slots, the one that was not active for the longest time first.
        self._active: OrderedDict[OpenSequence, None] = OrderedDict()
        # The sequences without a slot, in the order of their START, and when the first timeout of one is over.
        self._backlog: deque[OpenSequence] = deque()
        self._backlog_due_ns = sys.maxsize
        self._unanswered = InFlight(self._lock)
        self._numbers = itertools.count(1)
        self._started = False
        self._stopped = False
        self._accepts_open = True

    @property
    def queued(self) -> int:
        """Requests that wait behind others of their sequence, for a slot, or for an execution."""
        with self._lock:
            waiting = sum(sequence.queued for sequence in (*self._active, *self._backlog))
            return waiting + sum(instance.batcher.queued for instance in self._instances)

    @property
    def in_flight(self) -> int:
        """Requests that are executed. A sequence that is open and has no request is not among them."""
        with self._lock:
            return sum(instance.batcher.in_flight for instance in self._instances)

    def start(self) -> None:
        with self._lock:
            self._started = True
            instances = list(self._instances)
        for instance in instances:
            instance.batcher.start()
        self._timeouts.start()

    # --- requests

    def submit(self, pending: PendingRequest) -> None:
        """Queue `pending` in its sequence. Raises InvalidRequest or ServerStopping. See Scheduler.

        Source: docs/spec/schedulers.md section 3.4, "Request rules".
        """
        request, is_iterative = pending.request, self._sequence.is_iterative
        if pending.batch_size > 1:
            raise InvalidRequest(
                f"inference request to model '{request.model_name}' must specify batch-size 1 due to requirements of "
                "sequence batcher",
                hint="send the items of a sequence in requests of their own",
            )
        if request.correlation_id:
            self._controls.check(request)
        elif is_iterative:
            request.sequence_start = True
        else:
            raise InvalidRequest(
                f"inference request to model '{request.model_name}' must specify a non-zero or non-empty correlation "
                "ID",
                hint="set sequence_id",
            )
        now_ns = self._clock()
        pending.enqueue_ns = now_ns
        if not pending.start_ns:
            pending.start_ns = now_ns
        change = Change()
        with self._lock:
            sequence = self._open.get(request.correlation_id)
            if sequence is None or self._stopped or request.sequence_start:
                sequence = self._begin(sequence, pending)
            if request.sequence_end or is_iterative:
                self._admit_no_more(sequence)
            self._unanswered.count += 1
            if sequence.instance is None:
                sequence.push(pending)
                if pending.request.timeout_us:
                    expires_ns = pending.enqueue_ns + pending.request.timeout_us * 1000
                    sequence.expires_ns = min(sequence.expires_ns or expires_ns, expires_ns)
                    if expires_ns < self._backlog_due_ns:
                        self._backlog_due_ns = expires_ns
                        self._timeouts.wake()
            else:
                self._touch(sequence, now_ns)
                if self._order is not None:
                    self._order.enter(pending)
                if sequence.is_busy or self._waits_for_first:
                    sequence.push(pending)
                else:
                    change.enter(sequence, pending)
            if self._waits_for_first and (self._stopped or self._is_first_batch_due()):
                self._release_first(change)
        self._apply(change)

    def _begin(self, sequence: OpenSequence | None, pending: PendingRequest) -> OpenSequence:
        """The sequence that `pending` begins, or begins anew: `sequence`, if that is open.

        Raises why `pending` is not accepted. Under the lock.
        """
        request = pending.request
        if self._stopped and (not self._accepts_open or (request.sequence_start and not pending.is_nested)):
            raise stopping(pending, self._spec.name)
        if sequence is None and not request.sequence_start:
            raise start_missing(request)
        if not request.correlation_id:
            request.correlation_id = self._controls.id_of(next(self._numbers))
        if sequence is None:
            sequence = OpenSequence(self, request.correlation_id, self._first_states)
            self._open[request.correlation_id] = sequence
            instance = self._free_instance()
            if instance is None:
                self._backlog.append(sequence)
            else:
                self._assign(sequence, instance, pending.enqueue_ns)
                if len(self._active) == 1:  # until now there was no time at which one is over
                    self._timeouts.wake()
        elif request.sequence_start:
            _log.warning(
                "sequence %s for model '%s' has a conflict. The previous sequence did not end before this sequence "
                "start. Previous sequence will be terminated early.",
                request.correlation_id,
                self._spec.name,
            )
        return sequence

    def _apply(self, change: Change) -> None:
        for rejection in change.rejections:
            reject(rejection, self._context)
        for sequence, pending in change.entering:
            self._enter(sequence, pending)

    # A sequence has one request in flight at a time, and these methods are called for that request alone: without the
    # lock. They give it what the model must know of the sequence, and take the sequence's states from its responses.

    def _enter(self, sequence: OpenSequence, pending: PendingRequest) -> None:
        """Give a request to its instance's batcher. The sequence is told of its responses, and of a refusal as one."""
        instance, sent, states = sequence.instance, pending.request, self._states
        assert instance is not None
        sequence.sent, sequence.on_response = sent, pending.take_callback()
        pending.on_response = sequence.respond
        try:
            if states is not None:
                if sent.sequence_start:
                    sequence.states = states.first
                if states.are_variable:
                    pending.batch_key = (*(pending.batch_key or ()), *states.shapes(sequence.states))
            pending.request = sequence.executed = self._builder.built(sent, sequence.states)
            instance.batcher.submit(pending)
        except Exception as error:
            # The batcher may have answered it before, and may do so at this moment or afterwards.
            deliver(pending, InferenceResponse.failed(sent, expected(error, self._subject), Origin.REJECTED))

    def _enter_again(self, instance: SequenceInstance, pending: PendingRequest) -> None:
        """Give the batcher a request once more that its model gave back, with the states as they are now.

        Raises what the batcher raises. See `Again`.
        """
        with self._lock:
            sequence = next(each for each in instance.sequences.values() if each.in_flight is pending)
        sent, states = sequence.sent, self._states
        assert sent is not None
        begun = sent.with_inputs(sent.inputs, model_version=sent.model_version, id=sent.id)
        begun.sequence_start, begun.arrived_ns, begun.trace = False, sent.arrived_ns, sent.trace
        if states is not None and states.are_variable:
            shapes = states.shapes(sequence.states)
            pending.batch_key = (*(pending.batch_key or ())[: -len(shapes)], *shapes)
        pending.request = sequence.executed = self._builder.built(begun, sequence.states)
        pending.defer = None  # it is for the thread that submitted the request first
        instance.batcher.submit(pending)

    def answered(self, sequence: OpenSequence, response: InferenceResponse) -> None:
        """Pass on a response to the request in flight; after the final one the next request enters."""
        pending, sent, on_response = sequence.in_flight, sequence.sent, sequence.on_response
        assert pending is not None
        assert sent is not None
        assert on_response is not None
        if self._states is not None and response.error is None:
            try:
                response.outputs, sequence.states = self._states.taken(response.outputs, sent.outputs, sequence.states)
            except Exception as error:
                response.outputs, response.error = [], expected(error, self._subject)
        if not response.final:
            on_response(response)
            return
        pending.request, pending.on_response = sent, on_response
        sequence.executed = sequence.sent = sequence.on_response = None
        change = Change()
        try:
            with self._lock:
                sequence.in_flight = None
                self._unanswered.end(1)
                if response.error is not None and response.origin is Origin.CANCELLED:
                    self._end(sequence, Rejection.of_cancelled, change)
                self._go_on(sequence, change)
                if sequence in self._active:
                    self._touch(sequence, self._clock())
        finally:
            self._context.respond(pending, response)
            self._apply(change)

    def cancelled(self, sequence: OpenSequence, pending: PendingRequest) -> None:
        """A request that waits was cancelled, so the whole sequence ends. Any thread."""
        change = Change()
        with self._lock:
            if sequence.waiting is None or pending not in sequence.waiting:
                return
            self._end_now(sequence, Rejection.of_cancelled, change)
        self._apply(change)

    @property
    def sequences(self) -> tuple[int, int, int]:
        """The sequences that have a slot, all slots, and the sequences that wait for one.

        An instance that is removed has only the slots of its last sequences.
        """
        slots = [len(each.sequences) if each.is_leaving else self._sequence.slots for each in self._instances]
        return len(self._active), sum(slots), len(self._backlog)

    # --- slots. Under the lock.

    def _free_instance(self) -> SequenceInstance | None:
        slots = self._sequence.slots
        free = (each for each in self._instances if not each.is_leaving and each.lowest_slot < slots)
        return min(free, key=lambda instance: instance.lowest_slot, default=None)

    def _assign(self, sequence: OpenSequence, instance: SequenceInstance, now_ns: int) -> None:
        instance.assign(sequence)
        sequence.active_ns = now_ns
        self._active[sequence] = None

    def _touch(self, sequence: OpenSequence, now_ns: int) -> None:
        sequence.active_ns = now_ns
        self._active.move_to_end(sequence)

    def _go_on(self, sequence: OpenSequence, change: Change) -> None:
        """Let the next request of a sequence in a slot enter or, if it has ended, others have the slot.

        Call it only if no request is in flight.
        """
        if sequence.waiting is not None and any(pending.cancelled for pending in sequence.waiting):
            self._end(sequence, Rejection.of_cancelled, change)
        if sequence.waiting is not None:
            change.enter(sequence, sequence.pop())
        elif sequence.is_ended:
            self._remove(sequence)
            self._unanswered.end(0)  # an instance may wait for the end of its sequences
            self._fill_slots(change)

    def _remove(self, sequence: OpenSequence) -> None:
        if sequence.instance is None:
            self._backlog.remove(sequence)
            return
        sequence.instance.release(sequence)
        del self._active[sequence]
        sequence.instance = None
        sequence.states = []

    def _fill_slots(self, change: Change) -> None:
        while self._backlog and (instance := self._free_instance()) is not None:
            sequence = self._backlog.popleft()
            self._assign(sequence, instance, self._clock())
            if self._order is not None:
                for pending in sequence.waiting or ():
                    self._order.enter(pending)
            if not self._waits_for_first:
                self._go_on(sequence, change)

    def _is_first_batch_due(self) -> bool:
        """Source: docs/spec/schedulers.md section 3.4, "Test hooks"."""
        in_slots = sum(sequence.queued for sequence in self._active)
        in_backlog = sum(sequence.queued for sequence in self._backlog)
        return in_slots >= self._context.delay_until and in_backlog >= self._context.backlog_delay_until

    def _release_first(self, change: Change) -> None:
        """Let the first requests enter, which have waited for each other."""
        self._waits_for_first = False
        for instance in self._instances:
            ready = [instance.sequences[slot] for slot in sorted(instance.sequences)]
            instance.batcher.hold(len(ready))
            for sequence in ready:
                self._go_on(sequence, change)

    # --- how sequences end. The caller holds the lock, except in `_end_overdue`.

    def _admit_no_more(self, sequence: OpenSequence) -> None:
        if not sequence.is_ended:
            sequence.is_ended = True
            del self._open[sequence.correlation_id]

    def _end(self, sequence: OpenSequence, refuse: Reject, change: Change) -> None:
        """Refuse all that waits in `sequence`, which gets no more requests. It keeps its slot."""
        self._admit_no_more(sequence)
        while sequence.waiting is not None:
            pending = sequence.pop()
            change.rejections.append(refuse(pending))
            self._unanswered.end(1)

    def _end_now(self, sequence: OpenSequence, refuse: Reject, change: Change) -> None:
        """`_end` it. It leaves its slot, or the backlog, as soon as no request is in flight."""
        self._end(sequence, refuse, change)
        if sequence.instance is None:
            self._remove(sequence)
        elif sequence.in_flight is None:
            self._go_on(sequence, change)

    def _end_overdue(self) -> float | None:
        """End the sequences whose time is over. Returns after how many seconds the next one's is."""
        max_idle_ns = self._sequence.max_idle_ns
        change = Change()
        with self._lock:
            now_ns = self._clock()
            while self._active and (first := next(iter(self._active))).active_ns + max_idle_ns <= now_ns:
                if first.is_busy:
                    self._touch(first, now_ns)  # a request that waits or runs is not idleness
                    continue
                _log.debug("sequence %s of model '%s' was idle for too long", first.correlation_id, self._spec.name)
                self._admit_no_more(first)
                self._go_on(first, change)
            if now_ns >= self._backlog_due_ns:
                expired = [sequence for sequence in self._backlog if 0 < sequence.expires_ns <= now_ns]
                times = [sequence.expires_ns for sequence in self._backlog if sequence.expires_ns > now_ns]
                self._backlog_due_ns = min(times, default=sys.maxsize)
                reason = "timeout of the corresponding sequence has been expired"
                for sequence in expired:
                    self._end_now(
                        sequence,
                        lambda pending: Rejection(pending, DeadlineExceeded(reason, model=self._spec.name)),
                        change,
                    )
            due_ns = self._backlog_due_ns
            if self._active:
                due_ns = min(due_ns, next(iter(self._active)).active_ns + max_idle_ns)
        self._apply(change)
        return None if due_ns == sys.maxsize else max(0, due_ns - self._clock()) / 1e9

    # --- instances

    def _made(self, instance: BackendInstance, others: Sequence[SequenceInstance]) -> SequenceInstance:
        """Raises ValueError if `instance` is among the `others`."""
        if any(other.instance is instance for other in others):
            raise ValueError(f"'{instance.placement.name}' is an instance already")
        made = SequenceInstance(instance)
        through: Through | None = None
        if self._sequence.is_direct:
            through = partial(DirectInstance, controls=self._controls, sequences=made.sequences)
        again = partial(self._enter_again, made) if self._sequence.is_iterative else refuse_again
        made.batcher = self._make_batcher(self._batched, [instance], through=through, again=again)
        return made

    def add(self, instance: BackendInstance) -> None:
        """Give `instance` sequences, first of the backlog. See Scheduler."""
        change = Change()
        with self._lock:
            if self._stopped:
                raise ServerStopping("Server is stopping, scheduler for model has ended", model=self._spec.name)
            made = self._made(instance, self._instances)
            if self._started:
                made.batcher.start()
            self._instances.append(made)
            self._fill_slots(change)
        self._apply(change)

    def remove(self, instance: BackendInstance) -> Callable[[], None]:
        """Begin no sequence on `instance`; what is returned blocks until those that it has have ended. See
        Scheduler."""
        with self._lock:
            staying = [each for each in self._instances if not each.is_leaving]
            leaving = next((each for each in staying if each.instance is instance), None)
            if leaving is None:
                raise ValueError(f"'{instance.placement.name}' is not an instance")
            if len(staying) == 1:
                raise ValueError(f"'{instance.placement.name}' is the last instance")
            leaving.is_leaving = True
        return partial(self._finish_removal, leaving)

    def _finish_removal(self, leaving: SequenceInstance) -> None:
        with self._lock:
            self._unanswered.wait_until(lambda: not leaving.sequences)
        leaving.batcher.close()
        with self._lock:
            self._instances.remove(leaving)

    def forget(self, instance: BackendInstance) -> None:
        """End the sequences of `instance`, which has lost their states. See Scheduler."""
        change = Change()
        with self._lock:
            lost = [each for each in self._instances if each.instance is instance]
            for each in lost:
                for sequence in list(each.sequences.values()):
                    self._end_now(sequence, lambda pending: Rejection(pending, start_missing(pending.request)), change)
        self._apply(change)
        for each in lost:
            each.batcher.forget(instance)

    # --- the end

    def stop(self, *, accept_nested: bool = False) -> None:
        """Begin no more sequences.

        With `accept_nested` the server stops: open sequences may go on; those without a request are not waited for.
        Without it another version takes over, and they end with the requests that they have.
        """
        change = Change()
        with self._lock:
            self._stopped = True
            self._accepts_open = accept_nested
            if self._waits_for_first:
                self._release_first(change)
            for instance in self._instances:
                instance.batcher.hold(0)
            if not accept_nested:
                for sequence in [*self._active, *self._backlog]:
                    self._admit_no_more(sequence)
                    if not sequence.is_busy:
                        self._go_on(sequence, change)
        self._apply(change)

    def drain(self, timeout_s: float | None = None) -> bool:
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._lock:
            if not self._unanswered.wait_until(lambda: not self._unanswered.count, timeout_s):
                return False
            instances = list(self._instances)
        return all(
            instance.batcher.drain(None if deadline is None else deadline - time.monotonic()) for instance in instances
        )

    def close(self, timeout_s: float | None = None, because: str = "") -> bool:
        change = Change()
        with self._lock:
            self._stopped = True
            self._accepts_open = False
            self._waits_for_first = False
            instances = list(self._instances)
            # Those of the backlog first, so that none of them gets a slot.
            for sequence in [*self._backlog, *self._active]:
                self._end_now(
                    sequence, lambda pending: Rejection(pending, stopping(pending, self._spec.name, because)), change
                )
        self._apply(change)
        ended = [instance.batcher.close(timeout_s, because) for instance in instances]
        return all([*ended, self._timeouts.close(timeout_s)])


class Change:
    """Results of a change of sequences: requests that enter batchers, and those that are refused."""

    __slots__ = ("entering", "rejections")

    def __init__(self) -> None:
        self.entering: list[tuple[OpenSequence, PendingRequest]] = []
        self.rejections: list[Rejection] = []

    def enter(self, sequence: OpenSequence, pending: PendingRequest) -> None:
        sequence.in_flight = pending
        self.entering.append((sequence, pending))


class OpenSequence:
    """Guarded by the scheduler's lock, except for what belongs to the request in flight.

    Without an `instance` it is in the backlog, or has ended. `is_ended`: no further request joins it, and it leaves its
    slot when those it has are done. `in_flight` is its one request that the instance's batcher has; `waiting` are those
    after it, None for none. `active_ns` is when it was last given a request, or when its last request was done.
    `expires_ns` is when the timeout of a request is over that waits in the backlog, 0 for never.

    Of the request in flight: `executed` is what the backend gets, `sent` what the client sent, `on_response` its
    callback.
    """

    __slots__ = (
        "_scheduler",
        "active_ns",
        "correlation_id",
        "executed",
        "expires_ns",
        "in_flight",
        "instance",
        "is_ended",
        "on_response",
        "sent",
        "slot",
        "states",
        "waiting",
    )

    def __init__(self, scheduler: SequenceScheduler, correlation_id: int | str, states: Inputs) -> None:
        self._scheduler = scheduler
        self.correlation_id = correlation_id
        self.states = states
        self.instance: SequenceInstance | None = None
        self.slot = 0
        self.is_ended = False
        self.active_ns = 0
        self.expires_ns = 0
        self.in_flight: PendingRequest | None = None
        self.waiting: deque[PendingRequest] | None = None
        self.executed: InferenceRequest | None = None
        self.sent: InferenceRequest | None = None
        self.on_response: OnResponse | None = None

    @property
    def is_busy(self) -> bool:
        return self.in_flight is not None or self.waiting is not None

    @property
    def queued(self) -> int:
        return 0 if self.waiting is None else len(self.waiting)

    def push(self, pending: PendingRequest) -> None:
        # A request that waits is not submitted by this thread.
        pending.defer = None
        pending.on_cancel = self._cancel
        if self.waiting is None:
            self.waiting = deque()
        self.waiting.append(pending)

    def pop(self) -> PendingRequest:
        """The request that waited longest. Call it only if one waits."""
        assert self.waiting is not None
        pending = self.waiting.popleft()
        pending.on_cancel = None
        if not self.waiting:
            # An empty deque takes as much memory as the rest of an open sequence.
            self.waiting = None
        return pending

    def respond(self, response: InferenceResponse) -> None:
        self._scheduler.answered(self, response)

    def _cancel(self, pending: PendingRequest) -> None:
        self._scheduler.cancelled(self, pending)


class SequenceInstance:
    """A model instance with its batcher and the sequences that are bound to its slots. Guarded by the scheduler's lock.

    `sequences` are by slot. One that `is_leaving` gets no new sequence.
    """

    def __init__(self, instance: BackendInstance) -> None:
        self.instance = instance
        self.batcher: DynamicBatcher
        self.sequences: dict[int, OpenSequence] = {}
        self.is_leaving = False
        self._fresh = 0
        self._released: list[int] = []

    @property
    def lowest_slot(self) -> int:
        """The lowest free slot; the number of slots if none is free."""
        return self._released[0] if self._released else self._fresh

    def assign(self, sequence: OpenSequence) -> None:
        if self._released:
            slot = heapq.heappop(self._released)
        else:
            slot = self._fresh
            self._fresh += 1
        sequence.instance, sequence.slot = self, slot
        self.sequences[slot] = sequence

    def release(self, sequence: OpenSequence) -> None:
        del self.sequences[sequence.slot]
        heapq.heappush(self._released, sequence.slot)
        if not self.sequences:
            self._fresh = 0
            self._released.clear()


def _batched(spec: ModelSpec) -> ModelSpec:
    sequence = spec.sequence
    assert sequence is not None
    batching = None
    if spec.max_batch_size > 0:
        batching = BatchingSpec(
            preferred_batch_sizes=sequence.preferred_batch_sizes, max_queue_delay_ns=sequence.max_queue_delay_ns
        )
    return replace(spec, batching=batching, sequence=None)


class DirectInstance:
    """Implements BackendInstance around that of the framework, for `direct`: request i of a batch is that of slot i.

    A slot without a request in the batch gets a null request: READY is false, the other inputs are zeros of the shapes
    that the first request has, and the answer is dropped. `sequences` are those of the instance by slot; the batch goes
    up to the highest slot of a request that the instance's batcher has, whether or not it is in the batch.
    """

    def __init__(self, instance: BackendInstance, controls: Controls, sequences: Mapping[int, OpenSequence]) -> None:
        self._instance = instance
        self._controls = controls
        self._sequences = sequences
        self.placement = instance.placement
        self.may_run_inline = instance.may_run_inline
        self.answers_later = instance.answers_later
        self.poisoned = False

    def execute(
        self,
        requests: Sequence[InferenceRequest],
        batch_sizes: Sequence[int],
        senders: Sequence[ResponseSender] = (),
    ) -> Execution:
        """Execute `requests`, each in its slot. `items` of the result counts the null requests, too."""
        # Other threads change the slots of other sequences meanwhile; those of these requests stay.
        executed = [(sequence.executed, slot) for slot, sequence in list(self._sequences.items())]
        places = {request: slot for request, slot in executed if request is not None}
        slots = [places[request] for request in requests]
        size = max(places.values()) + 1
        # The states of a null request are zeros, too, and its responses are dropped.
        like, not_ready = requests[0], self._controls.not_ready
        inputs = [not_ready.get(tensor.name) or _zeros(tensor) for tensor in like.inputs]
        null = InferenceRequest(like.model_name, inputs, model_version=like.model_version, outputs=like.outputs)
        batch = [null] * size
        later: list[ResponseSender] = [CollectingSender(CollectedAnswer()) for _ in range(size)] if senders else []
        for index, slot in enumerate(slots):
            batch[slot] = requests[index]
            if senders:
                later[slot] = senders[index]
        try:
            execution = self._instance.execute(batch, [1] * size, later)
        finally:
            self.poisoned = self._instance.poisoned
        if len(execution.outputs) == size:
            execution.outputs = [execution.outputs[slot] for slot in slots]
            execution.items = size
        return execution

    def close(self) -> None:
        self._instance.close()


def _zeros(tensor: InputTensor) -> InputTensor:
    datatype, shape = BY_NAME[tensor.datatype], tensor.array.shape
    array = bytes_array([b""] * element_count(shape), shape) if datatype is BYTES else np.zeros(shape, datatype.dtype)
    return made_tensor(tensor.name, datatype, array)


def start_missing(request: InferenceRequest) -> SequenceNotFound:
    return SequenceNotFound(
        f"inference request for sequence {request.correlation_id} to model '{request.model_name}' must specify the "
        "START flag on the first request of the sequence",
        hint="a sequence also ends when it is idle for max_sequence_idle_microseconds, when its model is reloaded, and "
        "when the process of its instance ends",
    )
