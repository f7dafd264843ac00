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

    Any thread. Those who ask at the same time share one answer, and who asks while the model still thinks about an
    earlier question, whose time is over, gets the answer to that one.
    """

    def __init__(self, sock: socket.socket, instance: str, limit_s: float = LIMIT_S) -> None:
        self._sock = sock
        self._instance = instance
        self._limit_s = limit_s
        self._changed = threading.Condition()
        self._is_asking = False
        self._answer: str | None = None
        # Whether the model has not answered the last question that was sent.
        self._is_open = False
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
        unhealthy = f"Stub process '{self._instance}' is not healthy."
        end = time.monotonic() + self._limit_s
        try:
            self._receive(0)  # an answer that came when nobody waited says nothing about now
            if not self._is_open:
                self._is_open = True
                self._sock.send(b"?")
            while (answer := self._receive(end - time.monotonic())) is None:
                if time.monotonic() >= end:
                    return "Timed out waiting for user-defined is_ready() response"
        except (OSError, ValueError):
            return unhealthy
        is_ready, reason = answer
        failed = f"Model '{self._instance}' is not ready (user-defined check failed)."
        return None if is_ready else reason or failed

    def _receive(self, within_s: float) -> tuple[bool, str] | None:
        """The answer to the open question; None if it has not come within `within_s` seconds. Raises OSError."""
        if not (self._is_open and wait_readable(self._sock.fileno(), max(0.0, within_s))):
            return None
        received = self._sock.recv(1 << 16)
        if not received:
            raise ConnectionResetError("the stub process closed its socket")
        line, newline, self._received = (self._received + received).partition(b"\n")
        if not newline:
            self._received = line
            return None
        self._is_open = False
        is_ready, reason = orjson.loads(line)
        return is_ready, reason
