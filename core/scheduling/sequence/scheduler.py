"""The sequence batcher.

    START -> a slot of an instance -> the instance's dynamic batcher, one request of each sequence at a time
          -> the backlog, while all slots are taken

Source: docs/spec/schedulers.md sections 3.3 and 3.4; docs/spec/repository.md section 1.6.
"""

from __future__ import annotations

import itertools
import logging
import sys
import threading
import time
from collections.abc import Sequence

from core.backends.base import BackendInstance
from core.config.model_spec import ModelSpec
from core.errors import RequestCancelled, ServerError, ServerStopping
from core.inference.pending_request import PendingRequest
from core.inference.response import InferenceResponse
from core.observability.model_statistics import ModelStatistics
from core.scheduling.delivery import Respond, deliver
from core.scheduling.execution import Clock
from core.scheduling.reaper import Reaper
from core.scheduling.rejection import reject, stopping
from core.scheduling.response_order import ResponseOrder
from core.scheduling.sequence.change import Change
from core.scheduling.sequence.controls import Controls
from core.scheduling.sequence.first_batch import FirstBatch
from core.scheduling.sequence.lane import Lane
from core.scheduling.sequence.lanes import Lanes, MakeBatcher
from core.scheduling.sequence.open_sequence import OpenSequence
from core.scheduling.sequence.passage import Passage
from core.scheduling.sequence.progress import Progress, cancelled
from core.scheduling.sequence.rules import form_problem, place_problem
from core.scheduling.sequence.seating import Seating
from core.scheduling.sequence.states import InitialStates

_log = logging.getLogger("trident.scheduling")


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
        self._reaper = Reaper(spec.name, self._reap)
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
        self._reaper.start()

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
                    self._reaper.wake()
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
                self._reaper.wake()
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
        return all([*ended, self._reaper.close(timeout_s)])
