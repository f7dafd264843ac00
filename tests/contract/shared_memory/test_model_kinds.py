"""Shared memory with every kind of model: how a model runs makes no difference to its clients' regions.

Source: docs/spec/shared-memory.md section 6.
"""

from __future__ import annotations

import os
import queue
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from tritonclient.utils import InferenceServerException

from tests.contract.ensembles.ensemble_models import step, write_ensemble
from tests.contract.python.python_models import INT32_PAIR, write_model
from tests.contract.sequences.sequence_models import CONTROLS, OLDEST, controls, echo, sequences
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import link_models
from tests.contract.shared_memory.client_regions import Memory, Speaker, memory, speaker
from tests.unit.onnx_models import add_sub, write_version
from tests.unit.shared_memory_object import path_of

pytestmark = [pytest.mark.slow, pytest.mark.shapes("front-ends")]

FIRST = np.arange(16, dtype=np.int32).reshape(1, 16)
SECOND = np.full((1, 16), 3, np.int32)
SIZE = FIRST.nbytes
NAMES = ("INPUT0", "INPUT1")
STREAMER = """
def execute(self, requests):
    for request in requests:
        values = pb_utils.get_input_tensor_by_name(request, "INPUT0").as_numpy()
        sender = request.get_response_sender()
        for number in range(3):
            sender.send(pb_utils.InferenceResponse([pb_utils.Tensor("OUTPUT0", values + number)]))
        sender.send(flags=pb_utils.TRITONSERVER_RESPONSE_COMPLETE_FINAL)
"""
STREAMED = """
model_transaction_policy { decoupled: true }
input { name: "INPUT0" data_type: TYPE_INT32 dims: [ 16 ] }
output { name: "OUTPUT0" data_type: TYPE_INT32 dims: [ 16 ] }
"""

TOGETHER = "dynamic_batching { preferred_batch_size: [ 8 ] max_queue_delay_microseconds: 200000 }"


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("kinds")
    repository = link_models(folder / "models", "simple")
    write_version(add_sub(), repository, "cached", "max_batch_size: 8 response_cache { enable: true }")
    write_version(add_sub(), repository, "batched", "max_batch_size: 8 dynamic_batching { }")
    write_model(repository, "python")
    write_model(repository, "streamer", STREAMER, STREAMED)
    write_model(repository, "together", more=INT32_PAIR + TOGETHER)
    write_version(echo("INT32", "UINT64"), repository, "numbers", sequences(OLDEST, controls("INT32", "UINT64")))
    tensors = [(name, "TYPE_INT32", [16]) for name in NAMES]
    outputs = [(name.replace("IN", "OUT"), "TYPE_INT32", [16]) for name in NAMES]
    same = {name: name for name in NAMES}
    write_ensemble(
        repository, "ensemble", tensors, outputs, [step("simple", same, {name: name for name, _, _ in outputs})]
    )
    options = ("--shutdown-grace-secs=0", "--allow-client-shm=true", "--cache-config=local,size=1000000")
    with ServerProcess(repository, folder / "log", *options) as running:
        yield running
        assert "Traceback" not in running.log_text()


@pytest.fixture
def both(server: ServerProcess) -> Iterator[Memory]:
    """Registered as `both`: the inputs first, from 4,096 on the outputs."""
    with memory(8192) as found, speaker("http", server) as speaks:
        found.put(FIRST)
        found.put(SECOND, SIZE)
        speaks.client.register_system_shared_memory("both", found.key, 8192)
        yield found
        speaks.client.unregister_system_shared_memory("both")
        assert speaks.names() == []


def infer(speaks: Speaker, model: str, place: int = 0) -> None:
    """The sum goes to `place` among the outputs."""
    inputs = [
        speaks.shared_input(name, [1, 16], "INT32", "both", SIZE, offset * SIZE) for offset, name in enumerate(NAMES)
    ]
    speaks.client.infer(model, inputs, outputs=[speaks.shared_output("OUTPUT0", "both", SIZE, 4096 + place * SIZE)])


@pytest.mark.parametrize("protocol", ["http", "grpc"])
@pytest.mark.parametrize("model", ["python", "ensemble", "cached", "batched"])
def test_inputs_and_outputs_of_each_kind(server: ServerProcess, both: Memory, model: str, protocol: str) -> None:
    with speaker(protocol, server) as speaks:
        for place in range(3):  # the second answer of `cached` comes from the cache, to another place
            infer(speaks, model, place)
            assert both.array(np.int32, [1, 16], 4096 + place * SIZE).tolist() == (FIRST + SECOND).tolist()
        both.put(FIRST + 1)
        infer(speaks, model)
        assert both.array(np.int32, [1, 16], 4096).tolist() == (FIRST + 1 + SECOND).tolist()


def test_requests_in_one_batch_have_their_own_places(server: ServerProcess, both: Memory) -> None:
    def ask(place: int) -> None:
        with speaker("grpc", server) as speaks:
            infer(speaks, "batched", place)

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(ask, range(32)))
    assert both.array(np.int32, [32, 16], 4096).tolist() == 32 * (FIRST + SECOND).tolist()


def test_a_region_that_has_shrunk_fails_its_own_request(server: ServerProcess, both: Memory) -> None:
    with memory(4096) as shrunk, speaker("http", server) as speaks:
        speaks.client.register_system_shared_memory("shrunk", shrunk.key, 4096)
        os.truncate(path_of(shrunk.key), 0)

        def ask(region: str) -> str:
            with speaker("grpc", server) as own:
                inputs = [own.shared_input(name, [1, 16], "INT32", region, SIZE) for name in NAMES]
                try:
                    found = own.client.infer("together", inputs).as_numpy("OUTPUT0").tolist()
                except InferenceServerException as error:
                    return error.message() or ""
                return "right" if found == (FIRST + FIRST).tolist() else f"{found}"

        with ThreadPoolExecutor(8) as pool:
            answers = list(pool.map(ask, ["both", "both", "shrunk", "both"] * 4))
        speaks.client.unregister_system_shared_memory("shrunk")
    wrong = [answer for answer in answers if answer != "right"]
    assert len(wrong) == 4
    assert all(f"of shared memory '{shrunk.key}' cannot be read" in answer for answer in wrong)


def test_a_sequence(server: ServerProcess, both: Memory) -> None:
    with speaker("grpc", server) as speaks:
        for index in range(3):
            given = speaks.shared_input("INPUT", [1, 1], "INT32", "both", 4, 4 * (index + 5))
            wanted = [speaks.shared_output("OUT_INPUT", "both", 4, 4096), speaks.output("OUT_START")]
            result = speaks.client.infer(
                "numbers", [given], outputs=wanted, sequence_id=7, sequence_start=not index, sequence_end=index == 2
            )
            assert both.array(np.int32, [1], 4096).tolist() == [index + 5]
            assert result.as_numpy("OUT_START").tolist() == [[int(not index)]]
    assert CONTROLS[0] == "START"


def test_every_response_of_a_stream_goes_to_the_same_place(server: ServerProcess, both: Memory) -> None:
    answers: queue.Queue[tuple[object, object]] = queue.Queue()
    with speaker("grpc", server) as speaks:
        speaks.client.start_stream(lambda result, error: answers.put((result, error)))
        given = speaks.shared_input("INPUT0", [1, 16], "INT32", "both", SIZE)
        wanted = speaks.shared_output("OUTPUT0", "both", SIZE, 4096)
        speaks.client.async_stream_infer(
            "streamer", [given], outputs=[wanted], enable_empty_final_response=True, request_id="s"
        )
        for _ in range(4):
            assert answers.get(timeout=60)[1] is None
        assert both.array(np.int32, [1, 16], 4096).tolist() == (FIRST + 2).tolist()
        given = speaks.shared_input("INPUT0", [1, 16], "INT32", "unknown", SIZE)
        speaks.client.async_stream_infer("streamer", [given], outputs=[wanted])
        assert "Unable to find shared memory region: 'unknown'" in str(answers.get(timeout=60)[1])
        speaks.client.stop_stream()
