"""The link between a front end and the engine on the hub: no thread lies between the socket and the greenlets.

Source: docs/architecture.md section 5: frames are collected and flushed once per iteration of the hub's loop.
"""

from __future__ import annotations

from threading import get_ident
from typing import Any

import gevent
from greenlet import getcurrent

from core.remote.transport.link import Gate, Linked, ThreadGate

_READ = 1
_WRITE = 2
_LOOK_SECONDS = 0.05


class GeventLink:
    """Made on the thread of the hub. `wake` and `gate` may be called on any."""

    def __init__(self) -> None:
        self._hub = gevent.get_hub()
        self._loop = self._hub.loop
        self._thread = get_ident()
        self._linked: Linked | None = None
        self._watched: Any = None
        self._readable: Any = None
        self._writable: Any = None
        self._is_flush_due = False
        self._wake = self._loop.async_()
        self._wake.start(self._flush)
        self._timer = self._loop.timer(_LOOK_SECONDS, _LOOK_SECONDS)

    def start(self, linked: Linked) -> None:
        self._linked = linked
        self._timer.start(self._look)
        self._look()

    def wake(self) -> None:
        if self._is_flush_due:
            return
        self._is_flush_due = True
        if get_ident() == self._thread:
            self._loop.run_callback(self._flush)
        else:
            self._wake.send()

    def gate(self) -> Gate:
        """On the hub's thread for the calling greenlet, which may not be the hub itself."""
        return _GreenletGate(self._hub) if get_ident() == self._thread else ThreadGate()

    def close(self) -> None:
        """On the hub's thread."""
        self._linked = None
        self._unwatch()
        self._timer.stop()
        self._timer.close()
        self._wake.stop()
        self._wake.close()

    def _flush(self) -> None:
        self._is_flush_due = False
        if self._linked is not None:
            self._linked.flush()
            self._watch()

    def _read(self) -> None:
        if self._linked is not None:
            self._linked.read()
            self._watch()

    def _look(self) -> None:
        if self._linked is not None:
            self._linked.look()
            self._watch()

    def _watch(self) -> None:
        """Follow what the connection has become: another socket, or one that takes no more for now."""
        linked = self._linked
        if linked is None:
            return
        sock = linked.sock
        if sock is not self._watched:
            self._unwatch()
            self._watched = sock
            if sock is not None:
                # Before the clients: one whose change was answered must not find the state from before it.
                self._readable = self._loop.io(sock.fileno(), _READ, priority=self._loop.MAXPRI)
                self._readable.start(self._read)
        if sock is not None and linked.wants_to_write:
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
    """None, which takes the watcher's place."""
    if watcher is not None:
        watcher.stop()
        watcher.close()
    return None


class _GreenletGate:
    """Where one greenlet waits. A result that comes when it has given up wakes nobody."""

    def __init__(self, hub: Any) -> None:
        self._hub = hub
        self._greenlet: Any = None
        self._is_open = False

    def wait(self, timeout_s: float | None) -> bool:
        self._greenlet = getcurrent()
        timer = self._hub.loop.timer(timeout_s) if timeout_s is not None else None
        timed_out = False

        def end() -> None:
            nonlocal timed_out
            timed_out = True
            self._greenlet.switch()

        try:
            if timer is not None:
                timer.start(end)
            while not self._is_open and not timed_out:
                self._hub.switch()
        finally:
            self._greenlet = None
            if timer is not None:
                timer.stop()
                timer.close()
        return self._is_open

    def open(self) -> None:
        self._is_open = True
        if self._greenlet is not None:
            self._greenlet.switch()
