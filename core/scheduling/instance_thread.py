"""The native thread of one instance, and its states.

    RUNNING    -> IDLE, HOLDING            nothing to execute, or only a batch that may still grow
               -> WAITING                  its executions hold resources, and it is not its turn
    IDLE       -> WOKEN, LENT, DISMISSED
               -> RUNNING                  the thread was HOLDING before, and the queue delay is over
    HOLDING    -> WOKEN, LENT, DISMISSED
               -> IDLE                     another thread took the batch or holds instead
               -> RUNNING                  the queue delay is over, unless a timer of another thread ends the wait
    WAITING    -> RUNNING                  its turn has come, or it was interrupted
    WOKEN      -> RUNNING
    LENT       -> IDLE, WOKEN, DISMISSED   the thread that executed on the instance has finished
               -> HOLDING                  that thread has set its timer, and will execute the batch itself
    DISMISSED                              the thread ends

`InstancePool` makes the moves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING, Final

from core.backends.base import BackendInstance
from core.scheduling.instance import ModelInstance
from core.scheduling.policy import Wait

if TYPE_CHECKING:
    from core.scheduling.open_requests import OpenRequests


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
