"""Histograms of durations, with an exemplar for each bucket."""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

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
