"""The quantiles of one model version's durations in the last minute.

Triton's client library keeps 60 s in five parts of 12 s. So does this one, but it counts values by their leading bits:
that costs the same for every value, and a quantile is within one percent.
Source: docs/spec/statistics-and-metrics.md section B, "Rules".
"""

from __future__ import annotations

from bisect import bisect_left
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, fields
from math import ceil, nan

from trident.core.inference.pending_request import PendingRequest
from trident.core.observability.latency_options import COMPUTE, FIRST_RESPONSE, QUEUE, REQUEST, LatencyOptions


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencySums:
    """Nanoseconds, summed over the `success_count` successful requests; `failure_ns` over the failed ones.

    The durations of hits of the response cache are in `request_ns` and in `cache_hit_ns`.
    """

    success_count: int
    request_ns: int
    queue_ns: int
    compute_input_ns: int
    compute_infer_ns: int
    compute_output_ns: int
    failure_ns: int
    cache_hit_count: int = 0
    cache_hit_ns: int = 0
    cache_miss_count: int = 0
    cache_miss_ns: int = 0

    def since(self, before: LatencySums) -> LatencySums:
        """Return the difference to an earlier state."""
        added = {each.name: getattr(self, each.name) - getattr(before, each.name) for each in fields(self)}
        return LatencySums(**added)

    @property
    def compute_ns(self) -> int:
        return self.compute_input_ns + self.compute_infer_ns + self.compute_output_ns


# A request that may become an exemplar: its id, its duration in ns, and the wall clock's time in ms. A plain tuple,
# because the hot path makes it.
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


class Buckets:
    """The counts of durations in ns. `limits` are the highest durations of all buckets but the last, ascending.

    The hot path counts in `counts` and `exemplars` itself. The caller holds a lock.
    """

    __slots__ = ("counts", "exemplars", "limits")

    def __init__(self, limits: Iterable[int]) -> None:
        self.limits = sorted(set(limits))
        self.counts = [0] * (len(self.limits) + 1)
        self.exemplars: list[Seen | None] = [None] * (len(self.limits) + 1)

    def merged_into(self, limits: Sequence[int]) -> Buckets:
        """The counts in fewer buckets, whose limits are among these. The latest exemplar of a bucket stays."""
        merged = Buckets(limits)
        for position, count in enumerate(self.counts):
            index = bisect_left(merged.limits, self.limits[position]) if position < len(self.limits) else -1
            merged.counts[index] += count
            merged.exemplars[index] = _later(merged.exemplars[index], self.exemplars[position])
        return merged

    def plus(self, other: Buckets) -> Buckets:
        """The sum of two with the same limits."""
        total = Buckets(self.limits)
        total.counts = [mine + its for mine, its in zip(self.counts, other.counts, strict=True)]
        total.exemplars = [_later(mine, its) for mine, its in zip(self.exemplars, other.exemplars, strict=True)]
        return total

    def metrics(self, name: str, bounds: tuple[float, ...], total: int | float, ns_per_unit: int) -> HistogramMetrics:
        """The histogram `name` with the sum `total`; `bounds` are those of `limits` in its unit."""
        return HistogramMetrics(
            name=name,
            bounds=bounds,
            counts=tuple(self.counts),
            sum=total,
            exemplars=tuple(_exemplar(seen, ns_per_unit) for seen in self.exemplars),
        )


def _later(one: Seen | None, other: Seen | None) -> Seen | None:
    if one is None or other is None:
        return one or other
    return one if one[2] > other[2] else other


def _exemplar(seen: Seen | None, ns_per_unit: int) -> Exemplar | None:
    """An id is any text of a client: one that cannot be printed could spoil the page."""
    if seen is None or not seen[0].isprintable():
        return None
    request_id, duration_ns, at_ms = seen
    return Exemplar(request_id=request_id, value=duration_ns / ns_per_unit, timestamp=at_ms / 1000)


# Source: docs/spec/statistics-and-metrics.md section B.


_NS_PER_MS = 1_000_000
_NS_PER_S = 1_000_000_000
# An exemplar may have 128 characters, and `request_id` are ten of them (OpenMetrics 1.0, "Exemplars").
_LONGEST_ID = 118


class Histograms:
    """Durations are nanoseconds of the monotonic clock. The caller holds a lock."""

    def __init__(self, bounds: Mapping[str, Sequence[float]]) -> None:
        """`bounds` has the bounds of each histogram by its name, ascending."""
        self._bounds = {name: tuple(each) for name, each in bounds.items()}
        # Triton counts whole milliseconds, so 100.9 ms are in the bucket of 100.
        self._first_limits = [int((bound // 1 + 1) * _NS_PER_MS) - 1 for bound in bounds[FIRST_RESPONSE]]
        self._request_limits = _limits(bounds[REQUEST])
        # The first response of these requests is the only one, so one search finds its bucket in both.
        self._requests = Buckets((*self._first_limits, *self._request_limits))
        self._failures = Buckets(self._first_limits)
        # Those of requests with several responses, and the time from the first one to the last.
        self._first_of_many = Buckets(self._first_limits)
        self._many = Buckets(self._request_limits)
        self._after_first_ns = 0
        self._queue = Buckets(_limits(bounds[QUEUE]))
        self._compute = Buckets(_limits(bounds[COMPUTE]))

    def observe(
        self, requests: Sequence[PendingRequest], compute_start_ns: int, compute_end_ns: int, now_ms: int
    ) -> None:
        """Count the successful requests of one execution."""
        all_requests, queue, compute = self._requests, self._queue, self._compute
        compute_ns = compute_end_ns - compute_start_ns
        compute_index = bisect_left(compute.limits, compute_ns)
        compute.counts[compute_index] += len(requests)
        request_limits, request_counts = all_requests.limits, all_requests.counts
        queue_limits, queue_counts = queue.limits, queue.counts
        for pending in requests:
            request_ns = compute_end_ns - pending.start_ns
            request_index = bisect_left(request_limits, request_ns)
            request_counts[request_index] += 1
            queue_ns = compute_start_ns - pending.enqueue_ns
            queue_index = bisect_left(queue_limits, queue_ns)
            queue_counts[queue_index] += 1
            request_id = pending.request.id
            if request_id and len(request_id) <= _LONGEST_ID:
                all_requests.exemplars[request_index] = (request_id, request_ns, now_ms)
                queue.exemplars[queue_index] = (request_id, queue_ns, now_ms)
                compute.exemplars[compute_index] = (request_id, compute_ns, now_ms)

    def observe_hit(self, request_id: str, duration_ns: int, now_ms: int) -> None:
        """Count a request that the response cache answered: it never waited in a queue."""
        _count(self._requests, duration_ns, request_id, now_ms)
        _count(self._queue, 0, request_id, now_ms)

    def observe_failure(self, pending: PendingRequest, duration_ns: int, now_ms: int) -> None:
        """Count a request that was answered with an error: that is a first response, too."""
        _count(self._failures, duration_ns, pending.request.id, now_ms)

    def observe_many(
        self, pending: PendingRequest, compute_start_ns: int, first_ns: int, end_ns: int, now_ms: int
    ) -> None:
        """Count a successful request whose first response was sent at `first_ns` and the last one at `end_ns`."""
        _count(self._first_of_many, first_ns - pending.start_ns, pending.request.id, now_ms)
        _count(self._many, end_ns - pending.start_ns, pending.request.id, now_ms)
        _count(self._queue, compute_start_ns - pending.enqueue_ns, pending.request.id, now_ms)
        _count(self._compute, end_ns - compute_start_ns, pending.request.id, now_ms)
        self._after_first_ns += end_ns - first_ns

    def metrics(self, sums: LatencySums) -> tuple[HistogramMetrics, ...]:
        only = self._requests.merged_into(self._first_limits)
        first_response = only.plus(self._failures).plus(self._first_of_many)
        request = self._requests.merged_into(self._request_limits).plus(self._many)
        first_ms = (sums.request_ns + sums.failure_ns - self._after_first_ns) // _NS_PER_MS
        return (
            first_response.metrics(FIRST_RESPONSE, self._bounds[FIRST_RESPONSE], first_ms, _NS_PER_MS),
            request.metrics(REQUEST, self._bounds[REQUEST], sums.request_ns / _NS_PER_S, _NS_PER_S),
            self._queue.metrics(QUEUE, self._bounds[QUEUE], sums.queue_ns / _NS_PER_S, _NS_PER_S),
            self._compute.metrics(COMPUTE, self._bounds[COMPUTE], sums.compute_ns / _NS_PER_S, _NS_PER_S),
        )


def _count(buckets: Buckets, duration_ns: int, request_id: str, now_ms: int) -> None:
    index = bisect_left(buckets.limits, duration_ns)
    buckets.counts[index] += 1
    if request_id and len(request_id) <= _LONGEST_ID:
        buckets.exemplars[index] = (request_id, duration_ns, now_ms)


def _limits(bounds: Sequence[float]) -> list[int]:
    return [round(bound * _NS_PER_S) for bound in bounds]


_DURATIONS = ("request", "queue", "compute_input", "compute_infer", "compute_output")
CACHE_SUMMARIES = ("nv_cache_hit_summary_per_model", "nv_cache_miss_summary_per_model")
"""The time of hits and misses of the response cache, of a server that has one."""
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


class Summaries:
    """Times and durations are nanoseconds of the monotonic clock. The caller holds a lock."""

    def __init__(self, quantiles: Sequence[float]) -> None:
        self._quantiles = tuple(quantiles)
        self._parts = [_new_part()]
        self._ends_ns = 0

    def observe(
        self,
        requests: Sequence[PendingRequest],
        compute_start_ns: int,
        input_end_ns: int,
        output_start_ns: int,
        compute_end_ns: int,
    ) -> None:
        """Count the successful requests of one execution."""
        if compute_end_ns >= self._ends_ns:
            self._advance(compute_end_ns)
        request, queue, compute_input, compute_infer, compute_output, _, _ = self._parts[-1]
        for pending in requests:  # with `_step` written out: a call would take a third of the time
            duration_ns = compute_end_ns - pending.start_ns
            bits = duration_ns.bit_length()
            request[(bits << _BITS) + ((duration_ns << _BITS) >> bits)] += 1
            duration_ns = compute_start_ns - pending.enqueue_ns
            bits = duration_ns.bit_length()
            queue[(bits << _BITS) + ((duration_ns << _BITS) >> bits)] += 1
        count = len(requests)
        compute_input[_step(input_end_ns - compute_start_ns)] += count
        compute_infer[_step(output_start_ns - input_end_ns)] += count
        compute_output[_step(compute_end_ns - output_start_ns)] += count

    def observe_hit(self, duration_ns: int, now_ns: int) -> None:
        """Count a request that the response cache answered: it never waited in a queue."""
        if now_ns >= self._ends_ns:
            self._advance(now_ns)
        request, queue, _, _, _, hit, _ = self._parts[-1]
        request[_step(duration_ns)] += 1
        queue[_step(0)] += 1
        hit[_step(duration_ns)] += 1

    def observe_miss(self, duration_ns: int, now_ns: int) -> None:
        """Count a request whose answer was looked up in vain and kept."""
        if now_ns >= self._ends_ns:
            self._advance(now_ns)
        self._parts[-1][-1][_step(duration_ns)] += 1

    def metrics(self, sums: LatencySums, now_ns: int) -> tuple[SummaryMetrics, ...]:
        if now_ns >= self._ends_ns:
            self._advance(now_ns)
        executed_count = sums.success_count - sums.cache_hit_count
        totals = (
            (sums.request_ns, sums.success_count),
            (sums.queue_ns, sums.success_count),
            (sums.compute_input_ns, executed_count),
            (sums.compute_infer_ns, executed_count),
            (sums.compute_output_ns, executed_count),
            (sums.cache_hit_ns, sums.cache_hit_count),
            (sums.cache_miss_ns, sums.cache_miss_count),
        )
        return tuple(
            SummaryMetrics(
                name=name,
                quantiles=quantile_values([part[index] for part in self._parts], self._quantiles),
                sum=total // 1000,
                count=count,
            )
            for index, (name, (total, count)) in enumerate(zip(SUMMARIES, totals, strict=True))
        )

    def _advance(self, now_ns: int) -> None:
        """Begin the part in which `now_ns` is, and forget what is older than a minute."""
        passed = (now_ns - self._ends_ns) // _PART_NS + 1 if self._ends_ns else 1
        self._ends_ns = self._ends_ns + passed * _PART_NS if self._ends_ns else now_ns + _PART_NS
        self._parts += [_new_part() for _ in range(min(passed, _PARTS))]
        del self._parts[:-_PARTS]


def _new_part() -> tuple[Steps, ...]:
    return tuple(defaultdict(int) for _ in SUMMARIES)


def _step(duration_ns: int) -> int:
    """The number of bits, followed by the first of them. Faster than a logarithm; one step for 0."""
    bits = duration_ns.bit_length()
    return (bits << _BITS) + ((duration_ns << _BITS) >> bits)


def _middle_ns(step: int) -> float:
    bits, first = divmod(step, 1 << _BITS)
    return (first + 0.5) * 2.0 ** (bits - _BITS) if bits else 0.0


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
            return _middle_ns(step) / 1000
    return nan


# Source: docs/spec/statistics-and-metrics.md section B.


@dataclass(frozen=True, slots=True, kw_only=True)
class LatencyMetrics:
    """All distributions of a version at one moment; a kind that is switched off is empty."""

    histograms: tuple[HistogramMetrics, ...] = ()
    summaries: tuple[SummaryMetrics, ...] = ()


class LatencyMeters:
    """Durations are nanoseconds of the monotonic clock. The caller holds a lock."""

    def __init__(self, options: LatencyOptions, bounds: Mapping[str, Sequence[float]]) -> None:
        """`bounds` has the bounds of each histogram by its name, ascending."""
        self._histograms = Histograms(bounds) if options.histograms else None
        self._summaries = Summaries(options.quantiles) if options.summaries else None
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
    ) -> None:
        """Count the successful requests of one execution; `now_ms` is the wall clock's time."""
        if self._histograms is not None:
            self._histograms.observe(requests, compute_start_ns, compute_end_ns, now_ms)
        if self._summaries is not None:
            self._summaries.observe(requests, compute_start_ns, input_end_ns, output_start_ns, compute_end_ns)
        if self._steps is not None:
            for pending in requests:
                self._steps[_step(compute_end_ns - pending.start_ns)] += 1

    def observe_many(
        self,
        pending: PendingRequest,
        compute_start_ns: int,
        input_end_ns: int,
        first_ns: int,
        output_start_ns: int,
        end_ns: int,
        now_ms: int,
    ) -> None:
        """Count a successful request that was answered from `first_ns` to `end_ns`."""
        if self._histograms is not None:
            self._histograms.observe_many(pending, compute_start_ns, first_ns, end_ns, now_ms)
        if self._summaries is not None:
            self._summaries.observe((pending,), compute_start_ns, input_end_ns, output_start_ns, end_ns)
        if self._steps is not None:
            self._steps[_step(end_ns - pending.start_ns)] += 1

    def observe_hit(self, request_id: str, duration_ns: int, now_ns: int, now_ms: int) -> None:
        """Count a request that the response cache answered at `now_ns`."""
        if self._histograms is not None:
            self._histograms.observe_hit(request_id, duration_ns, now_ms)
        if self._summaries is not None:
            self._summaries.observe_hit(duration_ns, now_ns)
        if self._steps is not None:
            self._steps[_step(duration_ns)] += 1

    def observe_miss(self, duration_ns: int, now_ns: int) -> None:
        """Count a request whose answer was looked up in vain and kept at `now_ns`."""
        if self._summaries is not None:
            self._summaries.observe_miss(duration_ns, now_ns)

    def observe_failure(self, pending: PendingRequest, duration_ns: int, now_ms: int) -> None:
        """Count a request that failed."""
        if self._histograms is not None:
            self._histograms.observe_failure(pending, duration_ns, now_ms)

    def metrics(self, sums: LatencySums, now_ns: int) -> LatencyMetrics:
        histograms, summaries = self._histograms, self._summaries
        return LatencyMetrics(
            histograms=histograms.metrics(sums) if histograms is not None else (),
            summaries=summaries.metrics(sums, now_ns) if summaries is not None else (),
        )
