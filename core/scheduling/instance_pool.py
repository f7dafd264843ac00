"""The instances of one scheduler: which of their threads rest, and how many requests they have taken."""

from __future__ import annotations

import threading
from collections.abc import Callable

from trident.core.scheduling.batch_forming import Wait, Work
from trident.core.scheduling.instance import ENDED, HOLDING, IDLE, LENT, RUNNING, WAITING, WOKEN, ModelInstance
from trident.core.scheduling.open_requests import OpenRequests
from trident.core.scheduling.queue import RequestQueue


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
