"""The quantiles of one model version's durations in the last minute.

Triton's client library keeps 60 s in five parts of 12 s. So does this one, but it counts values by their leading bits:
that costs the same for every value, and a quantile is within one percent.
Source: docs/spec/statistics-and-metrics.md section B, "Rules".
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from math import ceil, nan

from core.inference.pending_request import PendingRequest
from core.observability.latencies.sums import LatencySums

_DURATIONS = ("request", "queue", "compute_input", "compute_infer", "compute_output")
CACHE_SUMMARIES = ("nv_cache_hit_summary_per_model", "nv_cache_miss_summary_per_model")
"""The time of hits and misses of the response cache, of a server that has one."""
SUMMARIES = (*(f"nv_inference_{duration}_summary_us" for duration in _DURATIONS), *CACHE_SUMMARIES)

_PARTS = 5
_PART_NS = 12_000_000_000
# A step has all values with the same first 7 bits, so its middle is at most 0.8 % off.
_BITS = 7

# How many values there were in each step.
_Steps = defaultdict[int, int]


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
                quantiles=_values([part[index] for part in self._parts], self._quantiles),
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


def _new_part() -> tuple[_Steps, ...]:
    return tuple(defaultdict(int) for _ in SUMMARIES)


def _step(duration_ns: int) -> int:
    """The number of bits, followed by the first of them. Faster than a logarithm; one step for 0."""
    bits = duration_ns.bit_length()
    return (bits << _BITS) + ((duration_ns << _BITS) >> bits)


def _middle_ns(step: int) -> float:
    bits, first = divmod(step, 1 << _BITS)
    return (first + 0.5) * 2.0 ** (bits - _BITS) if bits else 0.0


def _values(parts: Sequence[_Steps], quantiles: Sequence[float]) -> tuple[tuple[float, float], ...]:
    """Each quantile with its value in microseconds."""
    steps: _Steps = defaultdict(int)
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
