"""Python models in processes of their own: what clients get, and that nothing outlives the server.

Source: docs/spec/python-backend.md sections 4.2 and 4.5.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from tests.contract.python.python_models import assert_adds, is_alive, pair, stubs_of, write_model
from tests.contract.servers.processes import engine_of
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import link_models
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.shapes("front-ends")]

IDENTITY = """
input [ { name: "INPUT0" data_type: TYPE_STRING dims: [ -1 ] }, { name: "INPUT1" data_type: TYPE_FP32 dims: [ -1 ] } ]
output [ { name: "OUTPUT0" data_type: TYPE_STRING dims: [ -1 ] },
{ name: "OUTPUT1" data_type: TYPE_FP32 dims: [ -1 ] } ]
dynamic_batching { }
"""
RETURN_INPUTS = """
def execute(self, requests):
    return [
        pb_utils.InferenceResponse([
            pb_utils.Tensor(f"OUTPUT{index}", pb_utils.get_input_tensor_by_name(request, f"INPUT{index}").as_numpy())
            for index in range(2)
        ])
        for request in requests
    ]
"""
FAIL_ON_ODD = """
def execute(self, requests):
    responses = []
    for request in requests:
        first = int(pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy().flat[0])
        if first % 2:
            error = pb_utils.TritonError(f"{first} is odd", pb_utils.TritonError.INVALID_ARG)
            responses.append(pb_utils.InferenceResponse(error=error))
        else:
            tensor = pb_utils.Tensor("OUTPUT0", pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy())
            responses.append(pb_utils.InferenceResponse([tensor], parameters={"even": True}))
    return responses
"""
FORKING = """
def initialize(self, args):
    self.child = os.fork()
    if not self.child:
        while True:
            time.sleep(100)

def execute(self, requests):
    child = np.full((1, 16), self.child, np.int32)
    return [pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", child)]) for _ in requests]
"""


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    repository = link_models(tmp_path_factory.mktemp("models"), "simple")
    write_model(repository, "add_sub")
    write_model(repository, "identity", RETURN_INPUTS, IDENTITY)
    write_model(repository, "odd", FAIL_ON_ODD)
    return repository


@pytest.fixture(scope="module")
def server(http_workers: str, models: Path, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    with ServerProcess(models, tmp_path_factory.mktemp("log") / "log", "--shutdown-grace-secs=0") as running:
        stubs = stubs_of(running).values()
        assert len(stubs) == 3
        yield running
    until(lambda: not any(map(is_alive, stubs)), f"still alive: {list(stubs)}")


def test_sums_and_differences(server: ServerProcess) -> None:
    for rows in (1, 8):
        assert_adds(server, "add_sub", rows, seed=rows)


@pytest.mark.parametrize("protocol", [triton_http, triton_grpc])
@pytest.mark.parametrize("width", [1, 150_000])
def test_strings_and_numbers_come_back_as_they_were(server: ServerProcess, protocol: Any, width: int) -> None:
    strings = np.array([[f"text {n} ä".encode() for n in range(width)]], object)
    numbers = np.random.default_rng(1).random((1, width), np.float32)
    port = server.http_port if protocol is triton_http else server.grpc_port
    inputs = [
        protocol.InferInput("INPUT0", strings.shape, "BYTES"),
        protocol.InferInput("INPUT1", numbers.shape, "FP32"),
    ]
    inputs[0].set_data_from_numpy(strings)
    inputs[1].set_data_from_numpy(numbers)
    with protocol.InferenceServerClient(f"127.0.0.1:{port}") as client:
        result = client.infer("identity", inputs, request_id="strings")
        assert result.as_numpy("OUTPUT0").tolist() == strings.tolist()
        assert np.array_equal(result.as_numpy("OUTPUT1"), numbers)
        wanted = [protocol.InferRequestedOutput("OUTPUT1")]
        assert client.infer("identity", inputs, outputs=wanted).as_numpy("OUTPUT0") is None


def test_an_error_is_that_of_its_request(server: ServerProcess) -> None:
    answer = server.json("POST", "/v2/models/odd/infer", pair(seed=2))
    assert answer["parameters"] == {"even": True}
    status, _, body = server.request("POST", "/v2/models/odd/infer", _body(pair(seed=3)))
    assert (status, b"3 is odd" in body) == (400, True)


def test_an_unload_ends_the_process(models: Path, tmp_path: Path) -> None:
    options = ("--model-control-mode=explicit", "--load-model=simple", "--load-model=add_sub")
    with ServerProcess(models, tmp_path / "log", *options) as server:
        (stub,) = stubs_of(server).values()
        server.json("POST", "/v2/repository/models/add_sub/unload")
        until(lambda: not is_alive(stub))
        server.json("POST", "/v2/repository/models/add_sub/load")
        assert_adds(server, "add_sub")
        (again,) = stubs_of(server).values()
        assert again != stub


def test_a_killed_server_leaves_no_process(http_workers: str, models: Path, tmp_path: Path) -> None:
    repository = link_models(tmp_path / "models", "simple")
    write_model(repository, "forking", FORKING)
    with ServerProcess(repository, tmp_path / "log") as server:
        (stub,) = stubs_of(server).values()
        answer = server.json("POST", "/v2/models/forking/infer", pair())
        child = answer["outputs"][0]["data"][0]
        assert is_alive(child)
        os.kill(engine_of(server), signal.SIGKILL)
        server.kill()
        until(lambda: not is_alive(stub) and not is_alive(child), f"process {stub} or its child {child} is alive")


def _body(document: dict[str, Any]) -> bytes:
    return json.dumps(document).encode()
