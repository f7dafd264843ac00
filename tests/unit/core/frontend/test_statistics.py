from __future__ import annotations

import pytest

from trident.core.frontend.admin import model_statistics_json
from trident.core.inference.request import CloseReason
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.observability.statistics import (
    BatchStatistics,
    BucketUse,
    FailureReason,
    ResponseKind,
    StatisticsSnapshot,
    VersionStatistics,
)

COUNTED = StatisticsSnapshot(
    request_success=3,
    request_failures={FailureReason.BACKEND: 1, FailureReason.REJECTED: 1},
    inference_count=4,
    execution_count=2,
    request_ns=406,
    queue_ns=230,
    compute_input_ns=21,
    compute_infer_ns=82,
    compute_output_ns=43,
    pending=7,
    failure_ns=2**63,
    last_inference_ms=1_700_000_000_123,
    batch_closes={CloseReason.FULL: 1, CloseReason.DELAY: 1},
    batches=(
        BatchStatistics(batch_size=2, execution_count=1, compute_input_ns=1, compute_infer_ns=2, compute_output_ns=3),
    ),
)


@pytest.fixture
def item() -> dict[str, object]:
    (item,) = model_statistics_json([VersionStatistics(name="m", version=7, statistics=COUNTED)])["model_stats"]
    return item


def test_counts_and_durations_are_where_triton_has_them(item: dict[str, object]) -> None:
    assert item == {
        "name": "m",
        "version": "7",
        "last_inference": 1_700_000_000_123,
        "inference_count": 4,
        "execution_count": 2,
        "inference_stats": {
            "success": {"count": 3, "ns": 406},
            "fail": {"count": 2, "ns": 2**63},
            "queue": {"count": 3, "ns": 230},
            "compute_input": {"count": 3, "ns": 21},
            "compute_infer": {"count": 3, "ns": 82},
            "compute_output": {"count": 3, "ns": 43},
            "cache_hit": {"count": 0, "ns": 0},
            "cache_miss": {"count": 0, "ns": 0},
        },
        "response_stats": {},
        "batch_stats": [
            {
                "batch_size": 2,
                "compute_input": {"count": 1, "ns": 1},
                "compute_infer": {"count": 1, "ns": 2},
                "compute_output": {"count": 1, "ns": 3},
            }
        ],
        "memory_usage": [],
        "batch_close_count": {"full": 1, "delay": 1},
    }


def test_the_memory_of_a_model_is_that_of_its_processes() -> None:
    version = VersionStatistics(name="m", version=1, statistics=ModelStatistics().snapshot(), memory_bytes=5000)
    (item,) = model_statistics_json([version])["model_stats"]
    assert item["memory_usage"] == [{"type": "CPU", "id": 0, "byte_size": 5000}]


def test_keys_have_the_order_that_triton_gives_them_and_then_come_our_own(item: dict[str, dict[str, object]]) -> None:
    assert " ".join(item) == (
        "name version last_inference inference_count execution_count inference_stats response_stats batch_stats "
        "memory_usage batch_close_count"
    )
    assert " ".join(item["inference_stats"]) == (
        "success fail queue compute_input compute_infer compute_output cache_hit cache_miss"
    )


def test_a_new_version_has_zeros() -> None:
    new = VersionStatistics(name="m", version=1, statistics=ModelStatistics().snapshot())
    (item,) = model_statistics_json([new])["model_stats"]
    assert set(map(str, item["inference_stats"].values())) == {"{'count': 0, 'ns': 0}"}
    assert item["batch_stats"] == []


def test_responses_of_senders_are_told_by_their_index() -> None:
    statistics = ModelStatistics()
    for kind, ns in ((ResponseKind.SUCCESS, 5), (ResponseKind.SUCCESS, 6), (ResponseKind.FAIL, 7)):
        statistics.record_response(0, kind, ns)
    statistics.record_response(1, ResponseKind.EMPTY, 1)
    statistics.record_response(1, ResponseKind.CANCELLED, 2)
    statistics.record_response(100_000, ResponseKind.SUCCESS, 2)
    told = VersionStatistics(name="m", version=1, statistics=statistics.snapshot())
    none = {"count": 0, "ns": 0}
    assert model_statistics_json([told])["model_stats"][0]["response_stats"] == {
        "0": {
            "compute_infer": {"count": 3, "ns": 18},
            "compute_output": {"count": 2, "ns": 0},
            "success": {"count": 2, "ns": 11},
            "fail": {"count": 1, "ns": 7},
            "empty_response": none,
            "cancel": none,
        },
        "1": {
            "compute_infer": {"count": 1, "ns": 1},
            "compute_output": none,
            "success": none,
            "fail": none,
            "empty_response": {"count": 1, "ns": 1},
            "cancel": {"count": 1, "ns": 2},
        },
    }


def test_buckets_are_shown_with_the_sizes_that_the_model_pads_to(item: dict[str, object]) -> None:
    assert "bucket_stats" not in item  # Triton has no such field
    statistics = ModelStatistics()
    for use in (BucketUse(4, 0, 6, 2), BucketUse(4, 0, 8, 0)):
        statistics.record_bucket(use)
    version = VersionStatistics(name="m", version=7, statistics=statistics.snapshot())
    (shown,) = model_statistics_json([version])["model_stats"]
    assert shown["bucket_stats"] == [{"batch_size": 4, "execution_count": 2, "element_count": 14, "padding_count": 2}]
