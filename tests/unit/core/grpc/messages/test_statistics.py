from __future__ import annotations

from google.protobuf import json_format
from tritonclient.grpc.service_pb2 import ModelStatisticsResponse

from trident.core.frontend.admin import model_statistics_json
from trident.core.grpc.admin_messages import model_statistics_message
from trident.core.observability.statistics import (
    BatchStatistics,
    FailureReason,
    ResponseStatistics,
    StatisticsSnapshot,
    VersionStatistics,
)

BATCH = BatchStatistics(
    batch_size=4, execution_count=2, compute_input_ns=10, compute_infer_ns=2**40, compute_output_ns=0
)
SNAPSHOT = StatisticsSnapshot(
    request_success=7,
    request_failures={FailureReason.BACKEND: 2, FailureReason.OTHER: 1},
    inference_count=8,
    execution_count=2,
    request_ns=1000,
    queue_ns=300,
    compute_input_ns=1,
    compute_infer_ns=2,
    compute_output_ns=3,
    pending=0,
    failure_ns=77,
    last_inference_ms=1795197950786,
    batches=(BATCH,),
    responses=(ResponseStatistics(index=0, counts=(3, 1, 0, 2), durations_ns=(30, 10, 0, 2**40)),),
)


def test_the_statistics_are_those_that_http_answers_as_far_as_the_message_has_them() -> None:
    versions = [VersionStatistics(name="m", version=n, statistics=SNAPSHOT, memory_bytes=n << 33) for n in (0, 1, 2)]
    message = ModelStatisticsResponse.FromString(model_statistics_message(versions))
    assert message == json_format.ParseDict(
        model_statistics_json(versions), ModelStatisticsResponse(), ignore_unknown_fields=True
    )
    assert [sum(usage.byte_size for usage in each.memory_usage) for each in message.model_stats] == [
        0,
        1 << 33,
        2 << 33,
    ]
    first = message.model_stats[0]
    assert (first.inference_stats.fail.count, first.inference_stats.fail.ns) == (3, 77)
    assert first.inference_stats.HasField("cache_hit")
    assert first.batch_stats[0].compute_infer.ns == 2**40
    assert first.response_stats["0"].cancel.ns == 2**40


def test_no_model_is_ready() -> None:
    assert model_statistics_message([]) == b""
