"""The sequence batcher.

    START -> a slot of an instance -> the instance's dynamic batcher, one request of each sequence at a time
          -> the backlog, while all slots are taken

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
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import NamedTuple, Protocol

import numpy as np

from trident.core.backends.backend import BackendInstance, Execution
from trident.core.config.spec import BatchingSpec, ModelSpec
from trident.core.errors import DeadlineExceeded, InvalidRequest, RequestCancelled, ServerError, ServerStopping
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import InferenceRequest, Inputs, InputTensor
from trident.core.inference.response import InferenceResponse, OnResponse
from trident.core.inference.streaming import ResponseSender
from trident.core.inference.tensors import BY_NAME, BYTES, bytes_array, element_count
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.scheduling.dynamic_batcher import DynamicBatcher, Through
from trident.core.scheduling.instance import CollectedAnswer, CollectingSender
from trident.core.scheduling.open_requests import Again, ResponseOrder, refuse_again
from trident.core.scheduling.queue import Clock, Rejection, Respond, TimeoutThread, deliver, reject, stopping
from trident.core.scheduling.sequence_requests import Controls, InitialStates, Placing, States, made_tensor


class Change:
    """Requests that enter the batchers of their instances, and those that are answered unrun."""

    __slots__ = ("entering", "rejections")

    def __init__(self) -> None:
        self.entering: list[tuple[OpenSequence, PendingRequest]] = []
        self.rejections: list[Rejection] = []

    def enter(self, sequence: OpenSequence, pending: PendingRequest) -> None:
        sequence.inside = pending
        self.entering.append((sequence, pending))

    def refuse(self, pending: PendingRequest, error: ServerError) -> None:
        self.rejections.append(Rejection(pending, error))


# Source: docs/spec/schedulers.md section 3.4, "Request rules".


def form_problem(pending: PendingRequest) -> InvalidRequest:
    """Why the sequence batcher cannot take `pending`, which has several items or no correlation id."""
    model = pending.request.model_name
    if pending.batch_size > 1:
        return InvalidRequest(
            f"inference request to model '{model}' must specify batch-size 1 due to requirements of sequence batcher",
            hint="send the items of a sequence in requests of their own",
        )
    return InvalidRequest(
        f"inference request to model '{model}' must specify a non-zero or non-empty correlation ID",
        hint="set sequence_id",
    )


def place_problem(pending: PendingRequest, *, is_open: bool, is_stopped: bool) -> ServerError | None:
    """Why `pending` cannot join or begin its sequence; None if it can.

    `is_open`: its sequence began and did not end. `is_stopped`: no sequence begins any more.
    """
    request = pending.request
    if is_stopped and request.sequence_start:
        return stopping(pending, request.model_name)
    if not (is_open or request.sequence_start):
        return start_missing(request)
    return None


def start_missing(request: InferenceRequest) -> InvalidRequest:
    """The error of a request whose sequence is not known."""
    return InvalidRequest(
        f"inference request for sequence {request.correlation_id} to model '{request.model_name}' must specify the "
        "START flag on the first request of the sequence",
        hint="a sequence also ends when it is idle for max_sequence_idle_microseconds, when its model is reloaded, and "
        "when the process of its instance ends",
    )


# Source: docs/spec/schedulers.md section 3.4, "Test hooks".


class FirstBatch(NamedTuple):
    """The requests that must wait in slots and in the backlog before anything is executed."""

    in_slots: int
    in_backlog: int

    def is_due(self, seating: Seating) -> bool:
        return (
            sum(sequence.queued for sequence in seating.seated) >= self.in_slots
            and sum(sequence.queued for sequence in seating.backlog) >= self.in_backlog
        )


class Owner(Protocol):
    """The scheduler of a sequence."""

    def answered(self, sequence: OpenSequence, response: InferenceResponse) -> None: ...

    def cancelled(self, sequence: OpenSequence, pending: PendingRequest) -> None: ...


class OpenSequence:
    """Guarded by the scheduler's lock, except for what belongs to the request inside.

    Without a `lane` it is in the backlog, or has ended. `is_ended`: no further request joins it, and it leaves its slot
    when those it has are done. `inside` is its one request that the instance's batcher has; `waiting` are those after
    it, None for none. `active_ns` is when it was last given a request, or when its last request was done. `expires_ns`
    is when the timeout of a request is over that waits in the backlog, 0 for never.

    Of the request inside: `executed` is what the backend gets, `sent` what the client sent, `on_response` its callback.
    """

    __slots__ = (
        "_owner",
        "active_ns",
        "correlation_id",
        "executed",
        "expires_ns",
        "inside",
        "is_ended",
        "lane",
        "on_response",
        "sent",
        "slot",
        "states",
        "waiting",
    )

    def __init__(self, owner: Owner, correlation_id: int | str, states: Inputs) -> None:
        self._owner = owner
        self.correlation_id = correlation_id
        self.states = states
        self.lane: Lane | None = None
        self.slot = 0
        self.is_ended = False
        self.active_ns = 0
        self.expires_ns = 0
        self.inside: PendingRequest | None = None
        self.waiting: deque[PendingRequest] | None = None
        self.executed: InferenceRequest | None = None
        self.sent: InferenceRequest | None = None
        self.on_response: OnResponse | None = None

    @property
    def is_busy(self) -> bool:
        return self.inside is not None or self.waiting is not None

    @property
    def queued(self) -> int:
        """The requests that wait behind the one inside."""
        return 0 if self.waiting is None else len(self.waiting)

    def push(self, pending: PendingRequest) -> None:
        """Let `pending` wait for those before it."""
        # What the submitting thread does at the end of its turn is no concern of a request that waits.
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

    def pop_all(self) -> list[PendingRequest]:
        """All that wait."""
        popped = []
        while self.waiting is not None:
            popped.append(self.pop())
        return popped

    def respond(self, response: InferenceResponse) -> None:
        """The callback of the request inside."""
        self._owner.answered(self, response)

    def _cancel(self, pending: PendingRequest) -> None:
        self._owner.cancelled(self, pending)


# Source: docs/spec/schedulers.md section 3.4, "Direct".


class DirectInstance:
    """Implements BackendInstance around that of the framework: request i of a batch is that of slot i.

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
        batch = [self._null(requests[0])] * size
        later: list[ResponseSender] = [_nobody() for _ in range(size)] if senders else []
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

    def _null(self, like: InferenceRequest) -> InferenceRequest:
        not_ready = self._controls.not_ready
        inputs = [not_ready.get(tensor.name) or _zeros(tensor) for tensor in like.inputs]
        return InferenceRequest(like.model_name, inputs, model_version=like.model_version, outputs=like.outputs)


def _zeros(tensor: InputTensor) -> InputTensor:
    datatype, shape = BY_NAME[tensor.datatype], tensor.array.shape
    array = bytes_array([b""] * element_count(shape), shape) if datatype is BYTES else np.zeros(shape, datatype.dtype)
    return made_tensor(tensor.name, datatype, array)


def _nobody() -> ResponseSender:
    return CollectingSender(CollectedAnswer())


class Lane:
    """A model instance with its batcher and the sequences that are bound to it. Guarded by the scheduler's lock.

    `sequences` are by slot. A lane that `is_leaving` gets no new sequence.
    """

    def __init__(self, instance: BackendInstance, slots: int) -> None:
        self.instance = instance
        self.batcher: DynamicBatcher
        self.sequences: dict[int, OpenSequence] = {}
        self.is_leaving = False
        self._slots = slots
        self._fresh = 0
        self._released: list[int] = []

    @property
    def lowest(self) -> int:
        """The lowest free slot; `slots` if none is free."""
        return self._released[0] if self._released else self._fresh

    @property
    def has_room(self) -> bool:
        return not self.is_leaving and self.lowest < self._slots

    def seat(self, sequence: OpenSequence) -> None:
        """Give `sequence` the lowest free slot."""
        if self._released:
            slot = heapq.heappop(self._released)
        else:
            slot = self._fresh
            self._fresh += 1
        sequence.lane, sequence.slot = self, slot
        self.sequences[slot] = sequence

    def release(self, sequence: OpenSequence) -> None:
        """Free the slot of `sequence`."""
        del self.sequences[sequence.slot]
        heapq.heappush(self._released, sequence.slot)
        if not self.sequences:
            self._fresh = 0
            self._released.clear()


# Source: docs/spec/schedulers.md section 3.4.


class Seating:
    """Not thread-safe: the scheduler's lock guards it. Times are monotonic ns.

    `open` are the sequences that further requests may join, by correlation id. `seated` are those in slots, the one
    that was not active for the longest time first; `backlog` the others, in the order of their START.
    """

    def __init__(self, lanes: Lanes, max_idle_ns: int) -> None:
        self.lanes = lanes
        self._max_idle_ns = max_idle_ns
        self._backlog_due_ns = sys.maxsize
        self.open: dict[int | str, OpenSequence] = {}
        self.seated: OrderedDict[OpenSequence, None] = OrderedDict()
        self.backlog: deque[OpenSequence] = deque()

    def __iter__(self) -> Iterator[OpenSequence]:
        """All sequences, those in slots first. They may be changed meanwhile."""
        return iter([*self.seated, *self.backlog])

    @property
    def waiting(self) -> int:
        """Requests that are in no instance's batcher yet."""
        return sum(sequence.queued for sequence in self)

    @property
    def due_ns(self) -> int:
        """When the time of the next sequence is over; `sys.maxsize` for never."""
        if not self.seated:
            return self._backlog_due_ns
        return min(self._backlog_due_ns, next(iter(self.seated)).active_ns + self._max_idle_ns)

    def begin(self, sequence: OpenSequence, now_ns: int) -> bool:
        """Open `sequence`, in the lowest free slot or, if there is none, in the backlog.

        Returns whether it is the first in a slot: until then there was no time at which one is over.
        """
        self.open[sequence.correlation_id] = sequence
        lane = self.lanes.roomiest
        if lane is None:
            self.backlog.append(sequence)
        else:
            self._seat(sequence, lane, now_ns)
        return len(self.seated) == 1

    def forget(self, sequence: OpenSequence) -> None:
        """Let no more requests join `sequence`."""
        if not sequence.is_ended:
            sequence.is_ended = True
            del self.open[sequence.correlation_id]

    def touch(self, sequence: OpenSequence, now_ns: int) -> None:
        """Note that a sequence in a slot is active."""
        sequence.active_ns = now_ns
        self.seated.move_to_end(sequence)

    def put_back(self, sequence: OpenSequence, pending: PendingRequest) -> bool:
        """Let `pending` wait in the backlog, until the timeout that it may have. Returns whether that is the first."""
        sequence.push(pending)
        if pending.request.timeout_us:
            expires_ns = pending.enqueue_ns + pending.request.timeout_us * 1000
            sequence.expires_ns = min(sequence.expires_ns or expires_ns, expires_ns)
            if expires_ns < self._backlog_due_ns:
                self._backlog_due_ns = expires_ns
                return True
        return False

    def leave(self, sequence: OpenSequence) -> None:
        """Take out a sequence that has no request any more."""
        if sequence.lane is None:
            self.backlog.remove(sequence)
            return
        sequence.lane.release(sequence)
        del self.seated[sequence]
        sequence.lane = None
        sequence.states = []

    def promote(self, now_ns: int) -> OpenSequence | None:
        """Give a free slot to the oldest sequence of the backlog; None if there is no slot or no sequence."""
        if not self.backlog:
            return None
        lane = self.lanes.roomiest
        if lane is None:
            return None
        sequence = self.backlog.popleft()
        self._seat(sequence, lane, now_ns)
        return sequence

    def idle(self, now_ns: int) -> Iterable[OpenSequence]:
        """The sequences in slots that were idle for too long. Each must leave before the next is asked for."""
        while self.seated:
            sequence = next(iter(self.seated))
            if sequence.active_ns + self._max_idle_ns > now_ns:
                return
            if sequence.is_busy:
                self.touch(sequence, now_ns)  # a request that waits or runs is not idleness
            else:
                yield sequence

    def expired(self, now_ns: int) -> list[OpenSequence]:
        """The sequences that have waited too long in the backlog."""
        if now_ns < self._backlog_due_ns:
            return []
        expired = [sequence for sequence in self.backlog if 0 < sequence.expires_ns <= now_ns]
        times = [sequence.expires_ns for sequence in self.backlog if sequence.expires_ns > now_ns]
        self._backlog_due_ns = min(times, default=sys.maxsize)
        return expired

    def _seat(self, sequence: OpenSequence, lane: Lane, now_ns: int) -> None:
        lane.seat(sequence)
        sequence.active_ns = now_ns
        self.seated[sequence] = None


# Source: docs/spec/schedulers.md section 3.4.


class MakeBatcher(Protocol):
    """Makes the batcher of instances, which executes nothing until `held` requests are queued."""

    def __call__(
        self, of: ModelSpec, using: Sequence[BackendInstance], held: int, through: Through | None, again: Again, /
    ) -> DynamicBatcher: ...


class Lanes:
    """Not thread-safe: the scheduler's lock guards it.

    `again` submits a request of an iterative model once more, in the lane that has executed it. The batcher of each
    instance waits for `delay_until` requests, once, before its first batch.
    """

    def __init__(
        self,
        spec: ModelSpec,
        controls: Controls,
        make_batcher: MakeBatcher,
        again: Callable[[Lane, PendingRequest], None],
        delay_until: int,
    ) -> None:
        assert spec.sequence is not None
        self._spec = spec
        self._sequence = spec.sequence
        self._batched = _batched(spec)
        self._controls = controls
        self._make_batcher = make_batcher
        self._again = again
        self._delay_until = delay_until
        self._lanes: list[Lane] = []

    def __iter__(self) -> Iterator[Lane]:
        """All lanes. There may be others meanwhile."""
        return iter(list(self._lanes))

    @property
    def queued(self) -> int:
        """Requests that wait for an execution."""
        return sum(lane.batcher.queued for lane in self._lanes)

    @property
    def in_flight(self) -> int:
        """Requests that are executed."""
        return sum(lane.batcher.in_flight for lane in self._lanes)

    @property
    def roomiest(self) -> Lane | None:
        """The lane for a new sequence: that with the lowest free slot; None if all slots are taken."""
        return min((lane for lane in self._lanes if lane.has_room), key=lambda lane: lane.lowest, default=None)

    def make(self, instance: BackendInstance) -> Lane:
        """A lane for a new instance, to be added. Raises ValueError for one that has a lane."""
        if any(lane.instance is instance for lane in self._lanes):
            raise ValueError(f"'{instance.placement.name}' is an instance already")
        lane = Lane(instance, self._sequence.slots)
        through: Through | None = None
        if self._sequence.is_direct:
            through = partial(DirectInstance, controls=self._controls, sequences=lane.sequences)
        again = partial(self._again, lane) if self._sequence.is_iterative else refuse_again
        lane.batcher = self._make_batcher(self._batched, [instance], self._delay_until, through, again)
        return lane

    def add(self, lane: Lane) -> None:
        """Let sequences have the slots of `lane`."""
        self._lanes.append(lane)

    def retire(self, instance: BackendInstance) -> Lane:
        """Seat no more sequences in the lane of `instance`. Raises ValueError for an unknown one, and the last one."""
        open_lanes = [lane for lane in self._lanes if not lane.is_leaving]
        lane = next((lane for lane in open_lanes if lane.instance is instance), None)
        if lane is None:
            raise ValueError(f"'{instance.placement.name}' is not an instance")
        if len(open_lanes) == 1:
            raise ValueError(f"'{instance.placement.name}' is the last instance")
        lane.is_leaving = True
        return lane

    def remove(self, lane: Lane) -> None:
        """Forget a lane without sequences, whose batcher is closed."""
        self._lanes.remove(lane)


def _batched(spec: ModelSpec) -> ModelSpec:
    """`spec` for the batcher of one instance, whose requests are those of different sequences."""
    sequence = spec.sequence
    assert sequence is not None
    batching = None
    if spec.max_batch_size > 0:
        batching = BatchingSpec(
            preferred_batch_sizes=sequence.preferred_batch_sizes, max_queue_delay_ns=sequence.max_queue_delay_ns
        )
    return replace(spec, batching=batching, sequence=None)


# Source: docs/spec/schedulers.md sections 3.3 and 3.4.


class Passage:
    """Gives a request what the model must know of its sequence, and takes the sequence's states from its responses.

    A sequence has one request in a batcher at a time, and the methods are called for that request alone: without the
    scheduler's lock. `first_states` are those of a sequence that begins.
    """

    def __init__(self, spec: ModelSpec, controls: Controls, initial: InitialStates) -> None:
        assert spec.sequence is not None
        self._states = States(spec, initial) if spec.sequence.states else None
        self.first_states: Inputs = [] if self._states is None else self._states.first
        self._placing = Placing(spec, controls, self._states)

    def enter(self, sequence: OpenSequence, pending: PendingRequest) -> None:
        """Give a request to its instance's batcher. The sequence is told of its responses, and of a refusal as one."""
        lane, sent, states = sequence.lane, pending.request, self._states
        assert lane is not None
        if states is not None:
            if sent.sequence_start:
                sequence.states = states.first
            if states.are_variable:
                pending.batch_key = (*(pending.batch_key or ()), *states.shapes(sequence.states))
        sequence.sent, sequence.on_response = sent, pending.on_response
        pending.request = sequence.executed = self._placing.placed(sent, sequence.states)
        pending.on_response = sequence.respond
        try:
            lane.batcher.submit(pending)
        except ServerError as error:
            sequence.respond(InferenceResponse.failed(sent, error))

    def enter_again(self, sequence: OpenSequence, pending: PendingRequest) -> None:
        """Give the batcher a request once more that its model gave back, with the states as they are now.

        Raises what the batcher raises.
        """
        lane, sent, states = sequence.lane, sequence.sent, self._states
        assert lane is not None
        assert sent is not None
        begun = sent.with_inputs(sent.inputs, model_version=sent.model_version, id=sent.id)
        begun.sequence_start, begun.arrived_ns, begun.trace = False, sent.arrived_ns, sent.trace
        if states is not None and states.are_variable:
            shapes = states.shapes(sequence.states)
            pending.batch_key = (*(pending.batch_key or ())[: -len(shapes)], *shapes)
        pending.request = sequence.executed = self._placing.placed(begun, sequence.states)
        pending.defer = None  # it is for the thread that submitted the request first
        lane.batcher.submit(pending)

    def take(self, sequence: OpenSequence, response: InferenceResponse) -> PendingRequest | None:
        """Take the states from a response, and pass it on if more will come.

        For the final one, which the caller passes on, returns the request as the client sent it.
        """
        pending, sent, on_response = sequence.inside, sequence.sent, sequence.on_response
        assert pending is not None
        assert sent is not None
        assert on_response is not None
        if self._states is not None and response.error is None:
            response.outputs, sequence.states = self._states.taken(response.outputs, sent.outputs, sequence.states)
        if not response.final:
            on_response(response)
            return None
        pending.request, pending.on_response = sent, on_response
        sequence.executed = sequence.sent = sequence.on_response = None
        return pending


#         the last request was answered, or it was idle for too long  -> its slot is free
#         it waited for too long in the backlog                       -> DeadlineExceeded
#         one of its requests was cancelled                           -> RequestCancelled
#         its instance has lost its states                            -> InvalidRequest, as without a START
#         the scheduler is closed                                     -> ServerStopping
#
# What waits in a sequence that ends early is answered with the error. Source: docs/spec/schedulers.md sections 3.3 and
# 3.4.


_log = logging.getLogger("trident.scheduling")

EndError = Callable[[PendingRequest], ServerError]


class Progress:
    """Every method is called under the scheduler's lock, and puts what must be done without it into a Change.

    `order` is None unless the responses keep the order of the requests. `first` is what the first batch waits for, None
    once it has begun. `unanswered` are the requests of all sequences that are not answered.
    """

    def __init__(
        self,
        model: str,
        seating: Seating,
        order: ResponseOrder | None,
        first: FirstBatch | None,
        lock: threading.Lock,
        clock: Clock,
    ) -> None:
        self._model = model
        self._seating = seating
        self._order = order
        self._clock = clock
        self._changed = threading.Condition(lock)
        self._watchers = 0
        self.first = first
        self.unanswered = 0

    # --- going on

    def go_on(self, sequence: OpenSequence, change: Change) -> None:
        """Let the next request of a sequence in a slot enter or, if it has ended, others have the slot.

        Call it only if no request is inside.
        """
        if sequence.waiting is not None and any(pending.cancelled for pending in sequence.waiting):
            self.end(sequence, cancelled, change)
        if sequence.waiting is not None:
            change.enter(sequence, sequence.pop())
            return
        if sequence.is_ended:
            self._seating.leave(sequence)
            if self._watchers:
                self._changed.notify_all()
            self.fill_slots(change)

    def fill_slots(self, change: Change) -> None:
        """Give the free slots to sequences of the backlog."""
        while (sequence := self._seating.promote(self._clock())) is not None:
            if self._order is not None:
                for pending in sequence.waiting or ():
                    self._order.enter(pending)
            if self.first is None:
                self.go_on(sequence, change)

    def release_first(self, change: Change) -> None:
        """Let the first requests enter, which have waited for each other."""
        self.first = None
        for lane in self._seating.lanes:
            ready = [lane.sequences[slot] for slot in sorted(lane.sequences)]
            lane.batcher.hold(len(ready))
            for sequence in ready:
                self.go_on(sequence, change)

    # --- ends

    def end(self, sequence: OpenSequence, error: EndError, change: Change) -> None:
        """Refuse all that waits in `sequence`, which gets no more requests. It keeps its slot."""
        self._seating.forget(sequence)
        for pending in sequence.pop_all():
            change.refuse(pending, error(pending))
            self.count_off()

    def end_now(self, sequence: OpenSequence, error: EndError, change: Change) -> None:
        """`end` it. It leaves its slot, or the backlog, as soon as no request is inside."""
        self.end(sequence, error, change)
        if sequence.lane is None:
            self._seating.leave(sequence)
        elif sequence.inside is None:
            self.go_on(sequence, change)

    def end_lost(self, lane: Lane, change: Change) -> None:
        """End the sequences of a lane whose instance has lost their states."""
        for sequence in list(lane.sequences.values()):
            self.end_now(sequence, _forgotten, change)

    def end_overdue(self, change: Change) -> int:
        """End the sequences whose time is over. Returns when the next one's is; `sys.maxsize` for never."""
        now_ns = self._clock()
        for sequence in self._seating.idle(now_ns):
            _log.debug("sequence %s of model '%s' was idle for too long", sequence.correlation_id, self._model)
            self._seating.forget(sequence)
            self.go_on(sequence, change)
        for sequence in self._seating.expired(now_ns):
            self.end_now(sequence, _expired, change)
        return self._seating.due_ns

    def end_after_requests(self, change: Change) -> None:
        """Let all sequences end with the requests that they have."""
        for sequence in self._seating:
            self._seating.forget(sequence)
            if not sequence.is_busy:
                self.go_on(sequence, change)

    def end_all(self, change: Change, because: str = "") -> None:
        """End all sequences now, those of the backlog first, so that none of them gets a slot."""
        self.first = None
        for sequence in [*self._seating.backlog, *self._seating.seated]:
            self.end_now(sequence, lambda pending: stopping(pending, self._model, because), change)

    # --- waiting for ends

    def count_off(self) -> None:
        """Note that a request is answered."""
        self.unanswered -= 1
        if self._watchers:
            self._changed.notify_all()

    def wait(self, is_so: Callable[[], object], timeout_s: float | None = None) -> bool:
        """Release the lock and block until it is so. Returns whether that came in time."""
        self._watchers += 1
        try:
            return bool(self._changed.wait_for(is_so, timeout_s))
        finally:
            self._watchers -= 1


def cancelled(pending: PendingRequest) -> ServerError:
    """It has no text, as in Triton."""
    return RequestCancelled("", model=pending.request.model_name)


def _forgotten(pending: PendingRequest) -> ServerError:
    return start_missing(pending.request)


def _expired(pending: PendingRequest) -> ServerError:
    reason = "timeout of the corresponding sequence has been expired"
    return DeadlineExceeded(reason, model=pending.request.model_name)


class SequenceScheduler:
    """Implements Scheduler for models whose requests form sequences.

    A sequence is bound to a slot of an instance from its START to its END, until it is idle for too long, or until one
    of its requests is cancelled. The instance's batcher has at most one request of it; the next one enters when that is
    answered. So requests run in their order, and the states are known. No lock is held while a request enters a batcher
    or is answered.

    An iterative sequence is one request, whose id the scheduler may choose. It has its slot until its final response;
    whenever its model gives it back, it enters the batcher again, together with those that are new.

    `initial` are the first values of the states, by input. `delay_until` and `backlog_delay_until` are the requests in
    slots and in the backlog for which it waits, once, before the first batch.
    """

    def __init__(
        self,
        spec: ModelSpec,
        instances: Sequence[BackendInstance],
        statistics: ModelStatistics,
        make_batcher: MakeBatcher,
        *,
        initial: InitialStates,
        clock: Clock = time.monotonic_ns,
        delay_until: int = 0,
        backlog_delay_until: int = 0,
    ) -> None:
        sequence = spec.sequence
        assert sequence is not None
        self._spec = spec
        self._sequence = sequence
        self._statistics = statistics
        self._clock = clock
        self._controls = Controls(sequence, batching=spec.max_batch_size > 0)
        self._passage = Passage(spec, self._controls, initial)
        self._order = ResponseOrder(deliver) if sequence.preserve_ordering else None
        self._respond: Respond = self._order.respond if self._order else deliver
        self._refuse: Respond = self._order.leave if self._order else deliver
        self._timeouts = TimeoutThread(spec.name, self._reap)
        self._lock = threading.Lock()
        # As in Triton the requests in all slots count for a direct scheduler, those of each instance for the other one.
        first = FirstBatch(delay_until, backlog_delay_until) if sequence.is_direct and delay_until else None
        lane_delay = 0 if sequence.is_direct else delay_until
        # --- guarded by the lock
        self._lanes = Lanes(spec, self._controls, make_batcher, self._again, lane_delay)
        for instance in instances:
            self._lanes.add(self._lanes.make(instance))
        self._seating = Seating(self._lanes, sequence.max_idle_ns)
        self._progress = Progress(spec.name, self._seating, self._order, first, self._lock, clock)
        self._numbers = itertools.count(1)
        self._started = False
        self._stopped = False
        self._accepts_open = True

    @property
    def queued(self) -> int:
        """Requests that wait behind others of their sequence, for a slot, or for an execution."""
        with self._lock:
            return self._seating.waiting + self._lanes.queued

    @property
    def in_flight(self) -> int:
        """Requests that are executed. A sequence that is open and has no request is not among them."""
        with self._lock:
            return self._lanes.in_flight

    def start(self) -> None:
        with self._lock:
            self._started = True
            lanes = list(self._lanes)
        for lane in lanes:
            lane.batcher.start()
        self._timeouts.start()

    # --- requests

    def submit(self, pending: PendingRequest) -> None:
        """Queue `pending` in its sequence. Raises InvalidRequest or ServerStopping. See Scheduler."""
        request, is_iterative = pending.request, self._sequence.is_iterative
        if pending.batch_size > 1 or not (request.correlation_id or is_iterative):
            raise form_problem(pending)
        if request.correlation_id:
            self._controls.check(request)
        else:
            request.sequence_start = True
        now_ns = self._clock()
        pending.enqueue_ns = now_ns
        if not pending.start_ns:
            pending.start_ns = now_ns
        change = Change()
        with self._lock:
            sequence = self._seating.open.get(request.correlation_id)
            if sequence is None or self._stopped or request.sequence_start:
                sequence = self._begin(sequence, pending)
            if request.sequence_end or is_iterative:
                self._seating.forget(sequence)
            progress = self._progress
            progress.unanswered += 1
            if sequence.lane is None:
                if self._seating.put_back(sequence, pending):
                    self._timeouts.wake()
            else:
                self._seating.touch(sequence, now_ns)
                if self._order is not None:
                    self._order.enter(pending)
                if sequence.is_busy or progress.first is not None:
                    sequence.push(pending)
                else:
                    change.enter(sequence, pending)
            first = progress.first
            if first is not None and (self._stopped or first.is_due(self._seating)):
                progress.release_first(change)
        self._make(change)

    def _begin(self, sequence: OpenSequence | None, pending: PendingRequest) -> OpenSequence:
        """The sequence that `pending` begins, or begins anew: `sequence`, if that is open. Raises. Under the lock."""
        request = pending.request
        refusal = self._refusal(pending, sequence)
        if refusal is not None:
            raise refusal
        if not request.correlation_id:
            request.correlation_id = self._controls.id_of(next(self._numbers))
        if sequence is None:
            sequence = OpenSequence(self, request.correlation_id, self._passage.first_states)
            if self._seating.begin(sequence, pending.enqueue_ns):
                self._timeouts.wake()
        elif request.sequence_start:
            _log.warning(
                "sequence %s for model '%s' has a conflict. The previous sequence did not end before this sequence "
                "start. Previous sequence will be terminated early.",
                request.correlation_id,
                self._spec.name,
            )
        return sequence

    def _refusal(self, pending: PendingRequest, sequence: OpenSequence | None) -> ServerError | None:
        """Why `pending` is not accepted. Under the lock."""
        if self._stopped and not self._accepts_open:
            return stopping(pending, self._spec.name)
        begins_none = self._stopped and not pending.is_nested
        return place_problem(pending, is_open=sequence is not None, is_stopped=begins_none)

    def _make(self, change: Change) -> None:
        """Do what follows from a change, without the lock."""
        for rejection in change.rejections:
            reject(rejection, self._statistics, self._refuse, self._clock())
        for sequence, pending in change.entering:
            self._passage.enter(sequence, pending)

    def _again(self, lane: Lane, pending: PendingRequest) -> None:
        """Let the request inside a sequence, which its model gave back, enter once more. See `Again`."""
        if pending.cancelled:
            raise cancelled(pending)
        with self._lock:
            sequence = next(sequence for sequence in lane.sequences.values() if sequence.inside is pending)
        self._passage.enter_again(sequence, pending)

    def answered(self, sequence: OpenSequence, response: InferenceResponse) -> None:
        """Pass a response to the request inside `sequence` on; after the final one the next request enters."""
        pending = self._passage.take(sequence, response)
        if pending is None:
            return
        change = Change()
        with self._lock:
            sequence.inside = None
            progress = self._progress
            progress.count_off()
            if isinstance(response.error, RequestCancelled):
                progress.end(sequence, cancelled, change)
            self._seating.touch(sequence, self._clock())
            progress.go_on(sequence, change)
        self._respond(pending, response)
        self._make(change)

    def cancelled(self, sequence: OpenSequence, pending: PendingRequest) -> None:
        """A request that waits was cancelled, so the whole sequence ends. Any thread."""
        change = Change()
        with self._lock:
            if sequence.waiting is None or pending not in sequence.waiting:
                return
            self._progress.end_now(sequence, cancelled, change)
        self._make(change)

    def _reap(self) -> float | None:
        """End the sequences whose time is over. Returns after how many seconds the next one's is."""
        change = Change()
        with self._lock:
            due_ns = self._progress.end_overdue(change)
        self._make(change)
        return None if due_ns == sys.maxsize else max(0, due_ns - self._clock()) / 1e9

    # --- instances

    def add(self, instance: BackendInstance) -> None:
        """Give `instance` sequences, first of the backlog. See Scheduler."""
        change = Change()
        with self._lock:
            if self._stopped:
                raise ServerStopping("Server is stopping, scheduler for model has ended", model=self._spec.name)
            lane = self._lanes.make(instance)
            if self._started:
                lane.batcher.start()
            self._lanes.add(lane)
            self._progress.fill_slots(change)
        self._make(change)

    def remove(self, instance: BackendInstance) -> None:
        """Begin no sequence on `instance`, and block until those that it has have ended. See Scheduler."""
        with self._lock:
            lane = self._lanes.retire(instance)
            self._progress.wait(lambda: not lane.sequences)
        lane.batcher.close()
        with self._lock:
            self._lanes.remove(lane)

    def forget(self, instance: BackendInstance) -> None:
        """End the sequences of `instance`, which has lost their states. See Scheduler."""
        change = Change()
        with self._lock:
            lost = [lane for lane in self._lanes if lane.instance is instance]
            for lane in lost:
                self._progress.end_lost(lane, change)
        self._make(change)
        for lane in lost:
            lane.batcher.forget(instance)

    # --- the end

    def stop(self, *, accept_nested: bool = False) -> None:
        """Begin no more sequences.

        With `accept_nested` the server stops: open sequences may go on, but nobody waits for those without a request.
        Without it another version takes over, and they end with the requests that they have.
        """
        change = Change()
        with self._lock:
            self._stopped = True
            self._accepts_open = accept_nested
            if self._progress.first is not None:
                self._progress.release_first(change)
            for lane in self._lanes:
                lane.batcher.hold(0)
            if not accept_nested:
                self._progress.end_after_requests(change)
        self._make(change)

    def drain(self, timeout_s: float | None = None) -> bool:
        """Block until all requests are answered. See Scheduler."""
        deadline = None if timeout_s is None else time.monotonic() + timeout_s
        with self._lock:
            if not self._progress.wait(lambda: not self._progress.unanswered, timeout_s):
                return False
            lanes = list(self._lanes)
        return all(lane.batcher.drain(None if deadline is None else deadline - time.monotonic()) for lane in lanes)

    def close(self, timeout_s: float | None = None, because: str = "") -> bool:
        """Stop, answer what is queued with ServerStopping, and block until what executes has finished."""
        change = Change()
        with self._lock:
            self._stopped = True
            self._accepts_open = False
            lanes = list(self._lanes)
            self._progress.end_all(change, because)
        self._make(change)
        ended = [lane.batcher.close(timeout_s, because) for lane in lanes]
        return all([*ended, self._timeouts.close(timeout_s)])
