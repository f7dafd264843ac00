"""Statistics of models and their buckets."""

from __future__ import annotations

from itertools import chain, repeat

import pytest

from tests.unit.pending_requests import pending_request
from trident.core.inference.pending_request import CancelCause, PendingRequest
from trident.core.inference.request import CloseReason
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.observability.statistics import (
    BatchStatistics,
    BucketCounters,
    BucketStatistics,
    BucketUse,
    FailureReason,
    StatisticsSnapshot,
)


def request(batch_size: int, start_ns: int, enqueue_ns: int) -> PendingRequest:
    return pending_request(batch_size=batch_size, start_ns=start_ns, enqueue_ns=enqueue_ns)


@pytest.fixture
def statistics() -> ModelStatistics:
    """Two executions of three and one items, in the second of which a request failed, and one expired request."""
    times = chain([1_700_000_000_123_456_789], repeat(1_600_000_000_000_000_000))
    statistics = ModelStatistics(wall_clock=lambda: next(times))
    statistics.record_batch([request(2, 10, 20), request(1, 30, 40)], 3, 100, 110, 150, 170, CloseReason.DELAY)
    statistics.record_batch([request(0, 200, 210)], 2, 300, 301, 303, 306)
    statistics.record_failure(request(1, 220, 230), FailureReason.BACKEND, 400, "no")
    statistics.record_failure(request(1, 500, 510), FailureReason.REJECTED, 501, "no")
    return statistics


def test_a_snapshot_has_all_counts_and_durations(statistics: ModelStatistics) -> None:
    assert statistics.snapshot(pending=7) == StatisticsSnapshot(
        request_success=3,
        request_failures={
            FailureReason.REJECTED: 1,
            FailureReason.CANCELED: 0,
            FailureReason.BACKEND: 1,
            FailureReason.OTHER: 0,
        },
        inference_count=4,
        execution_count=2,
        request_ns=160 + 140 + 106,
        queue_ns=80 + 60 + 90,
        compute_input_ns=2 * 10 + 1,
        compute_infer_ns=2 * 40 + 2,
        compute_output_ns=2 * 20 + 3,
        pending=7,
        failure_ns=180 + 1,
        last_inference_ms=1_700_000_000_123,  # the second execution's clock stands before it: it never moves back
        batch_closes={**dict.fromkeys(CloseReason, 0), CloseReason.IDLE: 1, CloseReason.DELAY: 1},
        request_cancellations={**dict.fromkeys(CancelCause, 0), CancelCause.QUEUE_TIMEOUT: 1},
        batches=(
            BatchStatistics(
                batch_size=2, execution_count=1, compute_input_ns=1, compute_infer_ns=2, compute_output_ns=3
            ),
            BatchStatistics(
                batch_size=3, execution_count=1, compute_input_ns=10, compute_infer_ns=40, compute_output_ns=20
            ),
        ),
    )


def test_refusals_are_counted_apart_from_failures() -> None:
    statistics = ModelStatistics()
    for reason in (FailureReason.REJECTED, FailureReason.REJECTED, FailureReason.OTHER):
        statistics.record_refusal(request(1, 0, 0), reason, "full")
    snapshot = statistics.snapshot()
    assert snapshot.request_refusals == {FailureReason.REJECTED: 2, FailureReason.OTHER: 1}
    assert (sum(snapshot.request_failures.values()), snapshot.failure_ns) == (0, 0)


def test_cancelled_requests_are_counted_by_their_cause() -> None:
    statistics = ModelStatistics()
    for cause in (CancelCause.CLIENT, CancelCause.DEADLINE, CancelCause.CLIENT):
        pending = request(1, 0, 0)
        pending.cancel(cause)
        statistics.record_failure(pending, FailureReason.CANCELED, 1, "no")
    statistics.record_failure(request(1, 0, 0), FailureReason.OTHER, 1, "no")
    counted = statistics.snapshot().request_cancellations
    assert counted == {CancelCause.CLIENT: 2, CancelCause.DEADLINE: 1, CancelCause.QUEUE_TIMEOUT: 0}


def test_each_bucket_is_summed_by_itself_in_ascending_order() -> None:
    counters = BucketCounters()
    for use in (BucketUse(4, 8, 20, 12), BucketUse(1, 8, 8, 0), BucketUse(4, 8, 30, 2), BucketUse(4, 4, 16, 0)):
        counters.count(use)
    assert counters.snapshot() == (
        BucketStatistics(batch_size=1, length=8, execution_count=1, element_count=8, padding_count=0),
        BucketStatistics(batch_size=4, length=4, execution_count=1, element_count=16, padding_count=0),
        BucketStatistics(batch_size=4, length=8, execution_count=2, element_count=50, padding_count=14),
    )
