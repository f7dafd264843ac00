"""Waiting for a socket to have something to read."""

from __future__ import annotations

from typing import Any

from greenlet import getcurrent

_READ = 1


class ReadWatch:
    """The hub's watcher of one socket. It stays on between waits, which saves making and undoing it for each request.

    Hub thread only; one greenlet at a time waits.
    """

    __slots__ = ("_greenlet", "_hub", "_is_on", "_watcher")

    def __init__(self, hub: Any, descriptor: int) -> None:
        self._hub = hub
        self._watcher = hub.loop.io(descriptor, _READ)
        self._greenlet: Any = None
        self._is_on = False

    def wait(self) -> None:
        """Return when there is something to read, or the end. Goes through the hub in any case."""
        self._greenlet = getcurrent()
        if not self._is_on:
            self._is_on = True
            self._watcher.start(self._on_readable)
        while self._greenlet is not None:
            self._hub.switch()

    def _on_readable(self) -> None:
        greenlet = self._greenlet
        if greenlet is None:
            # Something came while the last request is still being answered: it waits, and the loop must not spin.
            self._is_on = False
            self._watcher.stop()
            return
        self._greenlet = None
        greenlet.switch()

    def close(self) -> None:
        self._watcher.stop()
        self._watcher.close()
