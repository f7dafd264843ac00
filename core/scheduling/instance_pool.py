"""The instances of a scheduler: their idle threads, and the choice of the thread to wake for queued requests."""

from __future__ import annotations

import threading
from collections.abc import Callable

from trident.core.scheduling.batch_forming import BatchLimits, Wait, Work
from trident.core.scheduling.instance import (
    BORROWED,
    DELAYING,
    ENDED,
    IDLE,
    RUNNING,
    WAITING,
    WOKEN,
    ModelInstance,
)
from trident.core.scheduling.queue import InFlight, RequestQueue


class InstancePool:
    """Moves the threads of a scheduler between their states. Every method is called under the scheduler's lock.

    `idle` are the IDLE threads, the one that went idle last at the end. `delaying` is the DELAYING thread, one at most.
    `waking` counts the WOKEN and the WAITING threads, which will take requests. A `closed` pool keeps no thread idle.
    The threads take batches from `queue`, as `limits` say.
    """

    __slots__ = ("_waiting", "closed", "delaying", "idle", "in_flight", "limits", "queue", "waking")

    def __init__(self, lock: threading.Lock, queue: RequestQueue, limits: BatchLimits) -> None:
        self.queue = queue
        self.limits = limits
        self.in_flight = InFlight(lock)
        self.idle: list[ModelInstance] = []
        self.delaying: ModelInstance | None = None
        self._waiting: list[ModelInstance] = []
        self.waking = 0
        self.closed = False

    def park(self, instance: ModelInstance) -> None:
        """RUNNING, DELAYING or BORROWED -> IDLE."""
        instance.move(IDLE)
        self.idle.append(instance)

    def hold(self, instance: ModelInstance, wait: Wait) -> None:
        """RUNNING -> DELAYING. The thread that is DELAYING already becomes IDLE, because the later decision counts."""
        if self.delaying is not None:
            self._relieve(self.delaying)
        instance.move(DELAYING)
        instance.wait = wait
        self.delaying = instance

    def wait(self, instance: ModelInstance) -> None:
        """RUNNING -> WAITING

        Wakes an idle thread, too, if no waiting one needs the same resources: they may be free earlier.
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

    def _relieve(self, delaying: ModelInstance) -> None:
        """DELAYING -> IDLE. The thread's time limit may still wake it once, in vain."""
        self.delaying = None
        self.park(delaying)

    def wake_idle(self) -> None:
        """IDLE -> WOKEN for one thread, if the queue holds more items than the WOKEN threads can take."""
        if self.idle and self.queue.items > self.waking * self.limits.max_batch_size:
            self._wake(self.idle.pop())

    def wake(self) -> None:
        """Wake the DELAYING thread, or without one an idle thread, for queued requests."""
        delaying = self.delaying
        if delaying is None:
            self.wake_idle()
        else:
            self.delaying = None
            self._wake(delaying)

    def send(self, device: str, call: Callable[[], None]) -> bool:
        """IDLE -> WOKEN for a thread of `device`, which makes `call`. False if none of them is idle."""
        for instance in self.idle:
            if instance.backend.placement.device == device:
                instance.call = call
                self.idle.remove(instance)
                self._wake(instance)
                return True
        return False

    def rise(self, instance: ModelInstance) -> None:
        """WOKEN or WAITING -> RUNNING, or IDLE or DELAYING -> RUNNING if the time limit has woken the thread."""
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
    def borrowable(self) -> ModelInstance | None:
        """The DELAYING thread, or else the one that went idle last."""
        return self.delaying or (self.idle[-1] if self.idle else None)

    def borrow(self, instance: ModelInstance) -> None:
        """IDLE or DELAYING -> BORROWED. The time limit of a DELAYING thread may still wake it once, in vain."""
        self._withdraw(instance)
        instance.move(BORROWED)

    def take_back(self, instance: ModelInstance) -> None:
        """BORROWED -> IDLE, or to its end if it was removed or the pool closed."""
        if instance.is_removed:
            self._end_idle(instance)
        elif self.closed:
            self._wake(instance)
        else:
            self.park(instance)
            if self.queue.size:
                self.wake_idle()

    def remove(self, instance: ModelInstance) -> None:
        """Have the thread end when it next looks for work.

        An idle thread ends at once. It does not count as woken, so a request that arrives wakes another.
        """
        instance.is_removed = True
        if instance.state is WAITING:
            _interrupt(instance)
        elif instance.state is IDLE or instance.state is DELAYING:
            self._withdraw(instance)
            self._end_idle(instance)

    def end(self, instance: ModelInstance) -> None:
        """RUNNING -> ENDED, unless it is ENDED already."""
        if instance.state is RUNNING:
            instance.move(ENDED)

    def close(self) -> None:
        """Wake every idle thread, and let none become idle from now on."""
        self.closed = True
        if self.delaying is not None:
            self._relieve(self.delaying)
        for waiting in self._waiting:
            _interrupt(waiting)
        while self.idle:
            self._wake(self.idle.pop())

    def take(self, instance: ModelInstance, work: Work) -> None:
        """Note that an instance has taken `work`, and wake another thread for the rest of the queue.

        The DELAYING thread may have waited for what was taken, so it becomes idle first.
        """
        instance.taken = taken = len(work.batch) + len(work.rejections)
        self.in_flight.count += taken
        if instance.open_requests is not None:
            instance.taken = len(work.rejections)
            instance.open_requests.size += len(work.batch)
        if self.delaying is not None:
            self._relieve(self.delaying)
        if self.queue.size:
            self.wake_idle()

    def finish(self, instance: ModelInstance) -> None:
        self.in_flight.end(instance.taken)
        instance.taken = 0

    def _wake(self, instance: ModelInstance) -> None:
        instance.move(WOKEN)
        self.waking += 1
        instance.token.release()

    def _end_idle(self, instance: ModelInstance) -> None:
        instance.move(ENDED)
        instance.token.release()

    def _withdraw(self, instance: ModelInstance) -> None:
        """Remove an IDLE or DELAYING thread from those that can be woken."""
        if instance is self.delaying:
            self.delaying = None
        else:
            self.idle.remove(instance)


def _interrupt(instance: ModelInstance) -> None:
    """Have a WAITING thread look for work now."""
    if instance.reservation is not None:
        instance.reservation.interrupt()
