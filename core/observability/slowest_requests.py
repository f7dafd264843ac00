"""The slowest and the last failed requests of one model version, kept for an hour.

Source: docs/spec/http.md "In Trident".
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

MOST = 32
"""How many of each kind are reported."""

KEPT_MS = 60 * 60_000
# The slowest are found for each of these intervals, so that those of a bad hour do not hide those of the next one.
_INTERVAL_MS = 10 * 60_000
_INTERVALS = KEPT_MS // _INTERVAL_MS + 1
_LONGEST_ID = 256
_LONGEST_ERROR = 1024


@dataclass(frozen=True, slots=True, kw_only=True)
class NotedRequest:
    """When the request ended, in ms since 1970, and how long everything took, in ns. `batch_size` is the number of
    items in its execution, 0 if there was none; `batch_close` the reason for which its batch was closed. `failure` and
    `error` are empty for a request that succeeded.
    """

    id: str
    ended_ms: int
    duration_ns: int
    queue_ns: int = 0
    compute_input_ns: int = 0
    compute_infer_ns: int = 0
    compute_output_ns: int = 0
    batch_size: int = 0
    batch_close: str = ""
    failure: str = ""
    error: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionRequests:
    """The noted requests of one version: the slowest first, and the last failed first."""

    name: str
    version: int
    slowest: tuple[NotedRequest, ...]
    failed: tuple[NotedRequest, ...]


class SlowestRequests:
    """The caller holds a lock, and adds a request only if it took at least `least_ns`. From `due_ms` on, the wall
    clock's time, it calls `begin_interval` first."""

    def __init__(self) -> None:
        self.least_ns = 0
        self.due_ms = 0
        self._intervals: deque[list[tuple[int, int, NotedRequest]]] = deque(maxlen=_INTERVALS)
        self._failed: deque[NotedRequest] = deque(maxlen=MOST)
        self._numbers = itertools.count()

    def begin_interval(self, now_ms: int) -> None:
        self._intervals.append([])
        self.least_ns = 0
        self.due_ms = now_ms + _INTERVAL_MS

    def add(self, request: NotedRequest) -> None:
        heap = self._intervals[-1]
        entry = (request.duration_ns, next(self._numbers), request)
        if len(heap) < MOST:
            heapq.heappush(heap, entry)
        else:
            heapq.heapreplace(heap, entry)
        if len(heap) == MOST:
            self.least_ns = heap[0][0] + 1

    def add_failed(self, request: NotedRequest) -> None:
        self._failed.append(request)

    def report(self, name: str, version: int, now_ms: int) -> VersionRequests:
        requests = [request for heap in self._intervals for _, _, request in heap]
        return _report(name, version, requests, self._failed, now_ms - KEPT_MS)


def noted_id(request_id: str) -> str:
    """As much of the id of a request as is kept."""
    return request_id[:_LONGEST_ID]


def noted_error(error: str) -> str:
    """As much of the text of an error as is kept."""
    return error[:_LONGEST_ERROR]


def merged_requests(parts: Iterable[VersionRequests]) -> list[VersionRequests]:
    """The reports of several engines as those of one server, one for each version."""
    versions: dict[tuple[str, int], list[VersionRequests]] = {}
    for part in parts:
        versions.setdefault((part.name, part.version), []).append(part)
    return [
        _report(name, version, [r for each in same for r in each.slowest], [r for each in same for r in each.failed], 0)
        for (name, version), same in versions.items()
    ]


def _report(
    name: str, version: int, requests: Iterable[NotedRequest], failed: Iterable[NotedRequest], since_ms: int
) -> VersionRequests:
    slowest = sorted((r for r in requests if r.ended_ms >= since_ms), key=lambda r: r.duration_ns, reverse=True)
    last = sorted((r for r in failed if r.ended_ms >= since_ms), key=lambda r: r.ended_ms, reverse=True)
    return VersionRequests(name=name, version=version, slowest=tuple(slowest[:MOST]), failed=tuple(last[:MOST]))
