"""The statistics of model versions as v2 JSON has them, with Triton's order of keys. `batch_close_count` is Trident's.

Source: docs/spec/statistics-and-metrics.md section A.
"""

from __future__ import annotations

from collections.abc import Iterable
from datetime import UTC, datetime
from typing import Any

from core.observability.bucket_statistics import BucketStatistics
from core.observability.response_statistics import ResponseStatistics
from core.observability.slowest_requests import NotedRequest, VersionRequests
from core.observability.statistics import BatchStatistics, StatisticsSnapshot, VersionStatistics

Duration = dict[str, int]


def model_statistics_json(versions: Iterable[VersionStatistics]) -> dict[str, Any]:
    return {"model_stats": [_version(version) for version in versions]}


def slowest_requests_json(name: str, versions: Iterable[VersionRequests]) -> dict[str, Any]:
    """Times in whole microseconds; what is not known of a request is left out."""
    return {
        "model_name": name,
        "versions": [
            {
                "version": str(version.version),
                "slowest": [_noted(request) for request in version.slowest],
                "failed": [_noted(request) for request in version.failed],
            }
            for version in versions
        ],
    }


def _noted(request: NotedRequest) -> dict[str, Any]:
    ended = datetime.fromtimestamp(request.ended_ms / 1000, UTC)
    shown: dict[str, Any] = {
        "id": request.id,
        "ended": f"{ended:%Y-%m-%dT%H:%M:%S}.{request.ended_ms % 1000:03}Z",
        "status": request.failure or "OK",
        "duration_us": request.duration_ns // 1000,
    }
    if request.batch_size:
        shown |= {
            "queue_us": request.queue_ns // 1000,
            "compute_input_us": request.compute_input_ns // 1000,
            "compute_infer_us": request.compute_infer_ns // 1000,
            "compute_output_us": request.compute_output_ns // 1000,
            "batch_size": request.batch_size,
        }
    more = {"batch_close": request.batch_close, "error": request.error}
    return {**shown, **{name: text for name, text in more.items() if text}}


def _version(version: VersionStatistics) -> dict[str, Any]:
    """Only the memory of a model's own processes is known: that of the others stays empty."""
    statistics = version.statistics
    success = statistics.request_success
    return {
        "name": version.name,
        "version": str(version.version),
        "last_inference": statistics.last_inference_ms,
        "inference_count": statistics.inference_count,
        "execution_count": statistics.execution_count,
        "inference_stats": {
            "success": _duration(success, statistics.request_ns),
            "fail": _duration(sum(statistics.request_failures.values()), statistics.failure_ns),
            "queue": _duration(success, statistics.queue_ns),
            **_compute(statistics.executed_count, statistics),
            "cache_hit": _duration(statistics.cache_hit_count, statistics.cache_hit_ns),
            "cache_miss": _duration(statistics.cache_miss_count, statistics.cache_miss_ns),
        },
        "response_stats": {str(response.index): _response(response) for response in statistics.responses},
        "batch_stats": [
            {"batch_size": batch.batch_size, **_compute(batch.execution_count, batch)} for batch in statistics.batches
        ],
        "memory_usage": [{"type": "CPU", "id": 0, "byte_size": version.memory_bytes}] if version.memory_bytes else [],
        "batch_close_count": {reason.label: count for reason, count in statistics.batch_closes.items()},
        **({"bucket_stats": [_bucket(bucket) for bucket in statistics.buckets]} if statistics.buckets else {}),
    }


def _bucket(bucket: BucketStatistics) -> dict[str, int]:
    """Only the sizes to which the model pads. Not Triton's: it has no buckets."""
    sizes = {"batch_size": bucket.batch_size, "length": bucket.length}
    return {
        **{name: size for name, size in sizes.items() if size},
        "execution_count": bucket.execution_count,
        "element_count": bucket.element_count,
        "padding_count": bucket.padding_count,
    }


def _compute(count: int, durations: StatisticsSnapshot | BatchStatistics) -> dict[str, Duration]:
    return {
        "compute_input": _duration(count, durations.compute_input_ns),
        "compute_infer": _duration(count, durations.compute_infer_ns),
        "compute_output": _duration(count, durations.compute_output_ns),
    }


def _response(response: ResponseStatistics) -> dict[str, Duration]:
    """What a response takes after it was sent is not measured: `compute_output` only counts."""
    success, fail, empty, cancelled = map(_duration, response.counts, response.durations_ns)
    made = (success, fail, empty)
    return {
        "compute_infer": _duration(sum(each["count"] for each in made), sum(each["ns"] for each in made)),
        "compute_output": _duration(success["count"], 0),
        "success": success,
        "fail": fail,
        "empty_response": empty,
        "cancel": cancelled,
    }


def _duration(count: int, ns: int) -> Duration:
    return {"count": count, "ns": ns}
