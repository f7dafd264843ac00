"""The predict route of a running container: instances and predictions, raw predict and bad requests.

Source: docs/spec/vertex.md sections A5, B4 and D points 1 to 7. What each form, format and wrong value means is tested
without a server; here is that it passes through the socket, the front end and a real model.
"""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.contract.lifecycle.changing_models import scaled
from tests.contract.vertex.vertex_container import Answer, VertexContainer
from tests.unit.onnx_models import add_sub, identity, picky, strings, write, write_version
from tests.unit.onnx_serving import add_sub_config, identity_config
from trident.adapters.vertex.predict import BINARY
from trident.core.http.payloads.arrays import write_npy

pytestmark = pytest.mark.slow

JSON = "application/json"
CSV = "text/csv"
NPY = "application/x-npy"
OCTETS = "application/octet-stream"
ROWS = 30
ROW = [1.0] * ROWS
TABLE = np.arange(20 * ROWS, dtype=np.float32).reshape(20, ROWS)


def write_models(repository: Path) -> None:
    """Write `rows`, the default model, which takes 256 rows of 30 numbers at once, and models that batch otherwise."""
    write_version(identity("FP32", ["batch", ROWS]), repository, "rows", identity_config("FP32", [ROWS], 256))
    write_version(identity("FP32", ["n"]), repository, "single", identity_config("FP32", [-1], 0))
    write_version(add_sub("INT32", 4), repository, "add_sub", add_sub_config(dims=[4]))
    write_version(strings(["batch", 1]), repository, "text", identity_config("BYTES", [1], 64))
    write_version(picky(), repository, "picky")
    for version, factor in ((1, 10.0), (2, 20.0)):
        write(scaled(factor), repository / "versions" / str(version) / "model.onnx")
    (repository / "versions" / "config.pbtxt").write_text("max_batch_size: 8 version_policy { all {} }")


@pytest.fixture(scope="module")
def running(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[VertexContainer]:
    folder = tmp_path_factory.mktemp("container")
    write_models(folder / "models")
    with VertexContainer(folder, folder / "models", "--vertex-ai-default-model=rows") as made:
        yield made
        # Only a model's own failure is an error in the log.
        errors = [line for line in made.log_text().splitlines() if line.startswith(("E0", "E1"))]
        assert all(": 500 onnx runtime error 2" in line for line in errors), errors


@pytest.fixture
def container(running: VertexContainer) -> Iterator[VertexContainer]:
    """After each test the container serves, in the same process."""
    pid = running.process.pid
    yield running
    assert running.health_status() == 200
    assert running.predictions([ROW, ROW]) == [ROW, ROW]
    assert running.process.pid == pid


def assert_refused(answer: Answer, text: str = "", status: int = 400) -> None:
    assert answer.status == status, answer.body[:300]
    assert answer.headers["Content-Type"] == JSON
    assert text in answer.error
    assert 10 < len(answer.error) < 2000


# --- instances


@pytest.mark.parametrize("named", [False, True])
@pytest.mark.parametrize(("model", "count"), [("rows", 1), ("rows", 257), ("rows", 1000), ("single", 400)])
def test_predictions_keep_the_order_of_instances_across_batches(
    container: VertexContainer, model: str, count: int, named: bool
) -> None:
    rows = np.arange(count * ROWS, dtype=np.float32).reshape(count, ROWS)
    instances = [{"INPUT0": row} for row in rows.tolist()] if named else rows.tolist()
    np.testing.assert_array_equal(np.array(container.predictions(instances, model=model), np.float32), rows)


def test_one_failing_instance_fails_the_request(container: VertexContainer) -> None:
    parameters = {"model": "picky", "id": "request 7"}
    answer = container.post({"instances": [[1], [2], [9], [3]], "parameters": parameters})
    assert answer.status in (400, 500)
    assert answer.error
    assert answer.headers["Trident-Request-Id"] == "request 7"
    assert container.predictions([[1], [2], [3]], model="picky") == [[10], [20], [30]]


# --- raw predict


def tensor_of(answer: Answer) -> Any:
    """The only output of a binary answer."""
    assert (answer.status, answer.headers["Content-Type"]) == (200, OCTETS)
    size = int(answer.headers["Inference-Header-Content-Length"])
    (output,) = json.loads(answer.body[:size])["outputs"]
    return np.frombuffer(answer.body[size:], "<f4").reshape(output["shape"])


def v2_header(binary_output: bool = True) -> bytes:
    """The JSON of a v2 request whose tensor, the table, follows in binary."""
    size = {"binary_data_size": TABLE.nbytes}
    given = {"name": "INPUT0", "datatype": "FP32", "shape": list(TABLE.shape), "parameters": size}
    outputs = [{"name": "OUTPUT0", "parameters": {"binary_data": binary_output}}]
    return json.dumps({"inputs": [given], "outputs": outputs}).encode()


def test_binary_tensors_pass_both_ways(container: VertexContainer) -> None:
    header = v2_header()
    body = header + TABLE.tobytes()
    # Triton's header counts for nothing here.
    answer = container.post(body, Content_Type=BINARY.of(len(header)), Inference_Header_Content_Length="1")
    assert np.array_equal(tensor_of(answer), TABLE)
    assert_refused(container.post(body, Content_Type=OCTETS, Inference_Header_Content_Length=str(len(header))))
    header = v2_header(binary_output=False)
    answer = container.post(header + TABLE.tobytes(), Content_Type=BINARY.of(len(header)))
    assert (answer.headers["Content-Type"], answer.headers["Inference-Header-Content-Length"]) == (JSON, None)
    assert np.array_equal(np.array(answer.document["outputs"][0]["data"], np.float32), TABLE.ravel())
    assert np.array_equal(tensor_of(container.post(TABLE[:1].tobytes(), Content_Type=BINARY.of(0))), TABLE[:1])


def test_other_formats_are_read_and_written(container: VertexContainer) -> None:
    array, browser = bytes(write_npy(TABLE)), "text/html,application/xhtml+xml;q=0.9,text/csv;q=0.5,*/*;q=0.1"
    answer = container.post(array, Content_Type=NPY, Accept=browser)
    assert answer.headers["Content-Type"] == CSV
    answer = container.post(answer.body, Content_Type=CSV, Accept=NPY)
    assert (answer.headers["Content-Type"], answer.body) == (NPY, array)
    for answer in (
        container.post(TABLE.tobytes(), Content_Type=OCTETS),
        container.post({"instances": TABLE.tolist()}, Accept=CSV),  # the platform itself reads this answer
    ):
        assert np.array_equal(np.array(answer.document["predictions"], np.float32), TABLE)


def test_bodies_of_ten_megabytes_are_answered(container: VertexContainer) -> None:
    numbers = random.Random(3)
    rows = [[numbers.random() for _ in range(ROWS)] for _ in range(17_000)]
    answer = container.post({"instances": rows})
    assert answer.status == 200, answer.body[:300]
    assert len(answer.document["predictions"]) == len(rows)
    rows[16_999][29] = "x"  # type: ignore[call-overload]
    assert_refused(container.post({"instances": rows}), "instance 16999, input 'INPUT0', element [29]")
    text = "é" * 5_000_000
    assert container.predictions([text], model="text") == [[text]]
    assert_refused(container.post(b'{"instances":[' + b" " * (65 << 20) + b"]}"), "exceeds the maximum allowed", 413)
