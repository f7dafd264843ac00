"""Frames that wait to be sent: one outbox at each end of a connection."""

from __future__ import annotations

import socket
import threading
import time
from collections import deque
from collections.abc import Callable


def _ignore(is_blocked: bool) -> None: ...


class Outbox:
    """Any thread may `append` frames, and any thread may call `flush`, which sends them together.

    `on_blocked` is told, under the outbox's lock, when the socket takes no more for now (True) and when it has taken
    everything again (False); in between the owner calls `flush` whenever the socket takes more. `since` is in monotonic
    seconds: when the outbox was made, or when the socket last took a part of what waits.
    """

    def __init__(self, sock: socket.socket, on_blocked: Callable[[bool], None] = _ignore) -> None:
        self._frames: deque[bytes] = deque()
        self.append: Callable[[bytes], None] = self._frames.append
        """Adds a frame, to be sent with the next `flush`."""
        self.since = time.monotonic()
        self._sock = sock
        self._on_blocked = on_blocked
        self._lock = threading.Lock()
        self._unsent: memoryview | None = None
        self._is_closed = False

    def __len__(self) -> int:
        """How many frames were not taken up by a `flush` yet."""
        return len(self._frames)

    @property
    def is_blocked(self) -> bool:
        """Whether the socket did not take all that was sent."""
        return self._unsent is not None

    def flush(self) -> None:
        """Send as much as the socket takes. Does not block.

        Does nothing if the connection has ended: the owner learns that when it reads.
        """
        with self._lock:
            if self._is_closed:
                self._frames.clear()
                return
            was_blocked = self._unsent is not None
            # The rest goes first and alone: joined with new frames, a large rest would be copied again and again.
            if self._unsent is None or self._send(self._unsent):
                parts: list[bytes] = []
                try:
                    while True:
                        parts.append(self._frames.popleft())
                except IndexError:
                    pass
                if parts:
                    self._send(parts[0] if len(parts) == 1 else b"".join(parts))
            if was_blocked is not (self._unsent is not None):
                self._on_blocked(not was_blocked)

    def close(self) -> None:
        """Send nothing any more. After this returns the socket may be closed."""
        with self._lock:
            self._is_closed = True
            self._unsent = None

    def _send(self, whole: bytes | memoryview) -> bool:
        """Whether nothing of it is left to send. Under the lock."""
        try:
            sent = self._sock.send(whole, socket.MSG_DONTWAIT)
        except BlockingIOError:
            sent = 0
        except OSError:
            sent = len(whole)
        if sent == len(whole):
            self._unsent = None
            return True
        if sent or self._unsent is None:
            self.since = time.monotonic()
        self._unsent = memoryview(whole)[sent:]
        return False
