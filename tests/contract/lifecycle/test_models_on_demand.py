"""Models that a running server loads when something asks for them, behind front ends.

Source: docs/models-on-demand.md.
"""

from __future__ import annotations

import json
import os
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from onnx import helper, numpy_helper

from tests.contract.servers.ports import HOST
from tests.contract.servers.processes import engine_of
from tests.contract.servers.server import ServerProcess
from tests.unit import onnx_models
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.shapes("front-ends")]

MIB = 1 << 20
NAMES = ("a", "b", "c", "d", "e")
SIDE = 2048
WEIGHTS_MIB = 4 * SIDE * SIDE // MIB
BUDGET_MIB = 4 * WEIGHTS_MIB


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("demand")
    for number, name in enumerate(NAMES, start=1):
        weights = numpy_helper.from_array(np.full((SIDE, SIDE), number, np.float32), "weights")
        model = onnx_models.build(
            [helper.make_node("Gather", ["weights", "INPUT0"], ["OUTPUT0"])],
            [onnx_models.tensor("INPUT0", "INT64", [1])],
            [onnx_models.tensor("OUTPUT0", "FP32", [1, SIDE])],
            [weights],
        )
        onnx_models.write_version(model, folder / "models", name)
    options = ("--model-control-mode=demand", f"--model-memory={BUDGET_MIB}MiB", f"--http-workers={http_workers}")
    with ServerProcess(folder / "models", folder / "log", *options) as started:
        yield started


def ask(server: ServerProcess, name: str) -> tuple[int, Any]:
    item = {"name": "INPUT0", "datatype": "INT64", "shape": [1], "data": [7]}
    status, _, body = server.request("POST", f"/v2/models/{name}/infer", json.dumps({"inputs": [item]}).encode())
    document = json.loads(body)
    return status, document["outputs"][0]["data"][0] if status == 200 else document


def resident(server: ServerProcess) -> list[str]:
    return [entry["name"] for entry in server.json("POST", "/v2/repository/index", {"ready": True})]


def test_what_is_asked_for_is_loaded_within_the_budget(server: ServerProcess) -> None:
    status, _, body = server.request("GET", "/v2/models/a/ready")
    assert (status, json.loads(body)["error"]) == (
        503,
        "model 'a' is REGISTERED: it is loaded when something asks for it",
    )
    assert server.request("GET", "/v2/models/a/ready?load=true")[0] == 200
    for _ in range(2):
        for number, name in enumerate(NAMES, start=1):
            assert ask(server, name) == (200, number)
            assert name in resident(server)
            assert server.metric("trident_demand_resident_bytes") <= 1.05 * BUDGET_MIB * MIB
    assert server.metric("trident_demand_evictions_total", 'reason="memory"') > 0
    assert server.metric("trident_demand_cold_start_seconds_count") >= len(NAMES)
    assert ask(server, "nope")[0] == 404
    entries = server.json("POST", "/v2/repository/index", {})
    assert [entry["name"] for entry in entries] == list(NAMES)
    assert {entry["state"] for entry in entries} == {"READY", "UNAVAILABLE"}


def test_a_burst_to_cold_models_loses_no_request(server: ServerProcess) -> None:
    names = [NAMES[number % len(NAMES)] for number in range(100)]
    with ThreadPoolExecutor(16) as threads:
        answers = Counter(threads.map(lambda name: (name, *ask(server, name)), names))
    assert answers == {(name, 200, number): 20 for number, name in enumerate(NAMES, start=1)}


def test_grpc_waits_as_long_as_its_deadline(server: ServerProcess) -> None:
    name = next(name for name in NAMES if name not in resident(server))
    given = triton.InferInput("INPUT0", [1], "INT64")
    given.set_data_from_numpy(np.array([3]))
    with triton.InferenceServerClient(f"{HOST}:{server.grpc_port}") as client:
        assert client.infer(name, [given], client_timeout=60).as_numpy("OUTPUT0")[0, 0] == NAMES.index(name) + 1
        client.load_model("a", config=None)
        assert client.is_model_ready("a")


def test_a_pinned_model_stays_and_a_load_can_be_asked_for_soon(server: ServerProcess) -> None:
    assert server.request("POST", "/v2/repository/models/a/load", b"{}")[0] == 200
    for name in NAMES[1:]:
        assert ask(server, name)[0] == 200
        assert "a" in resident(server)
    assert server.request("POST", "/v2/repository/models/a/unload", b"{}")[0] == 200
    until(lambda: "a" not in resident(server))
    status, _, body = server.request("POST", "/v2/repository/models/a/load", b'{"parameters": {"soon": true}}')
    assert status == 200, body
    until(lambda: "a" in resident(server))


def test_models_come_back_after_the_engine_was_killed(server: ServerProcess) -> None:
    assert ask(server, "a") == (200, 1)
    os.kill(engine_of(server), signal.SIGKILL)
    until(lambda: ask(server, "a") == (200, 1))
