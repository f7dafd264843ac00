"""What a model did in an interval: the difference of two snapshots, and the sum over versions and models."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from core.observability.latencies.buckets import COMPUTE, QUEUE, REQUEST
from core.observability.metrics.snapshot import ModelMetrics
from core.observability.metrics_log.report import Figure
from core.observability.statistics import FailureReason, StatisticsSnapshot

_HISTOGRAMS = {"request": REQUEST, "queue": QUEUE, "compute": COMPUTE}
_PERCENTILES = (50, 99)
_NS_PER_MS = 1e6
_MS_PER_S = 1000

# How many requests there were between two bounds, in seconds.
_Bucket = tuple[float, float]


@dataclass(slots=True)
class Activity:
    """Counts and sums of an interval; `pending` is the number at its end. `+=` adds another one.

    `durations_ns` are summed over the successful requests. `buckets` are the counts of a histogram by its bounds, empty
    without histograms.
    """

    successes: int = 0
    failures: dict[FailureReason, int] = field(default_factory=lambda: dict.fromkeys(FailureReason, 0))
    inferences: int = 0
    executions: int = 0
    pending: int = 0
    durations_ns: dict[str, int] = field(default_factory=lambda: dict.fromkeys(_HISTOGRAMS, 0))
    buckets: dict[str, dict[_Bucket, int]] = field(default_factory=lambda: {part: {} for part in _HISTOGRAMS})

    @classmethod
    def since(cls, before: ModelMetrics | None, now: ModelMetrics) -> Activity:
        """What a version did after `before`; all that it ever did if it was loaded again since then, or is new."""
        total = cls._of(now)
        if before is None or _is_another_load(before, now):
            return total
        earlier = cls._of(before)
        total._add(earlier, -1)
        total.pending = now.statistics.pending
        for part, buckets in total.buckets.items():
            if any(count < 0 for count in buckets.values()):  # the histograms were switched on anew
                total.buckets[part] = cls._of(now).buckets[part]
        return total

    @classmethod
    def _of(cls, entry: ModelMetrics) -> Activity:
        statistics = entry.statistics
        made = cls(
            successes=statistics.request_success,
            failures={reason: _failed(statistics, reason) for reason in FailureReason},
            inferences=statistics.inference_count,
            executions=statistics.execution_count,
            pending=statistics.pending,
            durations_ns={
                "request": statistics.request_ns,
                "queue": statistics.queue_ns,
                "compute": statistics.compute_input_ns + statistics.compute_infer_ns + statistics.compute_output_ns,
            },
        )
        for part, name in _HISTOGRAMS.items():
            for histogram in entry.latencies.histograms:
                if histogram.name == name:
                    lower = (0.0, *histogram.bounds)
                    upper = (*histogram.bounds, float("inf"))
                    made.buckets[part] = dict(zip(zip(lower, upper, strict=True), histogram.counts, strict=True))
        return made

    def __iadd__(self, other: Activity) -> Activity:
        self._add(other, 1)
        return self

    def _add(self, other: Activity, sign: int) -> None:
        self.successes += sign * other.successes
        self.inferences += sign * other.inferences
        self.executions += sign * other.executions
        self.pending += sign * other.pending
        for reason, count in other.failures.items():
            self.failures[reason] += sign * count
        for part, duration_ns in other.durations_ns.items():
            self.durations_ns[part] += sign * duration_ns
        for part, buckets in other.buckets.items():
            mine = self.buckets[part]
            for bounds, count in buckets.items():
                mine[bounds] = mine.get(bounds, 0) + sign * count

    def figures(self) -> Iterator[Figure]:
        """Counts are always there; durations only if there were requests, and percentiles only with histograms."""
        yield Figure("request_success", self.successes)
        yield Figure("request_failure", sum(self.failures.values()))
        for reason, count in self.failures.items():
            yield Figure(f"request_failure_{reason.value.lower()}", count)
        yield Figure("inference_count", self.inferences)
        yield Figure("execution_count", self.executions)
        yield Figure("pending_request_count", self.pending)
        if self.successes > 0:
            for part in _HISTOGRAMS:
                mean_ms = self.durations_ns[part] / self.successes / _NS_PER_MS
                yield Figure(f"{part}_duration_mean", round(mean_ms, 4))
                for percent in _PERCENTILES if any(self.buckets[part].values()) else ():
                    value = quantile(self.buckets[part], percent / 100) * _MS_PER_S
                    yield Figure(f"{part}_duration_p{percent}", round(value, 4))


def quantile(buckets: dict[_Bucket, int], fraction: float) -> float:
    """The value at `fraction` of the counts, which are not all 0: by proportion within its bucket, as in Prometheus.

    Of the last bucket, which has no upper bound, it is the lower bound.
    """
    rank = fraction * sum(buckets.values())
    for (lower, upper), count in sorted(buckets.items(), key=lambda item: (item[0][1], item[0][0])):
        if rank <= count and count:
            return lower if upper == float("inf") else lower + (upper - lower) * rank / count
        rank -= count
    raise ValueError("there is nothing in the buckets")


def _failed(statistics: StatisticsSnapshot, reason: FailureReason) -> int:
    """As on the metrics page: with the requests that the queue refused."""
    return statistics.request_failures.get(reason, 0) + statistics.request_refusals.get(reason, 0)


def _is_another_load(before: ModelMetrics, now: ModelMetrics) -> bool:
    """Each load takes another time; the counts of a new one begin at 0."""
    return (
        before.load_duration_secs != now.load_duration_secs
        or before.statistics.request_success > now.statistics.request_success
    )
