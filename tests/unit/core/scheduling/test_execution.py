from __future__ import annotations

import pytest

from core.errors import InvalidRequest
from core.inference.request import InferenceRequest
from core.observability.statistics import ModelStatistics
from core.scheduling.execution import run_once
from tests.unit.core.scheduling.echo_instance import EchoInstance


def test_run_once_returns_outputs_and_counts_without_callbacks() -> None:
    backend, statistics = EchoInstance(), ModelStatistics()
    requests = [InferenceRequest("m", [], id=id) for id in "ab"]
    outputs = run_once(backend, requests, lambda request: (1, None), statistics)
    assert [tensors[0].array[0] for tensors in outputs] == ["a", "b"]
    counted = statistics.snapshot()
    assert (counted.execution_count, counted.inference_count) == (1, 2)
    assert counted.request_success == 2


@pytest.mark.parametrize(
    ("ids", "error", "failed", "executed"), [("ax", ValueError, 2, 0), ("ae", InvalidRequest, 1, 1)]
)
def test_run_once_raises_and_counts_failures(ids: str, error: type[Exception], failed: int, executed: int) -> None:
    statistics = ModelStatistics()
    requests = [InferenceRequest("m", [], id=id) for id in ids]
    with pytest.raises(error):
        run_once(EchoInstance(ValueError), requests, lambda request: (1, None), statistics)
    counted = statistics.snapshot()
    assert sum(counted.request_failures.values()) == failed
    assert counted.execution_count == executed
