"""Batch buckets: batches padded to configured sizes, each of which has run before the model is ready.

Source: docs/ragged-batching.md.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import ExitStack
from typing import Any

import numpy as np
import pytest

from tests.contract.grpc.grpc_requests import Responses, client_of, tensor
from tests.contract.servers.server import ServerProcess
from tests.unit import onnx_models
from tests.unit.onnx_models import write_version

pytestmark = pytest.mark.slow

# The number of queued requests at which a model runs its first batch.
HELD = 3


def parameters(**values: str) -> str:
    return "".join(
        f'parameters {{ key: "{key}" value {{ string_value: "{text}" }} }}\n' for key, text in values.items()
    )


PADDED = """
max_batch_size: 4
input { name: "INPUT0" data_type: TYPE_FP32 dims: -1 }
output [
  { name: "OUTPUT0" data_type: TYPE_FP32 dims: -1 },
  { name: "SEEN" data_type: TYPE_INT64 dims: 2 },
  { name: "SHAPES_OUT" data_type: TYPE_INT32 dims: -1 },
  { name: "TOTAL" data_type: TYPE_FP32 dims: 1 },
  { name: "TWICE" data_type: TYPE_FP32 dims: -1 }
]
batch_input { kind: BATCH_ITEM_SHAPE target_name: "SHAPES" data_type: TYPE_INT32 source_input: "INPUT0" }
dynamic_batching { }
""" + parameters(BATCH_BUCKETS="1,4", LENGTH_BUCKETS="4,8", LENGTH_PAD_VALUES="INPUT0=100")
NUMBERS = """
max_batch_size: 2
input { name: "INPUT0" data_type: TYPE_STRING dims: 1 }
output { name: "OUTPUT0" data_type: TYPE_FP32 dims: 1 }
""" + parameters(BATCH_BUCKETS="2")
WARMUP = """
model_warmup {
  name: "seven" batch_size: 1
  inputs { key: "INPUT0" value { data_type: TYPE_STRING dims: 1 input_data_file: "seven" } }
}
"""


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server whose models wait once until `HELD` requests are queued, so each test of a batch has its own model."""
    folder = tmp_path_factory.mktemp("buckets")
    repository = folder / "models"
    for name in ("streamed", "posted"):
        write_version(onnx_models.padded_view(), repository, name, PADDED)
    for name, warmup in (("numbers", ""), ("warm_numbers", WARMUP)):
        write_version(onnx_models.string_to_number(("batch", 1)), repository, name, NUMBERS + warmup)
    (repository / "warm_numbers" / "warmup").mkdir()
    (repository / "warm_numbers" / "warmup" / "seven").write_bytes(b"\1\0\0\0007")
    with ExitStack() as stack:
        with pytest.MonkeyPatch.context() as patch:  # for this server only
            patch.setenv("TRITONSERVER_DELAY_SCHEDULER", str(HELD))
            options = ("--shutdown-grace-secs=0", "--model-control-mode=explicit", "--log-verbose=1")
            loads = [f"--load-model={name}" for name in ("streamed", "posted", "warm_numbers")]
            running = stack.enter_context(ServerProcess(repository, folder / "log", *options, *loads))
        yield running


def of_length(length: int) -> Any:
    return np.full((1, length), length, np.float32)


def assert_own_answer(result: Any, length: int) -> None:
    """The graph saw 4 rows of 8; the client sees its own row and its own length."""
    assert result.as_numpy("SEEN").tolist() == [[4, 8]]
    assert result.as_numpy("OUTPUT0").tolist() == [[length] * length]
    assert result.as_numpy("SHAPES_OUT").tolist() == [[length]]
    assert result.as_numpy("TOTAL").tolist() == [[length * length + 100 * (8 - length)]]
    assert result.as_numpy("TWICE").shape == (1, 16)  # not the length of the inputs, so it stays


def bucket_stats(server: ServerProcess, model: str) -> Any:
    (entry,) = server.json("GET", f"/v2/models/{model}/stats")["model_stats"]
    return entry.get("bucket_stats")


FULL = {"batch_size": 4, "length": 8, "execution_count": 1, "element_count": 18, "padding_count": 14}


def test_every_bucket_is_warmed_up_on_every_instance(server: ServerProcess) -> None:
    before, ready, _ = server.log_text().partition("successfully loaded 'streamed'")
    assert ready
    for instance in ("streamed_0", "streamed_1"):
        for bucket in ("4, length 8", "4, length 4", "1, length 8", "1, length 4"):
            line = f"instance {instance} is running warmup sample 'bucket of batch size {bucket}' for iteration 1"
            assert before.count(line) == 1


def test_a_batch_of_three_is_padded_to_four_over_grpc_and_counted(server: ServerProcess) -> None:
    assert bucket_stats(server, "streamed") is None  # the warmup of the buckets is not counted
    lengths = (5, 6, 7)
    responses = Responses()
    with client_of(server) as client:
        client.start_stream(responses.put)
        for length in lengths:
            client.async_stream_infer("streamed", [tensor("INPUT0", of_length(length), "FP32")])
        for length in lengths:
            assert_own_answer(responses.next_result(), length)
    assert bucket_stats(server, "streamed") == [FULL]
    _, _, page = server.request("GET", "/metrics", port=server.metrics_port)
    lines = page.decode().splitlines()
    labels = '{batch_size="4",length="8",model="streamed",version="1"}'
    for name, value in (("executions", 1), ("elements", 18), ("padding_elements", 14)):
        assert f"trident_bucket_{name}_total{labels} {value}" in lines


def test_model_is_not_ready_if_a_bucket_cannot_run(server: ServerProcess) -> None:
    """Empty strings are no numbers. A warmup sample gives the buckets other values, and so `warm_numbers` is ready."""
    status, _, answer = server.request("POST", "/v2/repository/models/numbers/load", b"{}")
    assert (status, b"failed to run warmup sample 'bucket of batch size 2'" in answer) == (400, True)
    body = {"inputs": [{"name": "INPUT0", "datatype": "BYTES", "shape": [1, 1], "data": ["4"]}]}
    answer = server.json("POST", "/v2/models/warm_numbers/infer", body)
    assert (answer["outputs"][0]["shape"], answer["outputs"][0]["data"]) == ([1, 1], [4.0])
    (bucket,) = bucket_stats(server, "warm_numbers")
    assert (bucket["batch_size"], bucket["element_count"], bucket["padding_count"]) == (2, 1, 1)
