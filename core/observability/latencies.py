"""The quantiles of one model version's durations in the last minute.

Triton's client library keeps 60 s in five parts of 12 s. So does this one, but it counts values by their leading bits:
that costs the same for every value, and a quantile is within one percent.
Source: docs/spec/statistics-and-metrics.md section B, "Rules".
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict, deque
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from math import ceil, nan

from trident.core.inference.pending_request import PendingRequest
from trident.core.options import COMPUTE, FIRST_RESPONSE, QUEUE, REQUEST, LatencyOptions

# A request that may become an exemplar: its id, its duration in ns, and the wall clock's time in ms.
Seen = tuple[str, int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Exemplar:
    """A request in a bucket: its id, its value in the histogram's unit, and the time in seconds since 1970."""

    request_id: str
    value: float
    timestamp: float


@dataclass(frozen=True, slots=True, kw_only=True)
class HistogramMetrics:
    """A histogram at one moment. `bounds` and `sum` are in the unit of the family `name`.

    `counts` has one number for each bound and one for all above; they are not cumulative. `exemplars` has one entry
    for each of them.
    """

    name: str
    bounds: tuple[float, ...]
    counts: tuple[int, ...]
    sum: int | float
    exemplars: tuple[Exemplar | None, ...]

    @property
    def count(self) -> int:
        return sum(self.counts)


_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000
# An exemplar may have 128 characters, and `request_id` are ten of them (OpenMetrics 1.0, "Exemplars").
_LONGEST_ID = 118


class Histogram:
    """The durations of one kind, counted between bounds. The caller holds a lock."""

    def __init__(self, name: str, bounds: Sequence[float]) -> None:
        """`bounds` are ascending, in the unit of the family `name`."""
        self._name = name
        self._bounds = tuple(bounds)
        self._ns_per_unit = _NS_PER_MS if name == FIRST_RESPONSE else _NS_PER_S
        if name == FIRST_RESPONSE:  # Triton counts whole milliseconds, so 100.9 ms are in the bucket of 100.
            self._limits = [int((bound // 1 + 1) * _NS_PER_MS) - 1 for bound in bounds]
        else:
            self._limits = [round(bound * _NS_PER_S) for bound in bounds]
        self._counts = [0] * (len(bounds) + 1)
        self._exemplars: list[Seen | None] = [None] * (len(bounds) + 1)
        self._total_ns = 0

    def add(self, duration_ns: int, request_id: str, now_ms: int) -> None:
        index = bisect_left(self._limits, duration_ns)
        self._counts[index] += 1
        self._total_ns += duration_ns
        if request_id and len(request_id) <= _LONGEST_ID:
            self._exemplars[index] = (request_id, duration_ns, now_ms)

    def metrics(self) -> HistogramMetrics:
        whole = self._name == FIRST_RESPONSE
        return HistogramMetrics(
            name=self._name,
            bounds=self._bounds,
            counts=tuple(self._counts),
            sum=self._total_ns // _NS_PER_MS if whole else self._total_ns / _NS_PER_S,
            # An id is any text of a client: one that cannot be printed could spoil the page.
            exemplars=tuple(
                Exemplar(request_id=seen[0], value=seen[1] / self._ns_per_unit, timestamp=seen[2] / 1000)
                if seen is not None and seen[0].isprintable()
                else None
                for seen in self._exemplars
            ),
        )


_DURATIONS = ("request", "queue", "compute_input", "compute_infer", "compute_output")
CACHE_SUMMARIES = ("nv_cache_hit_summary_per_model", "nv_cache_miss_summary_per_model")
"""The time of hits and misses of the response cache, of a server that has one."""
HISTOGRAMS = (FIRST_RESPONSE, REQUEST, QUEUE, COMPUTE)
SUMMARIES = (*(f"nv_inference_{duration}_summary_us" for duration in _DURATIONS), *CACHE_SUMMARIES)

_PARTS = 5
_PART_NS = 12_000_000_000
# A step has all values with the same first 7 bits, so its middle is at most 0.8 % off.
_BITS = 7

# How many values there were in each step.
Steps = defaultdict[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class SummaryMetrics:
    """A summary at one moment. `quantiles` are pairs of a quantile and its value, NaN for an empty minute.

    Values and `sum` are in microseconds; `sum` and `count` are those of all values, not only of the last minute.
    """

    name: str
    quantiles: tuple[tuple[float, float], ...]
    sum: int
    count: int


class Summary:
    """The durations of one kind in the last minute. Times are of the monotonic clock. The caller holds a lock."""

    def __init__(self, name: str, quantiles: Sequence[float]) -> None:
        self._name = name
        self._quantiles = tuple(quantiles)
        self._parts: deque[Steps] = deque([defaultdict(int)], _PARTS)
        self._ends_ns = 0
        self._count = 0
        self._total_ns = 0

    def add(self, duration_ns: int, now_ns: int) -> None:
        if now_ns >= self._ends_ns:
            self._advance(now_ns)
        self._parts[-1][_step(duration_ns)] += 1
        self._count += 1
        self._total_ns += duration_ns

    def metrics(self, now_ns: int) -> SummaryMetrics:
        if now_ns >= self._ends_ns:
            self._advance(now_ns)
        return SummaryMetrics(
            name=self._name,
            quantiles=quantile_values(self._parts, self._quantiles),
            sum=self._total_ns // 1000,
            count=self._count,
        )

    def _advance(self, now_ns: int) -> None:
        passed = (now_ns - self._ends_ns) // _PART_NS + 1 if self._ends_ns else 1
        self._ends_ns = self._ends_ns + passed * _PART_NS if self._ends_ns else now_ns + _PART_NS
        self._parts.extend(defaultdict(int) for _ in range(min(passed, _PARTS)))


def _step(duration_ns: int) -> int:
    """The number of bits, followed by the first of them. Faster than a logarithm; one step for 0."""
    bits = duration_ns.bit_length()
    return (bits << _BITS) + ((duration_ns << _BITS) >> bits)


def quantile_values(parts: Iterable[Mapping[int, int]], quantiles: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """Each quantile with its value in microseconds."""
    steps: Steps = defaultdict(int)
    for part in parts:
        for step, count in part.items():
            steps[step] += count
    ordered = sorted((step, count) for step, count in steps.items() if count)
    return tuple((quantile, _value(ordered, quantile)) for quantile in quantiles)


def _value(ordered: Sequence[tuple[int, int]], quantile: float) -> float:
    rank = max(1, ceil(quantile * sum(count for _, count in ordered)))
    for step, count in ordered:
        rank -= count
        if rank <= 0:
            bits, first = divmod(step, 1 << _BITS)
            middle_ns = (first + 0.5) * 2.0 ** (bits - _BITS) if bits else 0.0
            return middle_ns / 1000
    return nan


# Source: docs/spec/statistics-and-metrics.md section B.


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyMetrics:
    """All distributions of a version at one moment; a kind that is switched off is empty."""

    histograms: tuple[HistogramMetrics, ...] = ()
    summaries: tuple[SummaryMetrics, ...] = ()


class LatencyMeters:
    """The distributions of one version. Durations are nanoseconds of the monotonic clock. The caller holds a lock."""

    def __init__(self, options: LatencyOptions, bounds: Mapping[str, Sequence[float]]) -> None:
        """`bounds` has the bounds of each histogram by its name, ascending."""
        self._histograms = [Histogram(name, bounds[name]) for name in HISTOGRAMS] if options.histograms else []
        self._summaries = [Summary(name, options.quantiles) for name in SUMMARIES] if options.summaries else []
        self._steps: Steps | None = defaultdict(int) if options.steps else None

    def take_steps(self) -> Mapping[int, int]:
        """The durations of the requests that succeeded since the last call, counted as `quantile_values` takes them."""
        taken = self._steps
        if not taken:
            return {}
        self._steps = defaultdict(int)
        return taken

    def observe_batch(
        self,
        requests: Sequence[PendingRequest],
        compute_start_ns: int,
        input_end_ns: int,
        output_start_ns: int,
        compute_end_ns: int,
        now_ms: int,
        first_ns: int = 0,
    ) -> None:
        """Count the successful requests of one execution; `now_ms` is the wall clock's time.

        `first_ns` is when a request that was answered until `compute_end_ns` had the first of its responses.
        """
        for pending in requests:
            duration_ns, queue_ns = compute_end_ns - pending.start_ns, compute_start_ns - pending.enqueue_ns
            if self._histograms:
                first_response, request, queue, compute = self._histograms
                request_id = pending.request.id
                first_response.add(first_ns - pending.start_ns if first_ns else duration_ns, request_id, now_ms)
                request.add(duration_ns, request_id, now_ms)
                queue.add(queue_ns, request_id, now_ms)
                compute.add(compute_end_ns - compute_start_ns, request_id, now_ms)
            if self._summaries:
                request_summary, queue_summary, compute_input, compute_infer, compute_output, _, _ = self._summaries
                request_summary.add(duration_ns, compute_end_ns)
                queue_summary.add(queue_ns, compute_end_ns)
                compute_input.add(input_end_ns - compute_start_ns, compute_end_ns)
                compute_infer.add(output_start_ns - input_end_ns, compute_end_ns)
                compute_output.add(compute_end_ns - output_start_ns, compute_end_ns)
            if self._steps is not None:
                self._steps[_step(duration_ns)] += 1

    def observe_hit(self, request_id: str, duration_ns: int, now_ns: int, now_ms: int) -> None:
        """Count a request that the response cache answered at `now_ns`: it never waited in a queue."""
        if self._histograms:
            first_response, request, queue, _ = self._histograms
            first_response.add(duration_ns, request_id, now_ms)
            request.add(duration_ns, request_id, now_ms)
            queue.add(0, request_id, now_ms)
        if self._summaries:
            request_summary, queue_summary, _, _, _, hit, _ = self._summaries
            request_summary.add(duration_ns, now_ns)
            queue_summary.add(0, now_ns)
            hit.add(duration_ns, now_ns)
        if self._steps is not None:
            self._steps[_step(duration_ns)] += 1

    def observe_miss(self, duration_ns: int, now_ns: int) -> None:
        """Count a request whose answer was not in the response cache and stored there at `now_ns`."""
        if self._summaries:
            self._summaries[-1].add(duration_ns, now_ns)

    def observe_failure(self, pending: PendingRequest, duration_ns: int, now_ms: int) -> None:
        """Count a request that was answered with an error: that is a first response, too."""
        if self._histograms:
            self._histograms[0].add(duration_ns, pending.request.id, now_ms)

    def metrics(self, now_ns: int) -> LatencyMetrics:
        return LatencyMetrics(
            histograms=tuple(each.metrics() for each in self._histograms),
            summaries=tuple(each.metrics(now_ns) for each in self._summaries),
        )
