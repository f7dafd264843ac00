"""Models that a running server loads when something asks for them, behind front ends.

Source: docs/models-on-demand.md.
"""

from __future__ import annotations

import json
import os
import re
import signal
from collections import Counter
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
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
MANY = 20
SIDE = 2048
WEIGHTS_MIB = 4 * SIDE * SIDE // MIB
BUDGET_MIB = 4 * WEIGHTS_MIB
HEAP = 64 * MIB
"""The address space of a heap that a thread of glibc has for itself; what it has not used yet is not accessible."""


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("demand")
    for number, name in enumerate((*NAMES, "large"), start=1):
        rows = SIDE if name in NAMES else 3 * SIDE  # its load takes more than the budget
        weights = numpy_helper.from_array(np.full((rows, SIDE), number, np.float32), "weights")
        model = onnx_models.build(
            [helper.make_node("Gather", ["weights", "INPUT0"], ["OUTPUT0"])],
            [onnx_models.tensor("INPUT0", "INT64", [1])],
            [onnx_models.tensor("OUTPUT0", "FP32", [1, SIDE])],
            [weights],
        )
        onnx_models.write_version(model, folder / "models", name)
    (folder / "models" / "a" / "config.pbtxt").write_text("response_cache { enable: true }")
    for number in range(MANY):
        onnx_models.write_version(onnx_models.identity("FP32", [1]), folder / "models", f"small{number:02}")
    options = (
        "--model-control-mode=demand",
        "--cache-config=local,size=1048576",
        f"--model-memory={BUDGET_MIB}MiB",
        f"--http-workers={http_workers}",
    )
    with ServerProcess(folder / "models", folder / "log", *options) as started:
        yield started


def infer_body(row: int = 7) -> bytes:
    return json.dumps({"inputs": [{"name": "INPUT0", "datatype": "INT64", "shape": [1], "data": [row]}]}).encode()


def ask(server: ServerProcess, name: str, row: int = 7) -> tuple[int, Any]:
    status, _, body = server.request("POST", f"/v2/models/{name}/infer", infer_body(row))
    document = json.loads(body)
    return status, document["outputs"][0]["data"][0] if status == 200 else document


def resident(server: ServerProcess) -> list[str]:
    return [entry["name"] for entry in server.json("POST", "/v2/repository/index", {"ready": True})]


def test_requested_models_are_loaded_within_the_budget(server: ServerProcess) -> None:
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
    assert [entry["name"] for entry in entries] == [*NAMES, "large", *(f"small{number:02}" for number in range(MANY))]
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


def test_pinned_model_stays_loaded_and_load_can_return_early(server: ServerProcess) -> None:
    assert server.request("POST", "/v2/repository/models/a/load", b"{}")[0] == 200
    for name in NAMES[1:]:
        assert ask(server, name)[0] == 200
        assert "a" in resident(server)
    assert server.request("POST", "/v2/repository/models/a/unload", b"{}")[0] == 200
    until(lambda: "a" not in resident(server))
    status, _, body = server.request("POST", "/v2/repository/models/a/load", b'{"parameters": {"soon": true}}')
    assert status == 200, body
    until(lambda: "a" in resident(server))


def test_load_beyond_the_budget_is_a_503_that_names_the_models_in_memory(server: ServerProcess) -> None:
    assert server.request("POST", "/v2/repository/models/a/load", b"{}")[0] == 200
    status, headers, body = server.request("POST", "/v2/models/large/infer", infer_body())
    assert (status, headers["Retry-After"]) == (503, "1"), body
    document = json.loads(body)
    assert "out of memory: model 'large' needs about" in document["error"]
    assert re.search(r"held by (\w+ \d+ MiB, )*a \d+ MiB", document["error"])
    assert "--model-memory" in document["hint"]
    assert server.request("POST", "/v2/repository/models/a/unload", b"{}")[0] == 200


def test_an_answer_in_the_cache_outlives_its_model(server: ServerProcess) -> None:
    assert ask(server, "a", 11) == (200, 1)
    assert server.request("POST", "/v2/repository/models/a/unload", b"{}")[0] == 200
    until(lambda: "a" not in resident(server))
    assert ask(server, "a", 11) == (200, 1)
    (found,) = server.json("GET", "/v2/models/a/stats")["model_stats"]
    assert (found["inference_stats"]["cache_hit"]["count"], found["execution_count"]) == (1, 0)


def test_all_threads_share_one_heap(server: ServerProcess) -> None:
    """Memory that models free in the heap of a thread is not returned to the system."""
    assert ask(server, "a") == (200, 1)
    found = [line.split()[:2] for line in Path(f"/proc/{engine_of(server)}/maps").read_text().splitlines()]
    begins = {int(span.partition("-")[0], 16) for span, access in found if access == "rw-p"}
    unused = {int(span.partition("-")[2], 16) for span, access in found if access == "---p"}
    heaps = [begin for begin in begins if begin % HEAP == 0 and begin + HEAP in unused]
    assert heaps == []


def test_models_are_reloaded_after_the_engine_is_killed(server: ServerProcess) -> None:
    many = [f"small{number:02}" for number in range(MANY)]

    def ask_small(name: str) -> int:
        item = {"name": "INPUT0", "datatype": "FP32", "shape": [1], "data": [7]}
        return server.request("POST", f"/v2/models/{name}/infer", json.dumps({"inputs": [item]}).encode())[0]

    assert ask(server, "a") == (200, 1)
    assert [ask_small(name) for name in many] == [200] * MANY
    assert set(many) <= set(resident(server))
    os.kill(engine_of(server), signal.SIGKILL)
    until(lambda: ask(server, "a") == (200, 1))
    assert [ask_small(name) for name in many] == [200] * MANY
