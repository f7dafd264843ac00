"""The distributions of one model version's durations, counted once per execution.

Source: docs/spec/statistics-and-metrics.md section B.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from core.inference.pending_request import PendingRequest
from core.observability.latencies.histogram import HistogramMetrics
from core.observability.latencies.histograms import Histograms
from core.observability.latencies.options import LatencyOptions
from core.observability.latencies.summaries import Summaries, SummaryMetrics
from core.observability.latencies.sums import LatencySums


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

    def observe_hit(self, request_id: str, duration_ns: int, now_ns: int, now_ms: int) -> None:
        """Count a request that the response cache answered at `now_ns`."""
        if self._histograms is not None:
            self._histograms.observe_hit(request_id, duration_ns, now_ms)
        if self._summaries is not None:
            self._summaries.observe_hit(duration_ns, now_ns)

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
