"""The scenario of Triton's tutorials: text in, a Python model that prepares it, a classifier in ONNX, logits out."""

from __future__ import annotations

import queue
from collections.abc import Iterator

import numpy as np
import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton_http
from onnx import helper
from tritonclient.utils import InferenceServerException

from tests.contract.ensembles.ensemble_models import step, write_ensemble
from tests.contract.python.python_models import write_model
from tests.contract.servers.ports import HOST
from tests.contract.servers.server import ServerProcess
from tests.unit.onnx_models import build, constant, tensor, write_version

pytestmark = pytest.mark.slow

PREPROCESS = """
input [ { name: "TEXT" data_type: TYPE_STRING dims: [ 1 ] } ]
output [ { name: "features" data_type: TYPE_FP32 dims: [ 2 ] } ]
dynamic_batching { }
instance_group [ { kind: KIND_CPU } ]
"""
COUNT = """
def execute(self, requests):
    responses = []
    for request in requests:
        texts = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy().reshape(-1)
        if any(text == b"" for text in texts):
            error = pb_utils.TritonError("a text is empty", pb_utils.TritonError.INVALID_ARG)
            responses.append(pb_utils.InferenceResponse(error=error))
            continue
        counts = np.array([[len(text), text.count(b" ")] for text in texts], np.float32)
        responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("features", counts)]))
    return responses
"""
WORDS = """
def execute(self, requests):
    for request in requests:
        sender = request.get_response_sender()
        (text,) = pb_utils.get_input_tensor_by_name(request, "TEXT").as_numpy().reshape(-1)
        words = text.split()
        for number, word in enumerate(words, 1):
            counts = np.array([[len(word), 0]], np.float32)
            flags = pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL if number == len(words) else 0
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("features", counts)]), flags=flags)
    return None
"""
RAW_TEXT = [("raw_text", "TYPE_STRING", [1])]
LOGITS = [("logits", "TYPE_FP32", [3])]
WEIGHTS = np.array([[1, 0, 2], [0, 1, 3]], np.float32)


def steps(preprocess: str) -> list[str]:
    return [
        step(preprocess, {"TEXT": "raw_text"}, {"features": "features"}),
        step("classifier", {"features": "features"}, {"logits": "logits"}),
    ]


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("python_step")
    repository = folder / "models"
    write_model(repository, "preprocess", COUNT, PREPROCESS, max_batch_size=64)
    decoupled = PREPROCESS.replace("dynamic_batching { }", "model_transaction_policy { decoupled: true }")
    write_model(repository, "words", WORDS, decoupled, max_batch_size=64)
    classifier = build(
        [helper.make_node("MatMul", ["features", "WEIGHTS"], ["logits"])],
        [tensor("features", "FP32", ["batch", 2])],
        [tensor("logits", "FP32", ["batch", 3])],
        [constant("WEIGHTS", WEIGHTS, "FP32")],
    )
    write_version(classifier, repository, "classifier", "max_batch_size: 64 dynamic_batching { }")
    write_ensemble(repository, "text_classifier", RAW_TEXT, LOGITS, steps("preprocess"), batch=64)
    write_ensemble(repository, "each_word", RAW_TEXT, LOGITS, steps("words"), batch=64)
    with ServerProcess(repository, folder / "log", "--shutdown-grace-secs=0") as running:
        yield running


def expected(texts: list[bytes]) -> np.ndarray[tuple[int, ...], np.dtype[np.float32]]:
    return np.array([[len(text), text.count(b" ")] for text in texts], np.float32) @ WEIGHTS


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("texts", [[b"one text"], [b"several", b"texts at once", b"\xc3\xa4"]])
def test_text_becomes_logits(server: ServerProcess, protocol: str, texts: list[bytes]) -> None:
    triton, port = (triton_http, server.http_port) if protocol == "http" else (triton_grpc, server.grpc_port)
    client = triton.InferenceServerClient(f"{HOST}:{port}")
    given = triton.InferInput("raw_text", [len(texts), 1], "BYTES")
    given.set_data_from_numpy(np.array(texts, dtype=object).reshape(-1, 1))
    result = client.infer("text_classifier", [given], outputs=[triton.InferRequestedOutput("logits")])
    assert (result.as_numpy("logits") == expected(texts)).all()
    given.set_data_from_numpy(np.array([b""] * len(texts), dtype=object).reshape(-1, 1))
    with pytest.raises(InferenceServerException, match=r"in ensemble 'text_classifier', a text is empty"):
        client.infer("text_classifier", [given])
    client.close()


def test_each_response_of_a_decoupled_step_is_a_response(server: ServerProcess) -> None:
    """The last one is marked as final, and each one says what it belongs to."""
    config = server.json("GET", "/v2/models/each_word/config")
    assert config["model_transaction_policy"] == {"decoupled": True}
    found: list[list[float]] = []
    with triton_grpc.InferenceServerClient(f"{HOST}:{server.grpc_port}") as client:
        responses: queue.SimpleQueue[tuple[object, object]] = queue.SimpleQueue()
        client.start_stream(lambda result, error: responses.put((result, error)))
        given = triton_grpc.InferInput("raw_text", [1, 1], "BYTES")
        text = b"one two three four " * 50
        given.set_data_from_numpy(np.array([[text]], dtype=object))
        client.async_stream_infer("each_word", [given], sequence_id=5, sequence_start=True)
        while True:
            result, error = responses.get(timeout=30)
            assert error is None, error
            response = result.get_response()  # type: ignore[attr-defined]
            found.append(result.as_numpy("logits").tolist()[0])  # type: ignore[attr-defined]
            assert response.parameters["sequence_id"].int64_param == 5
            assert response.parameters["sequence_start"].bool_param
            assert not response.parameters["sequence_end"].bool_param
            if response.parameters["triton_final_response"].bool_param:
                break
    wanted = [(np.array([len(word), 0], np.float32) @ WEIGHTS).tolist() for word in text.split()]
    assert sorted(found) == sorted(wanted)
