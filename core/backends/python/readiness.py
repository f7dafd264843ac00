"""Asks a stub process whether its model is ready.

Source: docs/spec/python-backend.md section 4.7.
"""

from __future__ import annotations

import socket
import threading
import time

import orjson

from core.errors import ModelNotReady
from core.interprocess.descriptors import wait_readable

LIMIT_S = 5.0


class ReadinessQuestion:
    """Over the socket that a stub process has for it alone, so that a long execution does not delay the answer.

    Any thread. Those who ask at the same time share one answer.
    """

    def __init__(self, sock: socket.socket, instance: str, limit_s: float = LIMIT_S) -> None:
        self._sock = sock
        self._instance = instance
        self._limit_s = limit_s
        self._changed = threading.Condition()
        self._is_asking = False
        self._answer: str | None = None
        self._number = 0
        self._received = b""

    def ask(self) -> None:
        """Raises ModelNotReady with the reason. Blocks."""
        with self._changed:
            if self._is_asking:
                self._changed.wait_for(lambda: not self._is_asking)
                reason = self._answer
            else:
                self._is_asking = True
                self._changed.release()
                try:
                    reason = self._ask()
                finally:
                    self._changed.acquire()
                    self._is_asking = False
                    self._changed.notify_all()
                self._answer = reason
        if reason is not None:
            raise ModelNotReady(reason)

    def _ask(self) -> str | None:
        """Why the model is not ready; None if it is."""
        self._number = (self._number + 1) % 256
        unhealthy = f"Stub process '{self._instance}' is not healthy."
        end = time.monotonic() + self._limit_s
        try:
            self._sock.send(bytes((self._number,)))
            while True:
                line, newline, rest = self._received.partition(b"\n")
                if newline:
                    self._received = rest
                    number, is_ready, reason = orjson.loads(line)
                    if number != self._number:  # an answer that came too late
                        continue
                    failed = f"Model '{self._instance}' is not ready (user-defined check failed)."
                    return None if is_ready else reason or failed
                if not wait_readable(self._sock.fileno(), max(0.0, end - time.monotonic())):
                    return "Timed out waiting for user-defined is_ready() response"
                received = self._sock.recv(1 << 16)
                if not received:
                    return unhealthy
                self._received += received
        except (OSError, ValueError):
            return unhealthy
