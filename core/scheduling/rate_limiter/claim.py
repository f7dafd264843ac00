"""The claim of one instance on the resources that its executions hold.

IDLE    -> WAITING, HELD     its instance has work
WAITING -> HELD              its turn has come
        -> IDLE              its instance has no work any more
HELD    -> IDLE              the execution has ended, or there was no work after all
        -> WAITING           the execution has ended, and there is more work
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from enum import Enum
from typing import TYPE_CHECKING

from core.scheduling.rate_limiter.resources import Needs

if TYPE_CHECKING:
    from core.scheduling.rate_limiter.line import Line


class ClaimState(Enum):
    """`next` are the states that may follow."""

    next: tuple[ClaimState, ...]

    IDLE = "wants nothing"
    WAITING = "waits for its turn"
    HELD = "holds its resources"


IDLE, WAITING, HELD = ClaimState

IDLE.next = (WAITING, HELD)
WAITING.next = (HELD, IDLE)
HELD.next = (IDLE, WAITING)


def _never() -> bool:
    return False


class Claim:
    """Any thread, one at a time except for `interrupt`. Every attribute is guarded by the limiter's lock.

    `turn` is the instance's place among those that wait: it grows with each execution by the priority, so an instance
    of priority 2 gets half the turns of one of priority 1. `arrival` orders equal turns. `has_more` tells, when an
    execution ends, whether the instance has more work: then it waits again at once, and is not overtaken by one with a
    later turn.
    """

    def __init__(self, name: str, needs: Needs, priority: int, lock: threading.Lock, line: Line) -> None:
        self.name = name
        self.needs = needs
        self.priority = priority
        self.line = line
        self.turn = 0
        self.arrival = 0
        self.state = IDLE
        self.has_more: Callable[[], bool] = _never
        self._lock = lock
        self._changed = threading.Condition(lock)

    def request(self) -> bool:
        """Take the resources now, or wait for the turn, which `wait` tells. Returns whether they are held."""
        with self._lock:
            if self.state is IDLE:
                self.line.stage(self)
                self.line.admit()
            return self.state is HELD

    def try_take(self) -> bool:
        """Take the resources now, or not at all. Returns whether they are held."""
        with self._lock:
            if self.state is IDLE:
                self.line.stage(self)
                self.line.admit()
                if self.state is WAITING:
                    self._abandon()
            return self.state is HELD

    def wait(self) -> bool:
        """Block until the turn has come, or until `interrupt`. Returns whether the resources are held."""
        with self._lock:
            self._changed.wait_for(lambda: self.state is not WAITING)
            return self.state is HELD

    def interrupt(self) -> None:
        """Have a `wait` of another thread return now."""
        with self._lock:
            if self.state is WAITING:
                self._abandon()

    def withdraw(self) -> None:
        """Want nothing any more: there is no work."""
        with self._lock:
            if self.state is WAITING:
                self._abandon()
            elif self.state is HELD:
                self.move(IDLE)
                self.line.admit()

    def end(self) -> None:
        """Give back the resources after an execution."""
        with self._lock:
            self.turn += self.priority
            if self.has_more():
                self.line.stage(self)
            else:
                self.move(IDLE)
            self.line.admit()

    def move(self, state: ClaimState) -> None:
        """Under the lock. Raises RuntimeError for a move that the states do not allow, which is a bug."""
        if state not in self.state.next:
            raise RuntimeError(f"the claim of '{self.name}' cannot go from {self.state} to {state}")
        was_waiting = self.state is WAITING
        self.state = state
        if was_waiting:
            self._changed.notify_all()

    def _abandon(self) -> None:
        self.move(IDLE)
        self.line.admit()  # what it kept from those behind it
