"""One caller that waits for one outcome.

Waiter          the protocol
├── ThreadWaiter     a native thread, which waits on a lock
└── GreenletWaiter   a greenlet, which waits on the hub (core/waiting/greenlet_waiter.py)
"""

from __future__ import annotations

import threading
from typing import Any, Protocol


class Waiter(Protocol):
    """`outcome` is None until `settle`."""

    outcome: Any

    def settle(self, outcome: object) -> None:
        """Give the caller its outcome, which is not None. Called once, on any thread, possibly before `wait`."""

    def wait(self, timeout_s: float | None = None) -> Any:
        """Return the outcome, or None if it did not arrive within `timeout_s` seconds. None waits without limit.

        Called where the waiter was made. An outcome that arrives after the last call wakes nobody.
        """


class ThreadWaiter:
    """The native thread that calls `wait`."""

    __slots__ = ("_settled", "outcome")

    def __init__(self) -> None:
        self.outcome: Any = None
        self._settled = threading.Lock()
        self._settled.acquire()

    def settle(self, outcome: object) -> None:
        self.outcome = outcome
        self._settled.release()

    def wait(self, timeout_s: float | None = None) -> Any:
        if self.outcome is None and self._settled.acquire(timeout=-1 if timeout_s is None else timeout_s):
            self._settled.release()
        return self.outcome
