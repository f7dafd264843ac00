"""The histograms of one model version.

Source: docs/spec/statistics-and-metrics.md section B.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Mapping, Sequence

from core.inference.pending_request import PendingRequest
from core.observability.latencies.buckets import COMPUTE, FIRST_RESPONSE, QUEUE, REQUEST
from core.observability.latencies.histogram import Buckets, HistogramMetrics
from core.observability.latencies.sums import LatencySums

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
