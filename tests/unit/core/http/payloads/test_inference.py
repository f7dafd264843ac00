"""Inference on a payload, with an engine that returns its inputs."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.unit.core.http.payloads.payload_models import one
from tests.unit.fake_engine import FakeEngine, FakeModel
from trident.core.config.spec import ModelSpec
from trident.core.errors import InvalidRequest
from trident.core.frontend.bridge import ThreadBridge
from trident.core.http.application import V2Application
from trident.core.http.front_end import HttpOptions
from trident.core.http.payloads.inference import PayloadResult, infer_payload
from trident.core.http.payloads.payload import DecodedPayload
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import InferenceResponse, OutputTensor
from trident.core.inference.tensors import Array


class Bench:
    """`seen` are the requests that reached the engine."""

    def __init__(self) -> None:
        self.seen: list[InferenceRequest] = []
        self.engine = FakeEngine(self._echo)
        self.engine.versions["m"] = (1,)
        self.application = V2Application(self.engine, HttpOptions(header_forward_pattern="^x-"), ThreadBridge())

    def infer(self, payload: DecodedPayload, spec: ModelSpec, **environ: Any) -> PayloadResult:
        return infer_payload(self.application, environ, FakeModel(self.engine, spec), payload)

    def _echo(self, request: InferenceRequest) -> InferenceResponse:
        self.seen.append(request)
        array = np.asarray(request.inputs[0].data)
        output = OutputTensor("OUT", "FP32", array.shape, array)
        return InferenceResponse(request.model_name, 1, [output], parameters={"n": len(self.seen)})


def payload(array: Array, **more: Any) -> DecodedPayload:
    return DecodedPayload(arrays={"IN": array}, **{"count": len(array), "stacked": True, **more})


@pytest.mark.parametrize(
    ("batch", "stacked", "rows", "sizes"),
    [
        (8, True, 8, [(8, 2)]),
        (8, True, 20, [(8, 2), (8, 2), (4, 2)]),
        (0, False, 1, [(2,)]),
        (0, False, 40, [(2,)] * 40),
        (0, True, 40, [(40, 2)]),
    ],
)
def test_a_payload_is_split_by_the_models_batch_size(batch: int, stacked: bool, rows: int, sizes: list[Any]) -> None:
    bench = Bench()
    array = np.arange(rows * 2, dtype=np.float32).reshape(rows, 2)
    result = bench.infer(payload(array, stacked=stacked), one("FP32", 2, batch=batch))
    assert [request.inputs[0].shape for request in bench.seen] == sizes
    assert np.array_equal(result.columns[0].parts[0], array)
    assert result.parameters == {"n": 1}


def test_a_whole_tensor_is_one_request() -> None:
    bench = Bench()
    result = bench.infer(payload(np.ones(3, np.float32), count=None, stacked=False), one("FP32", 3, batch=0))
    assert len(bench.seen) == 1
    assert result.columns[0].whole


@pytest.mark.parametrize("rows", [1, 9])
def test_every_request_has_the_parameters_and_headers(rows: int) -> None:
    bench = Bench()
    parameters = {"a": 1, "priority": 2, "timeout": 5}
    given = payload(np.ones((rows, 1), np.float32), parameters=parameters)
    bench.infer(given, one("FP32", 1, batch=4), HTTP_X_TEAM="red")
    assert [(r.priority, r.timeout_us, r.parameters) for r in bench.seen] == [(2, 5, {"a": 1, "x-team": "red"})] * -(
        -rows // 4
    )
    assert len({id(r.parameters) for r in bench.seen}) == len(bench.seen)


def test_parameters_are_checked_as_in_the_v2_protocol() -> None:
    given = payload(np.ones((1, 1), np.float32), parameters={"triton_x": 1})
    with pytest.raises(InvalidRequest, match="reserved"):
        Bench().infer(given, one("FP32", 1))
