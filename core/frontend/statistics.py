"""The statistics of model versions as v2 JSON has them, with Triton's order of keys.

Source: docs/spec/statistics-and-metrics.md section A.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from core.observability.statistics import BatchStatistics, StatisticsSnapshot, VersionStatistics

Duration = dict[str, int]


def model_statistics_json(versions: Iterable[VersionStatistics]) -> dict[str, Any]:
    return {"model_stats": [_version(version) for version in versions]}


def _version(version: VersionStatistics) -> dict[str, Any]:
    """The server has no response cache and counts neither responses by index nor memory: these stay zero and empty."""
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
            **_compute(success, statistics),
            "cache_hit": _duration(0, 0),
            "cache_miss": _duration(0, 0),
        },
        "response_stats": {},
        "batch_stats": [
            {"batch_size": batch.batch_size, **_compute(batch.execution_count, batch)} for batch in statistics.batches
        ],
        "memory_usage": [],
    }


def _compute(count: int, durations: StatisticsSnapshot | BatchStatistics) -> dict[str, Duration]:
    return {
        "compute_input": _duration(count, durations.compute_input_ns),
        "compute_infer": _duration(count, durations.compute_infer_ns),
        "compute_output": _duration(count, durations.compute_output_ns),
    }


def _duration(count: int, ns: int) -> Duration:
    return {"count": count, "ns": ns}
