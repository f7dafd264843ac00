"""The statistics of model versions.

Source: docs/spec/grpc.md section 1, docs/spec/statistics-and-metrics.md section A.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from core.frontend.statistics import Duration, model_statistics_json
from core.grpc.messages.wire import integer_field, length_field, string_field
from core.observability.statistics import VersionStatistics

# The fields of InferStatistics, InferBatchStatistics and InferResponseStatistics by their names in JSON.
_INFER = {
    "success": 1,
    "fail": 2,
    "queue": 3,
    "compute_input": 4,
    "compute_infer": 5,
    "compute_output": 6,
    "cache_hit": 7,
    "cache_miss": 8,
}
_BATCH = {"compute_input": 2, "compute_infer": 3, "compute_output": 4}
_RESPONSE = {"compute_infer": 1, "compute_output": 2, "success": 3, "fail": 4, "empty_response": 5, "cancel": 6}


def model_statistics_message(versions: Iterable[VersionStatistics]) -> bytes:
    """A ModelStatisticsResponse."""
    return b"".join([length_field(1, _version(v)) for v in model_statistics_json(versions)["model_stats"]])


def _version(version: Mapping[str, Any]) -> bytes:
    fields = [
        string_field(1, version["name"]),
        string_field(2, version["version"]),
        integer_field(3, version["last_inference"]),
        integer_field(4, version["inference_count"]),
        integer_field(5, version["execution_count"]),
        length_field(6, _durations(version["inference_stats"], _INFER)),
    ]
    for batch in version["batch_stats"]:
        fields.append(length_field(7, integer_field(1, batch["batch_size"]) + _durations(batch, _BATCH)))
    for memory in version["memory_usage"]:
        usage = string_field(1, memory["type"]) + integer_field(2, memory["id"]) + integer_field(3, memory["byte_size"])
        fields.append(length_field(8, usage))
    for index, response in version["response_stats"].items():
        fields.append(length_field(9, string_field(1, index) + length_field(2, _durations(response, _RESPONSE))))
    return b"".join(fields)


def _durations(durations: Mapping[str, Duration], fields: Mapping[str, int]) -> bytes:
    return b"".join([length_field(number, _duration(durations[name])) for name, number in fields.items()])


def _duration(duration: Duration) -> bytes:
    return integer_field(1, duration["count"]) + integer_field(2, duration["ns"])
