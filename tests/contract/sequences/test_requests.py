"""Sequences of ONNX and Python models: HTTP, gRPC and gRPC streams.

Source: docs/spec/schedulers.md section 3.4.
"""

from __future__ import annotations

import queue
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http

from tests.contract.sequences.sequence_models import FIRST_STATE, write_models
from tests.contract.servers.ports import HOST
from tests.contract.servers.server import ServerProcess

pytestmark = pytest.mark.slow

LIMIT_S = 30.0


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    models = write_models(tmp_path_factory.mktemp("models"))
    with ServerProcess(models, tmp_path_factory.mktemp("log") / "log", "--shutdown-grace-secs=0") as running:
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
        ("unbatched", 2**32 + 5, 5, False, True),
        ("direct", 2**32 + 2**31, 2**31, 0, 1),
        ("python", 77, 77, 0, 1),
    ],
)
def test_the_model_is_told_the_place_of_each_request(
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


def test_a_python_model_sees_the_slots_of_a_direct_batch(client: Client) -> None:
    for sequence in (1, 2, 3):
        client.infer("python", sequence, "s")
    assert client.infer("python", 3, "")["BATCH"] == [3]
    for sequence in (1, 2, 3):
        client.infer("python", sequence, "e")


def test_a_state_may_change_its_shape_and_begins_with_the_data_of_a_file(client: Client) -> None:
    seen = list(FIRST_STATE)
    for value, place in ((1, "s"), (2, ""), (3, "e")):
        seen.append(value)
        assert client.infer("history", 5, place, value) == {"ALL": seen}


def test_a_state_may_be_text(client: Client) -> None:
    found = [client.infer("previous", 5, place, text) for place, text in (("s", b"a"), ("", b"b"), ("e", b"c"))]
    assert found == [{"PREVIOUS": [b""]}, {"PREVIOUS": [b"a"]}, {"PREVIOUS": [b"b"]}]


def test_a_client_gets_the_outputs_that_it_asks_for(client: Client) -> None:
    outputs = [client.module.InferRequestedOutput("OUT_ID")]
    assert client.infer("numbers", 9, "se", outputs=outputs) == {"OUT_ID": [9]}


def test_the_metadata_shows_what_clients_send_and_get(server: ServerProcess) -> None:
    found = server.json("GET", "/v2/models/history")
    assert [each["name"] for each in found["inputs"]] == ["INPUT"]
    assert [each["name"] for each in server.json("GET", "/v2/models/previous")["outputs"]] == ["PREVIOUS"]
    config = server.json("GET", "/v2/models/numbers/config")["sequence_batching"]
    assert config["oldest"]["preferred_batch_size"] == [4]
    assert [each["name"] for each in config["control_input"]] == ["START", "END", "READY", "ID"]
    assert "sequence" in server.json("GET", "/v2")["extensions"]


def test_a_stream_keeps_the_order_of_its_sequences(server: ServerProcess) -> None:
    count = 40
    answers: queue.Queue[Any] = queue.Queue()
    found: dict[str, list[int]] = {"a": [], "b": []}
    source = Client(triton_grpc, f"{HOST}:{server.grpc_port}")
    with source.made as client:
        client.start_stream(lambda result, error: answers.put(error or result))
        for number in range(count):
            for sequence in found:
                client.async_stream_infer(
                    "texts",
                    source.tensors(number),
                    request_id=sequence,
                    sequence_id=sequence,
                    sequence_start=number == 0,
                    sequence_end=number == count - 1,
                )
        for _ in range(2 * count):
            answer = answers.get(timeout=LIMIT_S)
            found[answer.get_response().id].append(int(answer.as_numpy("OUT_INPUT")[0, 0]))
        client.stop_stream()
    assert found == {"a": list(range(count)), "b": list(range(count))}
