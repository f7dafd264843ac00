"""A signal from any thread to the hub of one thread."""

from __future__ import annotations

from collections.abc import Callable
from threading import get_ident
from typing import Any


class HubSignal:
    """Has `function` called on the hub, once for all signals sent until then. Made on the hub's thread.

    No signal is lost: `is_due` is cleared before the call, so a thread that finds it set has written whatever the call
    looks at before the call looks. Two threads may both find it clear; the second call then finds nothing new.
    """

    __slots__ = ("_async", "_function", "_loop", "_thread_id", "is_due")

    def __init__(self, hub: Any, function: Callable[[], None]) -> None:
        self.is_due = False
        self._function = function
        self._loop = hub.loop
        self._thread_id = get_ident()
        self._async = hub.loop.async_()
        self._async.start(self._call)

    def send(self) -> None:
        """Have the function called soon: on the hub's thread in this iteration of the loop. Any thread."""
        if self.is_due:
            return
        self.is_due = True
        if get_ident() == self._thread_id:
            self._loop.run_callback(self._call)
        else:
            self._async.send()

    def send_after_io(self) -> None:
        """As `send`, but not before the loop has looked at all sockets again. On the hub's thread."""
        self.is_due = True
        self._async.send()

    def close(self) -> None:
        """Signals that are sent later do nothing. On the hub's thread."""
        self.is_due = True
        self._async.stop()
        self._async.close()

    def _call(self) -> None:
        self.is_due = False
        self._function()
