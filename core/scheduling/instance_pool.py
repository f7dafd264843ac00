"""The instance threads of one scheduler: which of them rest, and how many requests they have taken."""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Final

from trident.core.backends.backend import BackendInstance
from trident.core.scheduling.instance import ModelInstance, Work
from trident.core.scheduling.limits import Wait
from trident.core.scheduling.queue import RequestQueue

if TYPE_CHECKING:
    from trident.core.scheduling.open_requests import OpenRequests


class ThreadState(Enum):
    """`next` are the states that may follow."""

    next: tuple[ThreadState, ...]

    RUNNING = "executes, or looks for work"
    IDLE = "rests until it is woken"
    HOLDING = "rests until it is woken or the queue delay is over"
    WAITING = "rests until it is its turn to hold the resources of an execution"
    WOKEN = "has its token and will look for work"
    LENT = "rests while another thread executes on its instance"
    DISMISSED = "has its token and will end"


# In Python 3.11 a member costs a function call when it is looked up on its class.
RUNNING: Final = ThreadState.RUNNING
IDLE: Final = ThreadState.IDLE
HOLDING: Final = ThreadState.HOLDING
WAITING: Final = ThreadState.WAITING
WOKEN: Final = ThreadState.WOKEN
LENT: Final = ThreadState.LENT
DISMISSED: Final = ThreadState.DISMISSED

RUNNING.next = (IDLE, HOLDING, WAITING)
IDLE.next = (WOKEN, LENT, RUNNING, DISMISSED)
HOLDING.next = (WOKEN, LENT, IDLE, RUNNING, DISMISSED)
WAITING.next = (RUNNING,)
WOKEN.next = (RUNNING,)
LENT.next = (IDLE, HOLDING, WOKEN, DISMISSED)
DISMISSED.next = ()


class InstanceThread:
    """Runs `serve`, with itself as the argument, once. Every attribute that changes is guarded by the scheduler's lock.

    `token` is a binary semaphore: the thread rests by acquiring it, and whoever moves the thread to WOKEN or DISMISSED
    releases it. A lock costs no more than any other way to wake a thread (29 µs there and back on the reference
    machine, as `SimpleQueue`) and can be acquired with a time limit. `retired` tells the thread to end when it next
    looks for work. `taken` is the number of requests that it has taken and not finished, without `open_requests`: those
    are done when their final response was delivered. `wait` is valid while HOLDING.

    When the thread ends it drops its reference to the scheduler. So an unloaded model is freed at once, not when the
    garbage collector finds the cycle.
    """

    def __init__(
        self,
        backend: BackendInstance,
        instance: ModelInstance,
        serve: Callable[[InstanceThread], None],
        open_requests: OpenRequests | None = None,
    ) -> None:
        self.backend = backend
        self.instance = instance
        self.open_requests = open_requests
        self.token = threading.Lock()
        self.token.acquire()
        self.state: ThreadState = RUNNING
        self.retired = False
        self.taken = 0
        self.wait = Wait(0, 0, None, 0)
        self._own_thread = threading.Thread(target=serve, args=(self,), name=f"trident-{instance.name}", daemon=True)

    def move(self, state: ThreadState) -> None:
        """Raises RuntimeError for a move that the states do not allow, which is a bug."""
        if state not in self.state.next:
            raise RuntimeError(f"instance thread '{self.instance.name}' cannot go from {self.state} to {state}")
        self.state = state

    def interrupt(self) -> None:
        """Have a WAITING thread look for work now."""
        claim = self.instance.claim
        if claim is not None:
            claim.interrupt()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs on this thread."""
        return self._own_thread is threading.current_thread()

    def start(self) -> None:
        self._own_thread.start()

    def join(self, timeout_s: float | None) -> bool:
        """Wait for the thread to end, unless it is the calling one or was never started. Returns whether it ended."""
        if self._own_thread.ident is not None and not self.is_current:
            self._own_thread.join(timeout_s)
        return not self._own_thread.is_alive()


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
        self.idle: list[InstanceThread] = []
        self.holder: InstanceThread | None = None
        self._waiting: list[InstanceThread] = []
        self.waking = 0
        self.in_flight = 0
        self.closed = False

    def rest(self, thread: InstanceThread) -> None:
        """RUNNING, HOLDING or LENT -> IDLE"""
        thread.move(IDLE)
        self.idle.append(thread)

    def hold(self, thread: InstanceThread, wait: Wait) -> None:
        """RUNNING or LENT -> HOLDING. A thread that holds already becomes idle, because the later decision counts."""
        if self.holder is not None:
            self._relieve(self.holder)
        thread.move(HOLDING)
        thread.wait = wait
        self.holder = thread

    def wait(self, thread: InstanceThread) -> None:
        """RUNNING -> WAITING

        Wakes a thread that rests, too, if no waiting one needs the same as it: its turn may come earlier.
        """
        thread.move(WAITING)
        self._waiting.append(thread)
        self.waking += 1
        awaited = [waiting.instance.needs for waiting in self._waiting]
        for idle in self.idle:
            if idle.instance.needs not in awaited:
                self.idle.remove(idle)
                self._wake(idle)
                return

    def _relieve(self, holder: InstanceThread) -> None:
        """HOLDING -> IDLE. The thread's time limit may still wake it once, in vain."""
        self.holder = None
        self.rest(holder)

    def wake_idle(self, items: int) -> None:
        """IDLE -> WOKEN for one thread, if the queue holds more `items` than the WOKEN threads can take."""
        if self.idle and items > self.waking * self._max_batch_size:
            self._wake(self.idle.pop())

    def wake(self, items: int) -> None:
        """Wake the holder, or without one an idle thread for `items`."""
        if self.holder is not None:
            self.wake_holder()
        else:
            self.wake_idle(items)

    def wake_holder(self) -> None:
        """HOLDING -> WOKEN. Call it only if a thread holds."""
        holder = self.holder
        assert holder is not None
        self.holder = None
        self._wake(holder)

    def rise(self, thread: InstanceThread) -> None:
        """WOKEN or WAITING -> RUNNING, or IDLE or HOLDING -> RUNNING if the time limit has woken the thread."""
        state = thread.state
        if state is DISMISSED:
            return
        if state is WOKEN:
            self.waking -= 1
            thread.token.acquire(blocking=False)  # the token may have been released just after the time limit
        elif state is WAITING:
            self.waking -= 1
            self._waiting.remove(thread)
        else:
            self._withdraw(thread)
        thread.move(RUNNING)

    @property
    def lendable(self) -> InstanceThread | None:
        """The thread that holds, because it waits for the requests that are queued, or that went to rest last."""
        return self.holder or (self.idle[-1] if self.idle else None)

    def lend(self, thread: InstanceThread) -> None:
        """IDLE or HOLDING -> LENT. The time limit of a thread that held may still wake it once, in vain."""
        self._withdraw(thread)
        thread.move(LENT)

    def take_back(self, thread: InstanceThread, items: int) -> None:
        """LENT -> IDLE, or on its way to end if it was retired or the pool closed. `items` are still queued."""
        if thread.retired:
            self._dismiss(thread)
        elif self.closed:
            self._wake(thread)
        else:
            self.rest(thread)
            if items:
                self.wake_idle(items)

    def retire(self, thread: InstanceThread) -> None:
        """Have `thread` end when it next looks for work.

        A resting thread is dismissed at once. It does not count as woken, so a request that arrives wakes another.
        """
        thread.retired = True
        if thread.state is WAITING:
            thread.interrupt()
        elif thread.state is IDLE or thread.state is HOLDING:
            self._withdraw(thread)
            self._dismiss(thread)

    def close(self) -> None:
        """Wake every resting thread and keep none at rest from now on."""
        self.closed = True
        if self.holder is not None:
            self._relieve(self.holder)
        for waiting in self._waiting:
            waiting.interrupt()
        while self.idle:
            self._wake(self.idle.pop())

    def take(self, thread: InstanceThread, work: Work, queue: RequestQueue) -> None:
        """Note that `thread` has taken `work` from `queue`, and wake another thread for the rest of the queue.

        The holder may have waited for requests that left with the batch, so it becomes idle first.
        """
        thread.taken = taken = len(work.batch) + len(work.rejections)
        self.in_flight += taken
        if work.batch:
            if thread.open_requests is not None:
                thread.taken = len(work.rejections)
                thread.open_requests.size += len(work.batch)
            if self.holder is not None:
                self._relieve(self.holder)
            if queue.size:
                self.wake_idle(queue.items)

    def finish(self, thread: InstanceThread) -> None:
        """Note that all requests that `thread` has taken are done, except for open ones."""
        self.in_flight -= thread.taken
        thread.taken = 0
        if self._drainers and not self.in_flight:
            self._drained.notify_all()

    def count_off(self, count: int) -> None:
        """Note that `count` requests in flight are done which no thread has taken."""
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

    def _wake(self, thread: InstanceThread) -> None:
        thread.move(WOKEN)
        self.waking += 1
        thread.token.release()

    def _dismiss(self, thread: InstanceThread) -> None:
        thread.move(DISMISSED)
        thread.token.release()

    def _withdraw(self, thread: InstanceThread) -> None:
        """Take an IDLE or HOLDING thread out of the resting ones."""
        if thread is self.holder:
            self.holder = None
        else:
            self.idle.remove(thread)
