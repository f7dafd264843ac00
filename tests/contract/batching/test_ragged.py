"""Ragged batches: requests of different shapes in one execution, and the inputs and outputs that describe them.

Source: docs/spec/model-config.md section 2.7.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest
import tritonclient.http as triton_http

from tests.contract.grpc.grpc_requests import Responses, client_of, tensor
from tests.contract.servers.server import ServerProcess
from tests.unit import onnx_models
from tests.unit.onnx_models import write_version
from trident.core.inference.tensors import Array

pytestmark = [pytest.mark.slow, pytest.mark.shapes("front-ends")]

# The number of queued requests at which a model runs its first batch.
HELD = 4
LENGTHS = (2, 4, 1, 3)
FLAT = [float(n) for n in LENGTHS for _ in range(n)]
SCATTER = "batch_output {{ kind: BATCH_SCATTER_WITH_INPUT_SHAPE target_name: '{}' source_input: '{}' }}"


DESCRIBED = """
max_batch_size: 8
input { name: "INPUT0" data_type: TYPE_FP32 dims: -1 allow_ragged_batch: true }
output { name: "SEEN" data_type: TYPE_FP32 dims: -1 }
output { name: "DESCRIBED" data_type: TYPE_FP32 dims: -1 }
batch_input { kind: BATCH_ELEMENT_COUNT target_name: "COUNTS" data_type: TYPE_FP32 source_input: "INPUT0" }
batch_input {
  kind: BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO
  target_name: "DESCRIPTION" data_type: TYPE_FP32 source_input: "INPUT0"
}
dynamic_batching { }
"""
ITEM_SHAPES = f"""
max_batch_size: 8
input {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ -1, -1 ] allow_ragged_batch: true }}
output {{ name: "DOUBLED" data_type: TYPE_FP32 dims: [ -1, -1 ] }}
output {{ name: "SHAPES_OUT" data_type: TYPE_FP32 dims: -1 }}
batch_input {{ kind: BATCH_ITEM_SHAPE target_name: "SHAPES" data_type: TYPE_FP32 source_input: "INPUT0" }}
{SCATTER.format("DOUBLED", "INPUT0")}
dynamic_batching {{ }}
"""
STRINGS = f"""
max_batch_size: 8
input {{ name: "INPUT0" data_type: TYPE_STRING dims: -1 allow_ragged_batch: true }}
output {{ name: "OUTPUT0" data_type: TYPE_STRING dims: -1 }}
{SCATTER.format("OUTPUT0", "INPUT0")}
dynamic_batching {{ }}
response_cache {{ enable: true }}
"""
EMBEDDINGS = f"""
max_batch_size: 8
input {{ name: "TOKENS" data_type: TYPE_INT64 dims: -1 allow_ragged_batch: true }}
output {{ name: "EMBEDDED" data_type: TYPE_FP32 dims: [ -1, 2 ] }}
{SCATTER.format("EMBEDDED", "TOKENS")}
dynamic_batching {{ }}
"""
ENSEMBLE = """
platform: "ensemble" max_batch_size: 8
input { name: "IDS" data_type: TYPE_INT64 dims: -1 }
output { name: "VECTORS" data_type: TYPE_FP32 dims: [ -1, 2 ] }
ensemble_scheduling { step {
  model_name: "embeddings" model_version: -1
  input_map { key: "TOKENS" value: "IDS" } output_map { key: "EMBEDDED" value: "VECTORS" }
} }
"""


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose models wait once until `HELD` requests are queued, so each test has its own model."""
    folder = tmp_path_factory.mktemp("ragged")
    repository = folder / "models"
    write_version(onnx_models.described_batch(), repository, "described", DESCRIBED)
    write_version(onnx_models.ragged_item_shapes(), repository, "item_shapes", ITEM_SHAPES)
    write_version(onnx_models.strings(["elements"]), repository, "strings", STRINGS)
    write_version(onnx_models.packed_embeddings(), repository, "embeddings", EMBEDDINGS)
    (repository / "pipeline" / "1").mkdir(parents=True)
    (repository / "pipeline" / "config.pbtxt").write_text(ENSEMBLE)
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:  # for this server only
            patch.setenv("TRITONSERVER_DELAY_SCHEDULER", str(HELD))
            options = ("--shutdown-grace-secs=0", "--cache-config=local,size=1000000")
            running = stack.enter_context(ServerProcess(repository, folder / "log", *options))
        yield running


def in_one_batch(server: ServerProcess, model: str, inputs: Sequence[Any]) -> list[Any]:
    """The results for one input each, sent in order over a stream. All must be in one execution."""
    responses = Responses()
    with client_of(server) as client:
        client.start_stream(responses.put)
        for each in inputs:
            client.async_stream_infer(model, [each])
        results = [responses.next_result() for _ in inputs]
    assert executions(server, model) == 1
    return results


def executions(server: ServerProcess, model: str) -> int:
    (entry,) = server.json("GET", f"/v2/models/{model}/stats")["model_stats"]
    return int(entry["execution_count"])


def rows(length: int) -> Any:
    return tensor("INPUT0", np.full((1, length), length, np.float32), "FP32")


def test_batch_input_describes_the_requests_of_the_batch(server: ServerProcess) -> None:
    for result in in_one_batch(server, "described", [rows(length) for length in LENGTHS]):
        assert result.as_numpy("SEEN").tolist() == [FLAT]
        assert result.as_numpy("DESCRIBED").tolist() == [[0, 2, 6, 7, 10]]


def test_item_shapes_have_a_row_for_each_item(server: ServerProcess) -> None:
    shapes = [(2, 1, 2), (1, 1, 2), (1, 2, 2), (1, 3, 0)]
    arrays = [np.full(shape, number, np.float32) for number, shape in enumerate(shapes)]
    results = in_one_batch(server, "item_shapes", [tensor("INPUT0", array, "FP32") for array in arrays])
    assert [result.as_numpy("SHAPES_OUT").tolist() for result in results] == [
        [[1, 2], [1, 2]],
        [[1, 2]],
        [[2, 2]],
        [[3, 0]],
    ]
    assert all(np.array_equal(each.as_numpy("DOUBLED"), 2 * array) for each, array in zip(results, arrays, strict=True))


def test_ragged_strings_share_a_batch_and_are_cached(server: ServerProcess) -> None:
    lists: list[list[list[bytes]]] = [[[b"a", b"", b"\0b\xc3\xbf"]], [[b"c"]], [["größer".encode()] * 2], [[b"x"] * 5]]
    arrays = [np.array(each, np.object_) for each in lists]
    results = in_one_batch(server, "strings", [tensor("INPUT0", array, "BYTES") for array in arrays])
    assert [result.as_numpy("OUTPUT0").tolist() for result in results] == lists
    with client_of(server) as client:
        again = client.infer("strings", [tensor("INPUT0", arrays[0], "BYTES")])
    assert again.as_numpy("OUTPUT0").tolist() == lists[0]
    assert executions(server, "strings") == 1


def test_packed_rows_are_scattered_and_a_failing_request_fails_alone(server: ServerProcess) -> None:
    """A request with an unknown token fails the batch, which is then run again split."""

    def infer(tokens: list[int], model: str = "embeddings", name: str = "TOKENS", output: str = "EMBEDDED") -> Array:
        values = np.array([tokens], np.int64)
        with triton_http.InferenceServerClient(server.address) as client:
            given = triton_http.InferInput(name, list(values.shape), "INT64")
            given.set_data_from_numpy(values)
            result: Array = client.infer(model, [given]).as_numpy(output)
            return result

    lists = [[1, 2, 3], [99], [4], [5, 6]]
    with ThreadPoolExecutor(HELD) as pool:
        answers = [pool.submit(infer, tokens) for tokens in lists]
    assert answers[1].exception() is not None
    good = [0, 2, 3]
    assert [answers[n].result().tolist() for n in good] == [[[[t, 10 * t] for t in lists[n]]] for n in good]
    assert infer([7, 0], "pipeline", "IDS", "VECTORS").tolist() == [[[7, 70], [0, 0]]]
