"""Drives the connection to the engine on the hub, without a thread between its socket and the greenlets.

Source: docs/architecture.md section 5 (frames are collected and flushed once per iteration of the hub's loop).
"""

from __future__ import annotations

from typing import Any

import gevent

from trident.core.frontend.gevent_bridge import HubSignal, HubWaiters
from trident.core.remote.connection import LinkHandler
from trident.core.waiting import Waiter

_READ = 1
_WRITE = 2
_LOOK_SECONDS = 0.05


class GeventLink:
    """Made on the hub's thread. Any thread may call `wake` and `waiter`."""

    def __init__(self) -> None:
        hub = gevent.get_hub()
        self._loop = hub.loop
        self._handler: LinkHandler | None = None
        self._watched: Any = None
        self._readable: Any = None
        self._writable: Any = None
        self._waiters = HubWaiters(hub)
        self._flush_signal = HubSignal(hub, self._flush)
        self.wake = self._flush_signal.send
        self._timer = self._loop.timer(_LOOK_SECONDS, _LOOK_SECONDS)

    def start(self, handler: LinkHandler) -> None:
        self._handler = handler
        self._timer.start(self._look)
        self._look()

    def waiter(self) -> Waiter:
        return self._waiters.waiter()

    def close(self) -> None:
        """Call it on the hub's thread."""
        self._handler = None
        self._unwatch()
        self._timer.stop()
        self._timer.close()
        self._flush_signal.close()
        self._waiters.close()

    def _flush(self) -> None:
        if self._handler is not None:
            self._handler.flush()
            self._watch()

    def _read(self) -> None:
        if self._handler is not None:
            self._handler.read()
            self._watch()

    def _look(self) -> None:
        if self._handler is not None:
            self._handler.look()
            self._watch()

    def _watch(self) -> None:
        """Watch the connection's present socket, for writing too while the connection has unsent bytes."""
        handler = self._handler
        if handler is None:
            return
        sock = handler.sock
        if sock is not self._watched:
            self._unwatch()
            self._watched = sock
            if sock is not None:
                # With priority over the clients: a client must not see a state older than the answer it has received.
                self._readable = self._loop.io(sock.fileno(), _READ, priority=self._loop.MAXPRI)
                self._readable.start(self._read)
        if sock is not None and handler.wants_to_write:
            if self._writable is None:
                self._writable = self._loop.io(sock.fileno(), _WRITE)
                self._writable.start(self._flush)
        elif self._writable is not None:
            self._writable = _close(self._writable)

    def _unwatch(self) -> None:
        self._watched = None
        self._readable = _close(self._readable)
        self._writable = _close(self._writable)


def _close(watcher: Any) -> Any:
    """Close the watcher. Returns None, to replace it."""
    if watcher is not None:
        watcher.stop()
        watcher.close()
    return None
