"""Which sequences are open, which of them have slots, and which wait in the backlog for one.

Source: docs/spec/schedulers.md section 3.4.
"""

from __future__ import annotations

import sys
from collections import OrderedDict, deque
from collections.abc import Iterable, Iterator

from core.inference.pending_request import PendingRequest
from core.scheduling.sequence.lane import Lane
from core.scheduling.sequence.lanes import Lanes
from core.scheduling.sequence.open_sequence import OpenSequence


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
