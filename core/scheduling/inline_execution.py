"""Executing queued requests on the submitting thread, on the instance of a thread that rests.

Handing the interpreter to an instance thread and back takes longer than a short execution. So if the recent executions
were short and no instance thread is awake, none is woken. Instead the submitting thread defers `run`, and executes the
queued requests itself after it has submitted all of them. If a batch has to wait and the submitting thread has a timer,
the thread comes back to it when the wait is over: no other thread is woken for the wait and none for the responses.
Without a timer the batch is left to an instance thread, which can wait.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Final

from trident.core.inference.request import CALLERS, DELAY, IDLE
from trident.core.scheduling.execution import ShortExecutions
from trident.core.scheduling.instance import Work, take_work
from trident.core.scheduling.instance_pool import InstancePool, InstanceThread
from trident.core.scheduling.limits import LimitsInForce, Wait
from trident.core.scheduling.queue import RequestQueue
from trident.core.waiting.waiting import timer_of_thread

TURN_NS: Final = 4_000_000
"""The time after which the submitting thread leaves the rest of the queue to the instance's own thread."""
# Nothing came in such a part of the delay, at its end, if the clients have sent all that they can.
_RESTS = 4


class InlineExecution:
    """Borrows a resting thread's instance. `lock` is the scheduler's; it guards `queue` and `pool`."""

    __slots__ = ("_clock", "_limits", "_lock", "_pool", "_queue", "_short", "_size_before")

    def __init__(
        self,
        lock: threading.Lock,
        queue: RequestQueue,
        pool: InstancePool,
        limits: LimitsInForce,
        short: ShortExecutions,
        clock: Callable[[], int],
    ) -> None:
        self._lock = lock
        self._queue = queue
        self._pool = pool
        self._limits = limits
        self._short = short
        self._clock = clock
        # Of the batch that was taken last on a submitting thread.
        self._size_before = 0

    @property
    def is_possible(self) -> bool:
        """Under the lock."""
        pool = self._pool
        # `pool.lendable` without its call, because each request asks.
        thread = pool.holder or (pool.idle[-1] if pool.idle else None)
        return thread is not None and not pool.waking and thread.backend.may_run_inline and self._short.lasting

    def run(self) -> None:
        """Execute queued requests on the calling thread, as long as the executions are short."""
        with self._lock:
            thread = self._pool.lendable
            if thread is None or not self.is_possible:
                self._pool.wake(self._queue.items)
                return
            self._pool.lend(thread)
            until_ns = self._clock() + TURN_NS
            work = self._next_work(thread, until_ns)
        while work is not None:
            if work.reason is not IDLE:
                self._note_rest(work)
            thread.instance.perform(work, inline=True)
            with self._lock:
                self._pool.finish(thread)
                work = self._next_work(thread, until_ns)

    def _note_rest(self, work: Work) -> None:
        """Tell the timer, if all clients seem to wait for responses: the end of the delay has closed a batch whose last
        request came long before, and which is not smaller than the one before."""
        before, self._size_before = self._size_before, len(work.batch)
        if work.reason is CALLERS:
            timer = timer_of_thread()
            if timer is not None:
                timer.note_rest()
        elif work.reason is DELAY and before <= len(work.batch):
            timer = timer_of_thread()
            delay_ns = self._limits.current.delay_ns
            if timer is not None and self._clock() - work.batch[-1].enqueue_ns >= delay_ns // _RESTS:
                timer.note_rest()

    def _next_work(self, thread: InstanceThread, until_ns: int) -> Work | None:
        """Take work for the lent `thread`, or give the thread back and return None. Under the lock."""
        pool = self._pool
        claim = thread.instance.claim
        now_ns = self._clock()
        wait = None
        if now_ns <= until_ns and not thread.retired and not pool.closed:
            may_run = None if claim is None else claim.try_take
            work = take_work(self._queue, self._limits.current, now_ns, self._short, may_run)
            if isinstance(work, Work):
                pool.take(thread, work, self._queue)
                return work
            if isinstance(work, Wait) and self._short.lasting:
                wait = work
        if claim is not None:
            claim.withdraw()  # it may have asked for another turn when its last execution ended
        timer = timer_of_thread() if wait is not None else None
        if wait is not None and timer is not None:
            pool.hold(thread, wait)
            timer.call_at(wait.until_ns, self.run)
        else:
            pool.take_back(thread, self._queue.items)
        return None
