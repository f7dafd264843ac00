"""Requests for ensembles of ONNX models, over HTTP and gRPC.

Source: docs/spec/schedulers.md section 3.5.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from tritonclient.utils import InferenceServerException

from tests.contract.ensembles.ensemble_models import step, write_ensemble
from tests.contract.servers.ports import HOST
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import link_models
from tests.unit.onnx_models import add_sub, identity, string_to_number, strings, write_version

pytestmark = pytest.mark.slow

WIDTH = 16
PAIR = [(f"INPUT{n}", "TYPE_INT32", [WIDTH]) for n in range(2)]
RESULTS = [(f"OUTPUT{n}", "TYPE_INT32", [WIDTH]) for n in range(2)]
FIRST = step("first", {"INPUT0": "INPUT0", "INPUT1": "INPUT1"}, {"OUTPUT0": "sum", "OUTPUT1": "difference"})
SECOND = step("second", {"INPUT0": "sum", "INPUT1": "difference"}, {"OUTPUT0": "OUTPUT0", "OUTPUT1": "OUTPUT1"})


def write_models(repository: Path) -> Path:
    link_models(repository, "cls")
    for name in ("first", "second"):
        write_version(add_sub(), repository, name, "max_batch_size: 8 dynamic_batching {}")
    write_version(strings(), repository, "text", "max_batch_size: 8")
    write_version(string_to_number(), repository, "number", "max_batch_size: 8")
    write_version(identity(), repository, "same", "max_batch_size: 8")
    write_ensemble(repository, "chain", PAIR, RESULTS, [FIRST, SECOND])
    write_ensemble(
        repository,
        "parsed",
        [("TEXT", "TYPE_STRING", [-1])],
        [("SAME", "TYPE_STRING", [-1]), ("NUMBER", "TYPE_FP32", [-1])],
        [
            step("text", {"INPUT0": "TEXT"}, {"OUTPUT0": "SAME"}),
            step("number", {"INPUT0": "SAME"}, {"OUTPUT0": "parsed"}),
            step("same", {"INPUT0": "parsed"}, {"OUTPUT0": "NUMBER"}),
        ],
    )
    scores = [step("cls", {"IN": "DATA"}, {"OUT": "SCORES"})]
    write_ensemble(repository, "labelled", [("DATA", "TYPE_FP32", [4])], [("SCORES", "TYPE_FP32", [4])], scores)
    return repository


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("ensembles")
    with ServerProcess(write_models(folder / "models"), folder / "log", "--shutdown-grace-secs=0") as running:
        yield running


@pytest.fixture(scope="module", params=["http", "grpc"])
def client(server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[Any]:
    """NVIDIA's client with its module as `triton`."""
    module, port = (triton_http, server.http_port) if request.param == "http" else (triton_grpc, server.grpc_port)
    made = module.InferenceServerClient(f"{HOST}:{port}")
    made.triton = module
    yield made
    made.close()


def infer(client: Any, model: str, outputs: list[str] | None = None, **arrays: np.ndarray[Any, Any]) -> Any:
    inputs = []
    for name, array in arrays.items():
        datatype = {"i": "INT32", "O": "BYTES", "f": "FP32"}[array.dtype.kind]
        inputs.append(client.triton.InferInput(name, list(array.shape), datatype))
        inputs[-1].set_data_from_numpy(array)
    wanted = [client.triton.InferRequestedOutput(name) for name in outputs] if outputs else None
    return client.infer(model, inputs, outputs=wanted, request_id="7")


def test_strings_pass_between_steps(client: Any) -> None:
    given = np.array([[b"1.5", b"-2"], [b"3e2", b"0"]], dtype=object)
    result = infer(client, "parsed", TEXT=given)
    assert (result.as_numpy("SAME") == given).all()
    assert result.as_numpy("NUMBER").tolist() == [[1.5, -2.0], [300.0, 0.0]]


def test_a_failing_step_fails_the_request(client: Any) -> None:
    before = statistics(client, "parsed")
    with pytest.raises(InferenceServerException, match=r"^.*in ensemble 'parsed', onnx runtime error"):
        infer(client, "parsed", TEXT=np.array([[b"1", b"x"]], dtype=object))
    after = statistics(client, "parsed")
    assert after["fail"] == before["fail"] + 1
    assert after["success"] == before["success"]
    assert infer(client, "parsed", TEXT=np.array([[b"1"]], dtype=object)).as_numpy("NUMBER").tolist() == [[1.0]]


def statistics(client: Any, model: str) -> dict[str, int]:
    """The counters that tests compare, in one form for both protocols."""
    found = client.get_inference_statistics(model)
    if not isinstance(found, dict):
        found = client.get_inference_statistics(model, as_json=True)
    (entry,) = found["model_stats"]
    counters = entry.get("inference_stats", {})
    return {
        "success": int(counters.get("success", {}).get("count", 0)),
        "fail": int(counters.get("fail", {}).get("count", 0)),
        "compute_ns": int(counters.get("compute_infer", {}).get("ns", 0)),
        "inference_count": int(entry.get("inference_count", 0)),
        "execution_count": int(entry.get("execution_count", 0)),
    }


def test_metadata_and_configuration_are_those_of_the_ensemble(server: ServerProcess) -> None:
    metadata = server.json("GET", "/v2/models/chain")
    assert metadata["platform"] == "ensemble"
    assert metadata["inputs"] == [{"name": name, "datatype": "INT32", "shape": [-1, WIDTH]} for name, _, _ in PAIR]
    config = server.json("GET", "/v2/models/chain/config")
    assert [each["model_name"] for each in config["ensemble_scheduling"]["step"]] == ["first", "second"]
    assert config["ensemble_scheduling"]["step"][0]["output_map"] == {"OUTPUT0": "sum", "OUTPUT1": "difference"}
    assert config["model_transaction_policy"] == {"decoupled": False}
    assert config["instance_group"] == []


def test_labels_are_those_of_the_step_that_makes_the_output(client: Any) -> None:
    given = np.arange(4, dtype=np.float32).reshape(1, 4)

    def labels(model: str, source: str, output: str) -> Any:
        tensor = client.triton.InferInput(source, [1, 4], "FP32")
        tensor.set_data_from_numpy(given)
        wanted = client.triton.InferRequestedOutput(output, class_count=2)
        return client.infer(model, [tensor], outputs=[wanted]).as_numpy(output).reshape(-1).tolist()

    found = labels("labelled", "DATA", "SCORES")
    assert found == labels("cls", "IN", "OUT")
    assert [label.count(b":") for label in found] == [2, 2]
