"""Short executions on the submitting thread.

Handing the interpreter to an instance thread and back takes longer than a short execution. So if the recent executions
were short and no instance thread is awake, none is woken: the submitting thread borrows the instance of an idle thread,
and executes the batch itself after it has submitted all its requests. A batch that has to wait is left to the instance
thread.
Source: docs/processes.md, "Which thread runs a batch".
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from typing import Final

from trident.core.config.spec import ModelSpec
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.tensors import BYTES
from trident.core.scheduling.batch_forming import Run, Wait, Work, take_work
from trident.core.scheduling.context import Clock
from trident.core.scheduling.instance import ModelInstance
from trident.core.scheduling.instance_pool import InstancePool

LONGEST_NS: Final = 4_000_000
"""Time after which the submitting thread hands the rest of the queue to the instance's own thread."""


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
        """Return True if executing `batch` will be short: the last 16 were, and one had at least half its input."""
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


class InlineExecution:
    """The executions of a scheduler on submitting threads.

    `short` also learns from the executions on the instances' own threads.
    """

    def __init__(self, short: ShortExecutions, pool: InstancePool, lock: threading.Lock, clock: Clock) -> None:
        self._short = short
        self._pool = pool
        self._lock = lock
        self._clock = clock

    def is_possible(self) -> bool:
        """Return True if the submitting thread may execute on an instance now. Under the lock."""
        pool = self._pool
        # `pool.borrowable` without its call, because each request asks.
        instance = pool.delaying or (pool.idle[-1] if pool.idle else None)
        return instance is not None and not pool.waking and instance.executing.may_run_inline and self._short.lasting

    def borrow_for(self, pending: PendingRequest) -> ModelInstance | None:
        """Take an instance for `pending` alone, which needs no queue; None if it has to be queued. Under the lock.

        It would be the whole batch, closed because nothing else waits.
        """
        pool = self._pool
        queue, limits = pool.queue, pool.limits
        if (
            queue.size
            or queue.delay_until
            or pool.delaying is not None
            or limits.delay_ns
            or pending.batch_size in limits.preferred
            or pending.cancelled
            or pending.defer is None
            or not self.is_possible()
            or not self._short.expected((pending,))
        ):
            return None
        instance = pool.idle[-1]
        if instance.reservation is not None or instance.open_requests is not None:
            return None
        pool.borrow(instance)
        instance.taken = 1
        pool.in_flight.count += 1
        return instance

    def execute_queued(self) -> None:
        """Execute queued requests on the calling thread, as long as the executions are short."""
        pool = self._pool
        with self._lock:
            instance = pool.borrowable
            if instance is None or not self.is_possible():
                pool.wake()
                return
            until_ns = self._clock() + LONGEST_NS
            pool.borrow(instance)
            work = self._next_work(instance, until_ns)
        if work is not None:
            self.execute(instance, work, until_ns)

    def execute(self, instance: ModelInstance, work: Work, until_ns: int) -> None:
        """Execute `work`, and then queued requests, on the borrowed `instance` until it is returned."""
        following: Work | None = work
        while following is not None:
            instance.perform(following, inline=True)
            with self._lock:
                self._pool.finish(instance)
                following = self._next_work(instance, until_ns)

    def _next_work(self, instance: ModelInstance, until_ns: int) -> Work | None:
        """Take work for the borrowed `instance`; or return the instance, and return None or raise. Under the lock."""
        pool, reservation = self._pool, instance.reservation
        work: Work | Wait | Run | None = None
        try:
            now_ns = self._clock()
            if now_ns <= until_ns and not instance.is_removed and not pool.closed:
                may_run = None if reservation is None else reservation.try_take
                is_short = self._short.expected
                work = take_work(pool.queue, pool.limits, now_ns, is_short=is_short, may_run=may_run)
                if isinstance(work, Work):
                    pool.take(instance, work)
                    return work
        finally:
            if not isinstance(work, Work):
                if reservation is not None:
                    reservation.withdraw()  # it may have asked again when its last execution ended
                pool.take_back(instance)
        return None
