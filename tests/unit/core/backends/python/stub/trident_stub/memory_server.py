"""A server of a stub in memory: it keeps what the library tells it, and answers as a test says."""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from typing import Any

from trident_stub.errors import TritonModelException
from trident_stub.request import InferenceRequest
from trident_stub.response import InferenceResponse


class MemoryStream:
    """Responses that a test puts in. Ends with None."""

    def __init__(self, *responses: InferenceResponse | None) -> None:
        self.cancelled = False
        self._arrived = threading.Condition()
        self._waiting = deque(responses)
        self._listeners: list[Callable[[], None]] = []

    def put(self, response: InferenceResponse | None) -> None:
        with self._arrived:
            self._waiting.append(response)
            self._arrived.notify_all()
            listeners, self._listeners = self._listeners, []
        for listener in listeners:
            listener()

    def next(self, timeout: float | None = 10) -> InferenceResponse | None:
        with self._arrived:
            if not self._arrived.wait_for(lambda: self._waiting, timeout):
                raise TimeoutError
            return self._waiting.popleft() if self._waiting[0] is not None else None

    def cancel(self) -> None:
        self.cancelled = True

    def add_listener(self, callback: Callable[[], None]) -> None:
        with self._arrived:
            if not self._waiting:
                self._listeners.append(callback)
                return
        callback()


class MemoryServer:
    """The protocol `trident_stub.server.Server`."""

    def __init__(self) -> None:
        self.sent: list[tuple[int, InferenceResponse | None, bool]] = []
        self.something_was_sent = threading.Event()
        self.cancelled: set[int] = set()
        self.lines: list[tuple[int, str, str, int]] = []
        self.asked: list[tuple[InferenceRequest, bool]] = []
        self.streams: deque[MemoryStream] = deque()
        self.calls: list[tuple[str, dict[str, Any]]] = []
        self.answers: dict[str, dict[str, Any]] = {}
        self.refusals: dict[str, str] = {}

    def send(self, request_number: int, response: InferenceResponse | None, final: bool) -> None:
        self.sent.append((request_number, response, final))
        self.something_was_sent.set()

    def is_cancelled(self, request_number: int) -> bool:
        return request_number in self.cancelled

    def is_full(self, request_number: int) -> bool:
        return False

    def log(self, level: int, message: str, file: str, line: int) -> None:
        self.lines.append((level, message, file, line))

    def infer(self, request: InferenceRequest, decoupled: bool, within: bool) -> MemoryStream:
        self.asked.append((request, decoupled))
        return self.streams.popleft()

    def call(self, name: str, fields: dict[str, Any]) -> dict[str, Any]:
        self.calls.append((name, fields))
        if name in self.refusals:
            raise TritonModelException(self.refusals[name])
        return self.answers.get(name, {})
