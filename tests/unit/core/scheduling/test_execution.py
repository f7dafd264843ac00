from __future__ import annotations

import pytest

from core.errors import InvalidRequest
from core.inference.request import InferenceRequest
from core.scheduling.execution import run_once
from tests.unit.core.scheduling.echo_instance import EchoInstance


def test_run_once_returns_the_outputs_of_each_request() -> None:
    requests = [InferenceRequest("m", [], id=id) for id in "ab"]
    outputs = run_once(EchoInstance(), requests, lambda request: (1, None))
    assert [tensors[0].array[0] for tensors in outputs] == ["a", "b"]


@pytest.mark.parametrize(("ids", "error"), [("ax", ValueError), ("ae", InvalidRequest)])
def test_run_once_raises_the_error_of_the_batch_or_of_a_request(ids: str, error: type[Exception]) -> None:
    requests = [InferenceRequest("m", [], id=id) for id in ids]
    with pytest.raises(error):
        run_once(EchoInstance(ValueError), requests, lambda request: (1, None))
