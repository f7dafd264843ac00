"""The recent past of every model version: what it did in each second of the last fifteen minutes, for the console, and
its slowest and last failed requests of the last hour.

A thread reads the counters once a second. Seconds in which a version did nothing take no memory, and all of them
together are bounded. Source: docs/console.md; docs/spec/http.md "In Trident".
"""

from __future__ import annotations

import threading
import time
from array import array
from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import TYPE_CHECKING, NamedTuple

from trident.core.observability.latencies import quantile_values
from trident.core.observability.statistics import StatisticsSnapshot

if TYPE_CHECKING:
    from trident.core.observability.model_statistics import ModelStatistics
import heapq
import itertools

KEPT_SECONDS = 15 * 60
RECENT_SECONDS = 60
_MOST_SAMPLES = 100_000  # of 220 bytes
_QUANTILES = (0.5, 0.95, 0.99)


@dataclass(frozen=True, slots=True, kw_only=True)
class Activity:
    """The work of a version in the last minute. Durations are in microseconds: sums over its successful requests, and
    quantiles of them. `items` are those of its executions, of requests that failed as well. `restarts` are those of its
    own processes. `queued` requests wait now, and `sequences` have a slot.
    """

    requests: int = 0
    failures: int = 0
    items: int = 0
    executions: int = 0
    request_us: float = 0.0
    queue_us: float = 0.0
    input_us: float = 0.0
    infer_us: float = 0.0
    output_us: float = 0.0
    cache_hits: int = 0
    cache_misses: int = 0
    restarts: int = 0
    queued: int = 0
    sequences: int = 0
    p50_us: float = 0.0
    p95_us: float = 0.0
    p99_us: float = 0.0


COLUMNS = tuple(each.name for each in fields(Activity))
_SUMMED = COLUMNS[: COLUMNS.index("queued")]


@dataclass(frozen=True, slots=True, kw_only=True)
class VersionHistory:
    """The seconds, since 1970, in which a version was active, ascending, and the fields of Activity in each of them."""

    name: str
    version: int
    seconds: tuple[int, ...]
    columns: Mapping[str, tuple[float, ...]]


class Watched(NamedTuple):
    """A version that serves: how many requests wait for it, how often its processes were restarted, and how many
    sequences have a slot."""

    name: str
    version: int
    statistics: ModelStatistics
    queued: int
    restarts: int = 0
    sequences: int = 0


_Key = tuple[str, int]
_Second = tuple[int, dict[_Key, "array[float]"]]


class _Last:
    """The last look at a version: its counters at the last sample, and the durations of the last minute."""

    def __init__(self, statistics: ModelStatistics) -> None:
        self.statistics = statistics
        self.turnover = 0
        self.totals: Sequence[float] = [0.0] * len(_SUMMED)
        self.restarts = 0
        self.sequences = 0
        self.recent: deque[tuple[int, Mapping[int, int]]] = deque(maxlen=RECENT_SECONDS)


class History:
    """`start` begins to watch the versions that `versions` returns. Any thread may ask."""

    def __init__(
        self, versions: Callable[[], Iterable[Watched]], *, wall_clock: Callable[[], float] = time.time
    ) -> None:
        self._versions = versions
        self._wall_clock = wall_clock
        self._lock = threading.Lock()
        self._seconds: deque[_Second] = deque()
        self._sample_count = 0
        self._last: dict[_Key, _Last] = {}
        self._closing = threading.Event()
        self._thread = threading.Thread(target=self._run, name="trident-history", daemon=True)

    def start(self) -> None:
        """Start the thread; once only, in the process that serves."""
        self._thread.start()

    def close(self) -> None:
        self._closing.set()
        if self._thread.is_alive():
            self._thread.join()

    def _run(self) -> None:
        while not self._closing.wait(1.0 - self._wall_clock() % 1.0):
            self.sample()

    def sample(self) -> None:
        """Note what has happened since the last call. The thread calls it each second."""
        now = int(self._wall_clock())
        samples: dict[_Key, array[float]] = {}
        seen: set[_Key] = set()
        versions = list(self._versions())
        with self._lock:
            for watched in versions:
                key = (watched.name, watched.version)
                seen.add(key)
                last = self._last.get(key)
                if last is None or last.statistics is not watched.statistics:
                    last = self._last[key] = _Last(watched.statistics)
                is_still = watched.statistics.turnover == last.turnover and not watched.queued
                if not is_still or (watched.restarts, watched.sequences) != (last.restarts, last.sequences):
                    last.turnover = last.statistics.turnover
                    last.restarts, last.sequences = watched.restarts, watched.sequences
                    totals = [*_totals(last.statistics.snapshot()), watched.restarts]
                    added = [total - before for total, before in zip(totals, last.totals, strict=True)]
                    last.totals = totals
                    steps = last.statistics.take_steps()
                    last.recent.append((now, steps))
                    samples[key] = array("d", [*added, watched.queued, watched.sequences, *_quantiles([steps])])
            for key in self._last.keys() - seen:
                del self._last[key]
            if samples:
                self._seconds.append((now, samples))
                self._sample_count += len(samples)
            while self._seconds and (self._seconds[0][0] <= now - KEPT_SECONDS or self._sample_count > _MOST_SAMPLES):
                self._sample_count -= len(self._seconds.popleft()[1])

    def activity(self) -> dict[_Key, Activity]:
        since = int(self._wall_clock()) - RECENT_SECONDS
        with self._lock:
            recent = [second for second in reversed(self._seconds) if second[0] > since]
            steps = {key: [each for at, each in last.recent if at > since] for key, last in self._last.items()}
        found: dict[_Key, list[array[float]]] = {}
        for _, samples in recent:
            for key, sample in samples.items():
                found.setdefault(key, []).append(sample)
        return {key: _sum(samples, steps.get(key, ())) for key, samples in found.items()}

    def of(self, models: Iterable[str], since: int) -> list[VersionHistory]:
        """The history of all versions of these models after the second `since`."""
        wanted = set(models)
        with self._lock:
            seconds = [second for second in self._seconds if second[0] > since]
        found: dict[_Key, list[tuple[int, array[float]]]] = {}
        for at, samples in seconds:
            for key, sample in samples.items():
                if key[0] in wanted:
                    found.setdefault(key, []).append((at, sample))
        return [
            VersionHistory(
                name=name,
                version=version,
                seconds=tuple(at for at, _ in samples),
                columns={column: tuple(sample[i] for _, sample in samples) for i, column in enumerate(COLUMNS)},
            )
            for (name, version), samples in sorted(found.items())
        ]


def _totals(counted: StatisticsSnapshot) -> list[float]:
    """In the order of _SUMMED, without the restarts."""
    durations = (
        counted.request_ns,
        counted.queue_ns,
        counted.compute_input_ns,
        counted.compute_infer_ns,
        counted.compute_output_ns,
    )
    return [
        counted.request_success,
        sum(counted.request_failures.values()) + sum(counted.request_refusals.values()),
        sum(each.batch_size * each.execution_count for each in counted.batches),
        counted.execution_count,
        *[ns / 1000 for ns in durations],
        counted.cache_hit_count,
        counted.cache_miss_count,
    ]


def _quantiles(parts: Iterable[Mapping[int, int]]) -> list[float]:
    """0 without a value: JSON has no NaN."""
    return [round(value, 1) if value == value else 0.0 for _, value in quantile_values(parts, _QUANTILES)]


def _sum(samples: Sequence[array[float]], steps: Iterable[Mapping[int, int]]) -> Activity:
    """`samples` are the latest first."""
    sums = [sum(column) for column in zip(*samples, strict=True)][: len(_SUMMED)]
    kinds = [each.type for each in fields(Activity)]
    values = [*sums, *samples[0][len(_SUMMED) : len(_SUMMED) + 2], *_quantiles(steps)]
    typed = [int(value) if kind == "int" else value for kind, value in zip(kinds, values, strict=True)]
    return Activity(**dict(zip(COLUMNS, typed, strict=True)))


def merged_history(parts: Iterable[VersionHistory]) -> list[VersionHistory]:
    """The histories of several engines as those of one server. The quantiles of several distributions do not give that
    of their sum: the largest is an upper bound of it."""
    versions: dict[_Key, dict[int, list[float]]] = {}
    for part in parts:
        seconds = versions.setdefault((part.name, part.version), {})
        for at, *values in zip(part.seconds, *[part.columns[name] for name in COLUMNS], strict=True):
            before = seconds.get(at)
            seconds[at] = (
                values
                if before is None
                else [
                    max(pair) if name.startswith("p") else sum(pair)
                    for name, pair in zip(COLUMNS, zip(before, values, strict=True), strict=True)
                ]
            )
    return [
        VersionHistory(
            name=name,
            version=version,
            seconds=tuple(sorted(seconds)),
            columns={name: tuple(seconds[at][i] for at in sorted(seconds)) for i, name in enumerate(COLUMNS)},
        )
        for (name, version), seconds in sorted(versions.items())
    ]


# --- the slowest and the last failed requests of a version

MOST = 32
"""The number of reported requests of each kind."""

KEPT_MS = 60 * 60_000
# The slowest are found for each of these intervals, so that those of a bad hour do not hide those of the next one.
_INTERVAL_MS = 10 * 60_000
_INTERVALS = KEPT_MS // _INTERVAL_MS + 1
LONGEST_ID = 256
LONGEST_ERROR = 1024
"""Characters of a noted request's id and error."""


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
        self.failed: deque[NotedRequest] = deque(maxlen=MOST)
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

    def report(self, name: str, version: int, now_ms: int) -> VersionRequests:
        requests = [request for heap in self._intervals for _, _, request in heap]
        return _report(name, version, requests, self.failed, now_ms - KEPT_MS)


def merged_requests(parts: Iterable[VersionRequests]) -> list[VersionRequests]:
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
