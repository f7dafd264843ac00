"""Models that call other models: real ONNX models, and a model that calls them while it executes."""

from __future__ import annotations

import queue
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest

from tests.unit import onnx_models
from tests.unit.core.lifecycle.lifecycle_bench import LIMIT_S, Bench, living, weight_of, write
from tests.waiting import until
from trident.core.errors import ModelNotReady, ServerError, ServerStopping
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import InferenceRequest, InputTensor
from trident.core.inference.response import InferenceResponse
from trident.core.inference.tensors import Array

CONFIG = "max_batch_size: 8"
FAILED = "Model {} - Error when running inference: "


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    onnx_models.write_version(onnx_models.add_sub(), tmp_path, "simple", CONFIG)
    onnx_models.write_version(onnx_models.picky(), tmp_path, "picky", CONFIG)
    write(tmp_path, "caller", 1)
    return tmp_path


def request(name: str = "simple", *arrays: Array, version: int = -1, **more: object) -> InferenceRequest:
    arrays = arrays or (np.ones((2, 16), np.int32),) * 2
    inputs = [InputTensor(f"INPUT{n}", "INT32", array.shape, array) for n, array in enumerate(arrays)]
    return InferenceRequest(name, inputs, model_version=version, **more)  # type: ignore[arg-type]


def call(bench: Bench, asked: InferenceRequest, *, decoupled: bool = False) -> InferenceResponse:
    """The one response to `asked`."""
    responses: queue.SimpleQueue[InferenceResponse] = queue.SimpleQueue()
    bench.bls.infer(asked, responses.put, decoupled=decoupled)
    response = responses.get(timeout=LIMIT_S)
    assert response.final
    assert responses.empty()
    return response


def failure(bench: Bench, asked: InferenceRequest) -> ServerError:
    error = call(bench, asked).error
    assert error is not None
    return error


def is_refused(bench: Bench) -> bool:
    """True if a front end's request is refused because the server stops."""
    responses: queue.SimpleQueue[InferenceResponse] = queue.SimpleQueue()
    bench.engine.model("simple").submit(PendingRequest(request(), responses.put))
    error = responses.get(timeout=LIMIT_S).error
    return isinstance(error, ServerStopping)


@pytest.mark.parametrize("decoupled", [False, True])
def test_requests_of_models_are_answered_like_those_of_front_ends(repository: Path, decoupled: bool) -> None:
    with living(repository) as bench:
        response = call(bench, request(id="7", outputs=("OUTPUT0",)), decoupled=decoupled)
        assert response.error is None
        assert response.id == "7"
        assert [(output.name, output.shape) for output in response.outputs] == [("OUTPUT0", (2, 16))]
        assert (response.outputs[0].array == 2).all()
        assert bench.bls.spec("simple").max_batch_size == 8
        assert bench.version("simple").statistics.snapshot(0).inference_count == 2


def test_requests_in_flight_may_still_ask_other_models_while_the_server_stops(repository: Path) -> None:
    answers: list[InferenceResponse] = []
    with living(repository) as bench, ThreadPoolExecutor(1) as pool:
        bench.backend.models[-1].while_executing = lambda: answers.append(call(bench, request()))
        with bench.running("caller") as responses:
            bench.engine.begin_exit()
            finishing = pool.submit(bench.engine.finish, LIMIT_S)
            until(lambda: is_refused(bench))
        assert weight_of(responses) == 1
        assert finishing.result(LIMIT_S)
    assert answers[0].error is None


def test_a_call_after_the_unload_of_its_model_is_an_error_response(repository: Path) -> None:
    with living(repository, control_mode="explicit", load_models=("*",)) as bench:
        bench.bls.unload("simple", asker="asker")
        assert "'simple' is not ready" in failure(bench, request()).message
        assert not bench.bls.is_ready("simple")


def test_models_control_others_only_in_explicit_mode(repository: Path) -> None:
    with living(repository) as bench:
        for change in (
            lambda: bench.bls.load("simple", {}, asker="asker"),
            lambda: bench.bls.unload("simple", asker="asker"),
        ):
            with pytest.raises(
                ModelNotReady, match="explicit model load / unload is not allowed if polling is enabled"
            ):
                change()
        assert bench.bls.is_ready("simple")
