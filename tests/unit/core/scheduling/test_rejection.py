from __future__ import annotations

import pytest

from tests.unit.pending_requests import pending_request
from trident.core.errors import DeadlineExceeded, RequestCancelled, ServerError, ServerStopping
from trident.core.inference.response import InferenceResponse
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.observability.statistics import FailureReason
from trident.core.scheduling.queue import Rejection, deliver, reject


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RequestCancelled(""), FailureReason.CANCELED),
        (DeadlineExceeded("too late"), FailureReason.REJECTED),
        (ServerStopping("stopping"), FailureReason.OTHER),
    ],
)
def test_a_rejected_request_is_counted_by_its_error_and_answered(error: ServerError, reason: FailureReason) -> None:
    responses: list[InferenceResponse] = []
    flushes: list[int] = []
    pending = pending_request("a", on_response=responses.append)
    pending.flush = lambda: flushes.append(len(responses))
    statistics = ModelStatistics()
    reject(Rejection(pending, error), statistics, deliver, 1)
    assert [(response.id, response.error, response.final) for response in responses] == [("a", error, True)]
    assert flushes == [1]
    failures = statistics.snapshot().request_failures
    assert {counted: number for counted, number in failures.items() if number} == {reason: 1}
