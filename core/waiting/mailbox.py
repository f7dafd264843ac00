"""Items that any thread brings to one caller, which waits for them.

Mailbox          the protocol
├── ThreadMailbox     the caller is a native thread, which waits on a lock
└── GreenletMailbox   the caller is a greenlet, which waits on the hub (core/waiting/greenlet_mailbox.py)
"""

from __future__ import annotations

import threading
from collections import deque
from typing import Protocol, TypeVar

T = TypeVar("T")


class Mailbox(Protocol[T]):
    """`items` are those that have arrived, the oldest first; the caller removes them."""

    items: deque[T]

    def put(self, item: T) -> None:
        """Add an item. Any thread."""

    def wait(self, timeout_s: float | None = None) -> bool:
        """Return whether there are items, after `timeout_s` seconds at most; None waits without limit.

        Only where the mailbox was made, by one caller at a time.
        """


class ThreadMailbox(Mailbox[T]):
    """The caller is a native thread."""

    __slots__ = ("_arrived", "items")

    def __init__(self) -> None:
        self.items: deque[T] = deque()
        self._arrived = threading.Condition(threading.Lock())

    def put(self, item: T) -> None:
        with self._arrived:
            self.items.append(item)
            self._arrived.notify()

    def wait(self, timeout_s: float | None = None) -> bool:
        with self._arrived:
            return self._arrived.wait_for(lambda: bool(self.items), timeout_s)
