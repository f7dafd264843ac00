"""Clients of shared memory that do wrong: the server gives errors, and goes on.

Source: docs/spec/shared-memory.md section 3 and "In Trident".
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis.configuration import set_hypothesis_home_dir
from tritonclient.utils import InferenceServerException

from tests.contract.python.python_models import write_model
from tests.contract.servers.processes import open_files, workers_of
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import link_models
from tests.contract.shared_memory.client_regions import memory, speaker
from tests.unit.onnx_models import identity, write_version
from tests.unit.shared_memory_object import path_of, shared_memory_object
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.shapes("front-ends")]

REGISTER = "/v2/systemsharedmemory/region/{}/register"
LARGE = 4 << 20
TEXTS = """
input { name: "X" data_type: TYPE_STRING dims: [ 2 ] }
output { name: "Y" data_type: TYPE_STRING dims: [ 2 ] }
dynamic_batching { preferred_batch_size: [ 2 ] max_queue_delay_microseconds: 60000000 }
"""
ECHO = """
def execute(self, requests):
    texts = [pb_utils.get_input_tensor_by_name(request, "X").as_numpy() for request in requests]
    return [pb_utils.InferenceResponse([pb_utils.Tensor("Y", each)]) for each in texts]
"""


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("faults")
    set_hypothesis_home_dir(folder / "hypothesis")
    repository = link_models(folder / "models", "simple")
    write_version(identity("UINT8"), repository, "same")
    write_model(repository, "texts", ECHO, TEXTS)
    with ServerProcess(repository, folder / "log", "--shutdown-grace-secs=0", "--allow-client-shm=true") as running:
        workers = workers_of(running)
        yield running
        assert workers_of(running) == workers, "a process was restarted"
        assert "Traceback" not in running.log_text()


@pytest.fixture(autouse=True)
def _leaves_nothing(server: ServerProcess) -> Iterator[None]:
    files = open_files(server)
    yield
    server.request("POST", "/v2/systemsharedmemory/unregister")
    assert server.json("GET", "/v2/systemsharedmemory/status") == []
    until(lambda: open_files(server) <= files + 2, "descriptors of shared memory are left")


def register(server: ServerProcess, name: str, key: str, size: int) -> None:
    body = json.dumps({"key": key, "byte_size": size}).encode()
    assert server.request("POST", REGISTER.format(name), body)[0] == 200


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b"\1\0\0\0a\1\0\0\0b\1", "incomplete string length indicator"),
        (b"\1\0\0\0a", "expected 2 string elements for inference input 'X' for model 'texts', got 1"),
        (b"\1\0\0\0a\xff\xff\xff\xff", "expecting string of length 4294967295 but only 0 bytes available"),
    ],
)
def test_unreadable_strings_fail_only_their_own_request(server: ServerProcess, content: bytes, error: str) -> None:
    def ask(source: dict[str, Any]) -> tuple[int, Any]:
        body = json.dumps({"inputs": [{"name": "X", "datatype": "BYTES", "shape": [1, 2], **source}]}).encode()
        status, _, answer = server.request("POST", "/v2/models/texts/infer", body)
        return status, json.loads(answer)

    with shared_memory_object(len(content), content) as key, ThreadPoolExecutor(1) as other:
        register(server, "texts", key, len(content))
        placed = {"shared_memory_region": "texts", "shared_memory_byte_size": len(content)}
        good = other.submit(ask, {"data": ["c", "d"]})
        status, answer = ask({"parameters": placed})
        assert (status, error in answer["error"]) == (400, True)
        status, answer = good.result()
        assert (status, answer.get("outputs", answer)[0]["data"]) == (200, ["c", "d"])


def test_shared_memory_may_shrink_and_grow_during_requests(server: ServerProcess) -> None:
    stop = threading.Event()
    with memory(2 * LARGE) as both, speaker("http", server) as speaks:
        register(server, "both", both.key, 2 * LARGE)
        given_ = speaks.shared_input("INPUT0", [1, LARGE], "UINT8", "both", LARGE)
        wanted = speaks.shared_output("OUTPUT0", "both", LARGE, LARGE)
        path = path_of(both.key)

        def shrink() -> None:
            while not stop.is_set():
                os.truncate(path, 0)
                os.truncate(path, 2 * LARGE)

        shrinking = threading.Thread(target=shrink)
        shrinking.start()
        failures: list[str] = []
        try:
            for number in range(2000):  # 60 are enough if one of them met it
                if number >= 60 and failures:
                    break
                try:
                    speaks.client.infer("same", [given_], outputs=[wanted])
                except InferenceServerException as error:
                    failures.append(error.message() or "")
        finally:
            stop.set()
            shrinking.join()
        assert failures, "no request met the shrunken memory"
        assert all(f"of shared memory '{both.key}' cannot be " in text for text in failures), failures[0]
        speaks.client.infer("same", [given_], outputs=[wanted])
