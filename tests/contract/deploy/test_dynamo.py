"""deploy/dynamo behind Dynamo's own front end. It is not among the packages of the tests: `pip install ai-dynamo`."""

from __future__ import annotations

import os
import queue
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.contract.servers.ports import HOST, free_ports
from tests.project import ROOT
from tests.waiting import until

pytest.importorskip("dynamo.llm")
triton = pytest.importorskip("tritonclient.grpc")

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("default")]

COUNT = """
import numpy as np
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        for request in requests:
            sender = request.get_response_sender()
            for number in range(int(pb_utils.get_input_tensor_by_name(request, "N").as_numpy()[0])):
                sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("I", np.array([number], np.int32))]))
            sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
COUNT_CONFIG = """
backend: "python"
model_transaction_policy { decoupled: true }
input { name: "N" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "I" data_type: TYPE_INT32 dims: [ 1 ] }
"""
ECHO = """
import triton_python_backend_utils as pb_utils


class TritonPythonModel:
    def execute(self, requests):
        names = ("HALF", "TEXT")
        inputs = [[pb_utils.get_input_tensor_by_name(each, name).as_numpy() for name in names] for each in requests]
        return [
            pb_utils.InferenceResponse([pb_utils.Tensor(f"{name}_OUT", each) for name, each in zip(names, arrays)])
            for arrays in inputs
        ]
"""
ECHO_CONFIG = """
backend: "python"
max_batch_size: 4
input [ { name: "HALF" data_type: TYPE_FP16 dims: [ 2 ] }, { name: "TEXT" data_type: TYPE_STRING dims: [ 2 ] } ]
output { name: "HALF_OUT" data_type: TYPE_FP16 dims: [ 2 ] }
output [ { name: "TEXT_OUT" data_type: TYPE_STRING dims: [ 2 ] } ]
"""
MODELS = ("simple", "count", "echo")


@pytest.fixture(scope="module")
def client(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    folder = tmp_path_factory.mktemp("dynamo")
    repository = folder / "models"
    repository.mkdir()
    (repository / "simple").symlink_to(ROOT / "deploy" / "models" / "simple")
    for name, code, config in (("count", COUNT, COUNT_CONFIG), ("echo", ECHO, ECHO_CONFIG)):
        (repository / name / "1").mkdir(parents=True)
        (repository / name / "1" / "model.py").write_text(code)
        (repository / name / "config.pbtxt").write_text(config)
    port, metrics_port = free_ports(2)
    environment = {**os.environ, "DYN_FILE_KV": str(folder / "discovery"), "DYN_TCP_RPC_HOST": HOST}
    options = ("--discovery-backend=file",)
    front_end = (
        "dynamo.frontend",
        "--kserve-grpc-server",
        f"--http-port={port}",
        f"--grpc-metrics-port={metrics_port}",
    )
    with ExitStack() as stack:
        log = stack.enter_context((folder / "log").open("wb"))
        for words in (front_end, ("deploy.dynamo.worker", str(repository))):
            started = subprocess.Popen(
                [sys.executable, "-m", *words, *options], cwd=ROOT, env=environment, stdout=log, stderr=log
            )
            stack.callback(_end, started)
        found = stack.enter_context(triton.InferenceServerClient(f"{HOST}:{port}"))

        def serve() -> bool:
            try:
                return all(found.is_model_ready(name) for name in MODELS)
            except triton.InferenceServerException:
                return False

        until(serve, lambda: Path(folder, "log").read_text(errors="replace"), limit_s=120)
        yield found


def _end(process: subprocess.Popen[bytes]) -> None:
    process.terminate()
    try:
        process.wait(60)
    finally:
        process.kill()
        process.wait()


def given(**inputs: tuple[Any, str]) -> list[Any]:
    made = []
    for name, (array, datatype) in inputs.items():
        made.append(triton.InferInput(name, list(array.shape), datatype))
        made[-1].set_data_from_numpy(array)
    return made


ROW = np.arange(16, dtype=np.int32)[None]


def test_a_model_answers_with_its_configuration_and_classes(client: Any) -> None:
    inputs = given(INPUT0=(ROW, "INT32"), INPUT1=(ROW, "INT32"))
    found = client.infer("simple", inputs, request_id="first", timeout=60_000_000)
    assert found.get_response().id == "first"
    assert found.as_numpy("OUTPUT0").tolist() == (2 * ROW).tolist()
    assert client.get_model_config("simple").config.max_batch_size == 64
    classes = client.infer("simple", inputs, outputs=[triton.InferRequestedOutput("OUTPUT0", class_count=2)])
    assert classes.as_numpy("OUTPUT0").tolist() == [[b"30:15", b"28:14"]]


def test_fp16_and_bytes_pass_unchanged(client: Any) -> None:
    half = np.array([[1.5, -2.25]], np.float16)
    text = np.array([["ä".encode(), b"\x00\xff"]], object)
    found = client.infer("echo", given(HALF=(half, "FP16"), TEXT=(text, "BYTES")))
    assert found.as_numpy("HALF_OUT").tolist() == half.tolist()
    assert found.as_numpy("TEXT_OUT").tolist() == text.tolist()


def test_responses_of_a_decoupled_model_are_streamed(client: Any) -> None:
    responses: queue.Queue[Any] = queue.Queue()
    client.start_stream(lambda result, error: responses.put(error or result.as_numpy("I").item()))
    client.async_stream_infer("count", given(N=(np.array([3], np.int32), "INT32")))
    assert [responses.get(timeout=60) for _ in range(3)] == [0, 1, 2]
    client.stop_stream()


def test_model_refusal_has_its_hint(client: Any) -> None:
    with pytest.raises(
        triton.InferenceServerException, match=r"expected 2 inputs but got 1 inputs.*the inputs are: INPUT0, INPUT1"
    ):
        client.infer("simple", given(INPUT0=(ROW, "INT32")))
