"""Sequences of ONNX and Python models over HTTP, gRPC and gRPC streams, those that clients get wrong or abandon, and
those whose model changes.

Source: docs/spec/schedulers.md sections 3.3 and 3.4.
"""

from __future__ import annotations

import json
import os
import signal
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from tests.contract.python.python_models import stubs_of
from tests.contract.sequences.sequence_models import FIRST_STATE, write_models
from tests.contract.servers.ports import HOST
from tests.contract.servers.server import ServerProcess
from tests.waiting import until

pytestmark = pytest.mark.slow


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    models = write_models(tmp_path_factory.mktemp("models"))
    options = ("--model-control-mode=explicit", "--load-model=*", "--shutdown-grace-secs=0", "--exit-timeout-secs=5")
    with ServerProcess(models, tmp_path_factory.mktemp("log") / "log", *options) as running:
        yield running


class Client:
    """One of tritonclient's two, with requests of one value."""

    def __init__(self, module: Any, address: str) -> None:
        self.module = module
        self.made = module.InferenceServerClient(address)

    def tensors(self, value: Any, *, batched: bool = True) -> list[Any]:
        array = np.array([[value]] if batched else [value], object if isinstance(value, bytes) else np.int32)
        tensor = self.module.InferInput("INPUT", list(array.shape), "INT32" if array.dtype == np.int32 else "BYTES")
        tensor.set_data_from_numpy(array)
        return [tensor]

    def infer(self, model: str, sequence: int | str, place: str, value: Any = 1, **more: Any) -> dict[str, Any]:
        """The outputs, flat. `place` has an "s" for START and an "e" for END."""
        tensors = self.tensors(value, batched=model != "unbatched")
        marks = {"sequence_id": sequence, "sequence_start": "s" in place, "sequence_end": "e" in place}
        result = self.made.infer(model, tensors, **marks, **more)
        response = result.get_response()
        names = [each["name"] for each in response["outputs"]] if isinstance(response, dict) else None
        names = names if names is not None else [each.name for each in response.outputs]
        return {name: result.as_numpy(name).reshape(-1).tolist() for name in names}


@pytest.fixture(params=["http", "grpc"])
def client(server: ServerProcess, request: pytest.FixtureRequest) -> Iterator[Client]:
    if request.param == "http":
        found = Client(triton_http, server.address)
    else:
        found = Client(triton_grpc, f"{HOST}:{server.grpc_port}")
    yield found
    found.made.close()


@pytest.mark.parametrize(
    ("model", "sequence", "told", "no", "yes"),
    [
        ("numbers", 2**63 - 1, 2**63 - 1, 0, 1),
        ("texts", "später", "später".encode(), -1.0, 2.5),
        ("unbatched", 2**31 - 1, 2**31 - 1, False, True),
        ("direct", 2**31, 2**31, 0, 1),
        ("python", 77, 77, 0, 1),
    ],
)
def test_model_receives_start_end_and_id_of_each_request(
    client: Client, model: str, sequence: int | str, told: int | bytes, no: float, yes: float
) -> None:
    for value, place in enumerate(("s", "", "e")):
        found = client.infer(model, sequence, place, value)
        assert found.pop("BATCH", [1]) == [1]
        assert found == {
            "OUT_INPUT": [value],
            "OUT_START": [yes if "s" in place else no],
            "OUT_END": [yes if "e" in place else no],
            "OUT_READY": [yes],
            "OUT_ID": [told],
        }


def test_sequence_state_may_change_shape_and_start_from_a_file(client: Client) -> None:
    seen = list(FIRST_STATE)
    for value, place in ((1, "s"), (2, ""), (3, "e")):
        seen.append(value)
        assert client.infer("history", 5, place, value) == {"ALL": seen}


def test_sequence_state_may_be_strings(client: Client) -> None:
    found = [client.infer("previous", 5, place, text) for place, text in (("s", b"a"), ("", b"b"), ("e", b"c"))]
    assert found == [{"PREVIOUS": [b""]}, {"PREVIOUS": [b"a"]}, {"PREVIOUS": [b"b"]}]


# --- invalid and abandoned requests, and changes of the model


def body(sequence: int | str | None, place: str = "", *, items: int = 1, **parameters: Any) -> bytes:
    marks: dict[str, Any] = {"sequence_start": "s" in place, "sequence_end": "e" in place, **parameters}
    if sequence is not None:
        marks["sequence_id"] = sequence
    tensor = {"name": "INPUT", "datatype": "INT32", "shape": [items, 1], "data": [1] * items}
    return json.dumps({"parameters": marks, "inputs": [tensor]}).encode()


def ask(server: ServerProcess, model: str, sequence: int | str | None, place: str = "", **more: Any) -> tuple[int, str]:
    """The status, and the error or the flags START and END that the model saw."""
    status, _, content = server.request("POST", f"/v2/models/{model}/infer", body(sequence, place, **more))
    answer = json.loads(content)
    if status != 200:
        return status, answer["error"]
    outputs = {each["name"]: each["data"] for each in answer["outputs"]}
    return status, "".join(letter for letter, name in (("s", "OUT_START"), ("e", "OUT_END")) if outputs[name] == [1])


def start_missing(sequence: int | str, model: str) -> tuple[int, str]:
    text = "must specify the START flag on the first request of the sequence"
    return 400, f"inference request for sequence {sequence} to model '{model}' {text}"


def test_request_without_a_valid_sequence_is_refused(server: ServerProcess) -> None:
    assert ask(server, "numbers", 1) == start_missing(1, "numbers")
    assert ask(server, "texts", "x") == start_missing("x", "texts")
    no_id = "inference request to model 'numbers' must specify a non-zero or non-empty correlation ID"
    assert ask(server, "numbers", None, "s") == ask(server, "numbers", 0, "s") == (400, no_id)
    assert ask(server, "numbers", "", "s") == (400, no_id)
    several = "inference request to model 'numbers' must specify batch-size 1 due to requirements of sequence batcher"
    assert ask(server, "numbers", 1, "s", items=2) == (400, several)
    other = "[request id: <id_unknown>] sequence batching control 'ID' data-type is '{}', but model '{}' expects '{}'"
    assert ask(server, "numbers", "x", "s") == (400, other.format("BYTES", "numbers", "UINT64"))
    assert ask(server, "texts", 1, "s") == (400, other.format("UINT64", "texts", "BYTES"))


def test_disconnected_client_frees_its_sequence_slot(server: ServerProcess) -> None:
    assert ask(server, "quick", 5, "s") == (200, "s")
    # It waits until the first sequence has been idle for too long.
    assert ask(server, "quick", 6, "se") == (200, "se")
    assert ask(server, "quick", 5) == start_missing(5, "quick")


def test_dead_python_process_loses_its_sequences(server: ServerProcess) -> None:
    assert ask(server, "python", 14, "s") == (200, "s")
    before = stubs_of(server)
    for process in before.values():
        os.kill(process, signal.SIGKILL)
    until(lambda: not set(before.values()) & set(stubs_of(server).values()) and len(stubs_of(server)) == len(before))
    until(lambda: server.request("GET", "/v2/models/python/ready")[0] == 200)
    assert ask(server, "python", 14) == start_missing(14, "python")
    assert [ask(server, "python", 14, place)[1] for place in ("s", "e")] == ["s", "e"]
