"""Responses counted by their index within their request, for models that answer through senders.

Durations are nanoseconds of the monotonic clock.
Source: docs/spec/statistics-and-metrics.md section A (`response_stats`).
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntEnum

_MOST = 1024


class ResponseKind(IntEnum):
    """EMPTY has the final flag and no tensors. CANCELLED was sent when nobody wanted it any more."""

    SUCCESS = 0
    FAIL = 1
    EMPTY = 2
    CANCELLED = 3


@dataclass(frozen=True, slots=True, kw_only=True)
class ResponseStatistics:
    """The responses with one index. A duration runs from the response before, or from the start of the execution.

    `counts` and `durations_ns` are by ResponseKind.
    """

    index: int
    counts: tuple[int, ...]
    durations_ns: tuple[int, ...]


class ResponseCounters:
    """Not thread-safe. Only the first 1024 responses of a request count: an endless one must not cost memory."""

    def __init__(self) -> None:
        self._counts: list[list[int]] = []
        self._durations_ns: list[list[int]] = []

    def count(self, index: int, kind: ResponseKind, duration_ns: int) -> None:
        if index >= _MOST:
            return
        while index >= len(self._counts):
            self._counts.append([0] * len(ResponseKind))
            self._durations_ns.append([0] * len(ResponseKind))
        self._counts[index][kind] += 1
        self._durations_ns[index][kind] += duration_ns

    def snapshot(self) -> tuple[ResponseStatistics, ...]:
        """By ascending index."""
        pairs = zip(self._counts, self._durations_ns, strict=True)
        return tuple(
            ResponseStatistics(index=index, counts=tuple(counts), durations_ns=tuple(durations))
            for index, (counts, durations) in enumerate(pairs)
        )
