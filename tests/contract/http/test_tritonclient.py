"""NVIDIA's client, `tritonclient.http` and its asyncio form.

Source: docs/spec/http.md sections 3 to 6 and 10; docs/spec/statistics-and-metrics.md section A.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton
from tritonclient.utils import InferenceServerException

from tests.contract.grpc.grpc_requests import assert_simple
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import link_models
from tests.contract.servers.typed_values import TYPES, values_of
from tests.unit.onnx_models import add_sub, classifier, identity, write_version
from trident.core.inference.tensors import Array

pytestmark = [pytest.mark.slow, pytest.mark.shapes("front-ends")]

NOT_IN_JSON = ("FP16", "BF16")


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("tritonclient")
    repository = link_models(folder / "models", "simple", "multi_v")
    for datatype in TYPES:
        write_version(identity(datatype), repository, f"same_{datatype}")
    write_version(add_sub(), repository, "counted", "max_batch_size: 8")
    write_version(classifier(("cat", "dog", "fish")), repository, "zipped")
    options = ("--shutdown-grace-secs=0", "--http-header-forward-pattern=^(x-.*|priority|timeout)$", "--id=here")
    with ServerProcess(repository, folder / "log", *options) as running:
        yield running
        assert "Traceback" not in running.log_text()


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Any]:
    with triton.InferenceServerClient(server.address, concurrency=8) as client:
        yield client


def tensor(name: str, values: Array, datatype: str, *, binary: bool = True) -> Any:
    made = triton.InferInput(name, list(values.shape), datatype)
    made.set_data_from_numpy(values, binary_data=binary)
    return made


def simple_inputs(seed: int = 0, *, binary: tuple[bool, bool] = (True, True)) -> list[Any]:
    first = np.arange(seed, seed + 16, dtype=np.int32).reshape(1, 16)
    second = np.full((1, 16), 3, np.int32)
    return [
        tensor("INPUT0", first, "INT32", binary=binary[0]),
        tensor("INPUT1", second, "INT32", binary=binary[1]),
    ]


# --- tensors


@pytest.mark.parametrize("datatype", TYPES)
def test_every_datatype_passes_in_binary(client: Any, datatype: str) -> None:
    values = values_of(datatype)
    result = client.infer(f"same_{datatype}", [tensor("INPUT0", values, datatype)])
    answer = result.as_numpy("OUTPUT0")
    assert (answer.dtype, answer.shape) == (values.dtype, values.shape)
    assert answer.tolist() == values.tolist()
    if datatype != "BYTES":
        assert answer.tobytes() == values.tobytes()


@pytest.mark.parametrize("datatype", [name for name in TYPES if name not in NOT_IN_JSON])
def test_every_datatype_passes_as_json(client: Any, datatype: str) -> None:
    values = values_of(datatype)
    if datatype == "BYTES":
        values = np.array([[text.encode() for text in ("", "a\0", 'ü"\\', "漢", "/", "z")]], np.object_).reshape(2, 3)
    outputs = [triton.InferRequestedOutput("OUTPUT0", binary_data=False)]
    result = client.infer(f"same_{datatype}", [tensor("INPUT0", values, datatype, binary=False)], outputs=outputs)
    answer = result.as_numpy("OUTPUT0")
    if datatype == "BYTES":  # the client returns str for strings in JSON
        answer = np.array([text.encode() for text in answer.reshape(-1)], np.object_).reshape(2, 3)
    assert answer.tolist() == values.tolist()


@pytest.mark.parametrize("binary", [(True, False), (False, True), (False, False)])
def test_json_and_binary_tensors_mix(client: Any, binary: tuple[bool, bool]) -> None:
    outputs = [
        triton.InferRequestedOutput("OUTPUT0", binary_data=binary[0]),
        triton.InferRequestedOutput("OUTPUT1", binary_data=binary[1]),
    ]
    assert_simple(client.infer("simple", simple_inputs(binary=binary), outputs=outputs))


@pytest.mark.parametrize(("request_by", "response"), [("gzip", "deflate"), ("deflate", "gzip"), ("gzip", None)])
def test_bodies_are_compressed_both_ways(client: Any, request_by: str, response: str | None) -> None:
    for inputs in (simple_inputs(), simple_inputs(binary=(False, False))):
        result = client.infer(
            "simple", inputs, request_compression_algorithm=request_by, response_compression_algorithm=response
        )
        assert_simple(result)


# --- the rest of a request


@pytest.mark.parametrize("binary", [True, False])
def test_the_labels_of_a_zip_map_are_returned(client: Any, binary: bool) -> None:
    rows = np.array([[1, 2, 3, 4], [1, -1, -2, -3]], np.float32)
    outputs = [triton.InferRequestedOutput("output_probability", binary_data=binary, class_count=2)]
    answer = client.infer("zipped", [tensor("X", rows, "FP32", binary=binary)], outputs=outputs)
    classes = answer.as_numpy("output_probability")
    texts = [[text if isinstance(text, str) else text.decode() for text in row] for row in classes]
    assert texts == [["10.000000:2:fish", "6.000000:1:dog"], ["0.000000:0:cat", "-2.000000:1:dog"]]


# --- headers


def refused(client: Any, model: str, inputs: list[Any], **options: Any) -> InferenceServerException:
    with pytest.raises(InferenceServerException) as caught:
        client.infer(model, inputs, **options)
    return caught.value


def test_headers_with_reserved_names_are_not_forwarded(client: Any) -> None:
    assert_simple(client.infer("simple", simple_inputs(), headers={"X-Trace": "1", "Authorization": "secret"}))
    for name in ("priority", "timeout"):
        error = refused(client, "simple", simple_inputs(), headers={name: "1"})
        text = f"Header '{name}' is reserved for Triton usage and cannot be forwarded."
        assert (error.status(), error.message()) == ("400", text)
    assert_simple(client.infer("simple", simple_inputs(), headers={"Priority": "1"}))
