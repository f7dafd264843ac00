"""The streams that the server has reset."""

from __future__ import annotations


class ResetStreams:
    """The latest streams that were reset here. What their client sent before it knew is no error.

    Source: RFC 9113 section 5.1, "closed".
    """

    __slots__ = ("_ids", "_limit")

    def __init__(self, limit: int) -> None:
        self._limit = limit
        self._ids: dict[int, None] = {}

    def add(self, stream: int) -> None:
        if len(self._ids) >= self._limit:
            del self._ids[next(iter(self._ids))]
        self._ids[stream] = None

    def __contains__(self, stream: int) -> bool:
        return stream in self._ids
