"""The counters of a model version, as the statistics page and the metrics see them."""

from __future__ import annotations

import pytest

from core.inference.pending_request import PendingRequest
from core.observability.statistics import FailureReason, ModelStatistics, StatisticsSnapshot
from tests.unit.pending_requests import pending_request


def request(batch_size: int, start_ns: int, enqueue_ns: int) -> PendingRequest:
    return pending_request(batch_size=batch_size, start_ns=start_ns, enqueue_ns=enqueue_ns)


@pytest.fixture
def statistics() -> ModelStatistics:
    """Two executions of three and one items, in the second of which a request failed, and one expired request."""
    times = iter([1_700_000_000_123_456_789, 1_600_000_000_000_000_000])
    statistics = ModelStatistics(wall_clock=lambda: next(times))
    statistics.record_batch([request(2, 10, 20), request(1, 30, 40)], 3, 100, 110, 150, 170)
    statistics.record_batch([request(0, 200, 210)], 2, 300, 301, 303, 306)
    statistics.record_failure(request(1, 220, 230), FailureReason.BACKEND, 400)
    statistics.record_failure(request(1, 500, 510), FailureReason.REJECTED, 501)
    return statistics


def test_a_new_model_has_counted_nothing() -> None:
    zero = {"count": 0, "ns": 0}
    parts = ("success", "fail", "queue", "compute_input", "compute_infer", "compute_output", "cache_hit", "cache_miss")
    assert ModelStatistics().as_json() == {
        "last_inference": 0,
        "inference_count": 0,
        "execution_count": 0,
        "inference_stats": dict.fromkeys(parts, zero),
        "response_stats": {},
        "batch_stats": [],
        "memory_usage": [],
    }


def test_the_order_of_keys_is_triton_s(statistics: ModelStatistics) -> None:
    page = statistics.as_json()
    assert " ".join(page) == (
        "last_inference inference_count execution_count inference_stats response_stats batch_stats memory_usage"
    )
    assert " ".join(page["inference_stats"]) == (
        "success fail queue compute_input compute_infer compute_output cache_hit cache_miss"
    )
    assert " ".join(page["batch_stats"][0]) == "batch_size compute_input compute_infer compute_output"


def test_counts_and_durations(statistics: ModelStatistics) -> None:
    page = statistics.as_json()
    assert page["last_inference"] == 1_700_000_000_123  # it only moves forward
    assert page["inference_count"] == 4
    assert page["execution_count"] == 2
    assert page["inference_stats"] == {
        "success": {"count": 3, "ns": 160 + 140 + 106},
        "fail": {"count": 2, "ns": 180 + 1},
        "queue": {"count": 3, "ns": 80 + 60 + 90},
        "compute_input": {"count": 3, "ns": 2 * 10 + 1},
        "compute_infer": {"count": 3, "ns": 2 * 40 + 2},
        "compute_output": {"count": 3, "ns": 2 * 20 + 3},
        "cache_hit": {"count": 0, "ns": 0},
        "cache_miss": {"count": 0, "ns": 0},
    }


def test_batches_by_ascending_size(statistics: ModelStatistics) -> None:
    assert statistics.as_json()["batch_stats"] == [
        {
            "batch_size": 2,
            "compute_input": {"count": 1, "ns": 1},
            "compute_infer": {"count": 1, "ns": 2},
            "compute_output": {"count": 1, "ns": 3},
        },
        {
            "batch_size": 3,
            "compute_input": {"count": 1, "ns": 10},
            "compute_infer": {"count": 1, "ns": 40},
            "compute_output": {"count": 1, "ns": 20},
        },
    ]


def test_the_snapshot_agrees_with_the_page(statistics: ModelStatistics) -> None:
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
        request_ns=406,
        queue_ns=230,
        compute_input_ns=21,
        compute_infer_ns=82,
        compute_output_ns=43,
        pending=7,
    )


def test_a_snapshot_does_not_change(statistics: ModelStatistics) -> None:
    snapshot = statistics.snapshot()
    statistics.record_failure(request(1, 0, 0), FailureReason.OTHER, 1)
    assert snapshot.request_failures[FailureReason.OTHER] == 0
    assert statistics.snapshot().request_failures[FailureReason.OTHER] == 1
