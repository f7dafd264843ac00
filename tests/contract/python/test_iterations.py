"""Iterative sequences: a Python model has its requests executed again until it has sent all tokens.

Source: docs/spec/schedulers.md section 3.4 ("Iterative sequence"), docs/spec/python-backend.md section 4.8.
"""

from __future__ import annotations

import json
import queue
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc as triton
from tritonclient.utils import InferenceServerException

from tests.contract.python.python_models import write_model
from tests.contract.servers.ports import HOST
from tests.contract.servers.server import ServerProcess
from tests.waiting import until

pytestmark = pytest.mark.slow

LIMIT_S = 60.0
ENDLESS = 1_000_000
# Takes several seconds, for another client to begin and to end in.
LONG = 1000

# Each iteration sends a token: how many are left, with how many others it was made, and the weight.
TOKENS = """
WEIGHT = 1

def initialize(self, args):
    self.left = {}

def execute(self, requests):
    time.sleep(0.002)
    for request in requests:
        number = request.correlation_id()
        if request.flags() & pb_utils.TRITONSERVER_REQUEST_FLAG_SEQUENCE_START:
            self.left[number] = int(pb_utils.get_input_tensor_by_name(request, "COUNT").as_numpy().flat[0])
        self.left[number] -= 1
        token = np.array([[self.left[number], len(requests), self.WEIGHT]], np.int32)
        response = pb_utils.InferenceResponse([pb_utils.Tensor("TOKEN", token)])
        sender = request.get_response_sender()
        if self.left[number]:
            request.set_release_flags(pb_utils.TRITONSERVER_REQUEST_RELEASE_RESCHEDULE)
            sender.send(response)
        else:
            del self.left[number]
            sender.send(response, pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
TENSORS = """
input { name: "COUNT" data_type: TYPE_INT32 dims: [ 1 ] }
output { name: "TOKEN" data_type: TYPE_INT32 dims: [ 3 ] }
instance_group { kind: KIND_CPU }
"""
DECOUPLED = TENSORS + "model_transaction_policy { decoupled: true }"
ITERATIVE = "sequence_batching { iterative_sequence: true %s }"
OLDEST = "oldest { max_candidate_sequences: 4 }"


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("iterations")
    repository = folder / "models"
    write_model(repository, "tokens", TOKENS, DECOUPLED + ITERATIVE % OLDEST, max_batch_size=4)
    write_model(repository, "direct", TOKENS, DECOUPLED + ITERATIVE % "", max_batch_size=4)
    write_model(repository, "sequences", TOKENS, DECOUPLED + "sequence_batching { oldest {} }", max_batch_size=4)
    write_model(repository, "dynamic", TOKENS, DECOUPLED + "dynamic_batching {}", max_batch_size=4)
    options = ["--model-control-mode=explicit", "--load-model=*", "--shutdown-grace-secs=0"]
    with ServerProcess(repository, folder / "log", *options) as running:
        yield running


class Tokens:
    """A stream of one request over gRPC: its tokens as they come."""

    def __init__(self, client: Any, model: str, count: int, **options: Any) -> None:
        self._arrived: queue.SimpleQueue[tuple[Any, Any]] = queue.SimpleQueue()
        self._client = client
        client.start_stream(lambda result, error: self._arrived.put((result, error)))
        tensor = triton.InferInput("COUNT", [1, 1], "INT32")
        tensor.set_data_from_numpy(np.array([[count]], np.int32))
        client.async_stream_infer(model, [tensor], enable_empty_final_response=True, **options)

    def __iter__(self) -> Iterator[list[int]]:
        while True:
            result, error = self._arrived.get(timeout=LIMIT_S)
            if error is not None:
                raise error
            response = result.get_response()
            if response.outputs:
                yield result.as_numpy("TOKEN")[0].tolist()
            if response.parameters["triton_final_response"].bool_param:
                return

    @property
    def arrived(self) -> int:
        """The responses that have come and were not looked at."""
        return self._arrived.qsize()

    def cancel(self) -> None:
        self._client.stop_stream(cancel_requests=True)


@contextmanager
def tokens(server: ServerProcess, model: str, count: int, **options: Any) -> Iterator[Tokens]:
    with triton.InferenceServerClient(f"{HOST}:{server.grpc_port}") as client:
        yield Tokens(client, model, count, **options)


def generated(server: ServerProcess, model: str, count: int) -> list[list[int]]:
    """The tokens over HTTP."""
    body = json.dumps({"COUNT": count}).encode()
    status, _, answer = server.request("POST", f"/v2/models/{model}/generate_stream", body)
    text = answer.decode()
    assert status == 200, text
    return [json.loads(line.removeprefix("data:"))["TOKEN"] for line in text.split("\n") if line]


def statistics(server: ServerProcess, model: str) -> dict[str, Any]:
    (found,) = server.json("GET", f"/v2/models/{model}/stats")["model_stats"]
    return found  # type: ignore[no-any-return]


@pytest.mark.parametrize("model", ["tokens", "direct"])
def test_requests_of_different_lengths_share_iterations(server: ServerProcess, model: str) -> None:
    """A short one, over HTTP, begins and ends within the iterations of a long one, over gRPC."""
    before = statistics(server, model)
    with tokens(server, model, LONG) as long:
        arriving = iter(long)
        seen = [next(arriving)]
        short = generated(server, model, 20)
        seen += arriving
    assert [left for left, *_ in seen] == list(range(LONG - 1, -1, -1))
    assert [left for left, *_ in short] == list(range(19, -1, -1))
    assert all(together == 2 for _, together, _ in short)
    assert [together for _, together, _ in seen].count(2) == 20
    # An execution is counted when it has ended, which may be after its last response.
    until(lambda: statistics(server, model)["execution_count"] == before["execution_count"] + LONG)
    after = statistics(server, model)
    assert after["inference_count"] == before["inference_count"] + 2
    assert after["inference_stats"]["success"]["count"] - before["inference_stats"]["success"]["count"] == 2


def test_disconnected_client_frees_its_slot(server: ServerProcess) -> None:
    with tokens(server, "tokens", ENDLESS) as first:
        next(iter(first))
        with tokens(server, "tokens", ENDLESS) as one, tokens(server, "tokens", ENDLESS) as other:
            next(iter(one))
            next(iter(other))
            with tokens(server, "tokens", ENDLESS) as fourth, tokens(server, "tokens", 3) as waiting:
                arriving = iter(fourth)
                until(lambda: next(arriving)[1] == 4)
                assert not waiting.arrived
                first.cancel()
                assert [left for left, *_ in waiting] == [2, 1, 0]
                for each in (one, other, fourth):
                    each.cancel()
    until(lambda: statistics(server, "tokens")["inference_stats"]["fail"]["count"] >= 4)
    assert generated(server, "tokens", 2)


@pytest.mark.parametrize("model", ["dynamic", "sequences"])
def test_rescheduling_needs_iterative_sequences(server: ServerProcess, model: str) -> None:
    text = (
        "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to handle"
    )
    with (
        tokens(server, model, 3, sequence_id=7, sequence_start=True) as stream,
        pytest.raises(InferenceServerException, match=text),
    ):
        list(stream)
