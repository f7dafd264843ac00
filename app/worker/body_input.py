"""The body of a request as WSGI's input stream."""

from __future__ import annotations

import io
from typing import Any


class BodyInput(io.RawIOBase):
    """`wsgi.input` over a buffer, which is copied only as it is read."""

    def __init__(self, body: memoryview) -> None:
        self._body = body
        self._at = 0

    def readable(self) -> bool:
        return True

    def readinto(self, target: Any) -> int:
        view = memoryview(target).cast("B")
        part = self._body[self._at : self._at + len(view)]
        view[: len(part)] = part
        self._at += len(part)
        return len(part)

    def readall(self) -> bytes:
        rest = bytes(self._body[self._at :])
        self._at = len(self._body)
        return rest
