"""Waits until a socket is readable."""

from __future__ import annotations

from typing import Any, Final, Protocol

from greenlet import getcurrent

_READ: Final = 1


class ReadWatch:
    """The hub's watcher of one socket. It stays active between waits, which saves starting and stopping it per request.

    Hub thread only; one greenlet waits at a time.
    """

    __slots__ = ("_greenlet", "_hub", "_is_on", "_watcher")

    def __init__(self, hub: Any, descriptor: int) -> None:
        self._hub = hub
        self._watcher = hub.loop.io(descriptor, _READ)
        self._greenlet: Any = None
        self._is_on = False

    def wait(self) -> None:
        """Return when the socket is readable or closed. Always goes through the hub."""
        self._greenlet = getcurrent()
        if not self._is_on:
            self._is_on = True
            self._watcher.start(self._on_readable)
        while self._greenlet is not None:
            self._hub.switch()

    def _on_readable(self) -> None:
        greenlet = self._greenlet
        if greenlet is None:
            # Bytes arrived while the last request is still being answered. They wait, and the loop must not spin.
            self._is_on = False
            self._watcher.stop()
            return
        self._greenlet = None
        greenlet.switch()

    def close(self) -> None:
        self._watcher.stop()
        self._watcher.close()


class Buffered(Protocol):
    """A socket that may have received bytes of which the kernel does not tell again."""

    def fileno(self) -> int:
        """The descriptor of the socket below."""

    def pending(self) -> int:
        """How many they are."""


class BufferedReadWatch(ReadWatch):
    """A ReadWatch that also knows of the bytes which the socket has already received."""

    __slots__ = ("_socket",)

    def __init__(self, hub: Any, socket: Buffered) -> None:
        super().__init__(hub, socket.fileno())
        self._socket = socket

    def wait(self) -> None:
        if self._socket.pending():
            with self._hub.loop.timer(0) as turn:
                self._hub.wait(turn)
        else:
            super().wait()
