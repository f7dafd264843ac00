"""Clients of shared memory that do wrong: the server gives errors, and goes on.

Source: docs/spec/shared-memory.md section 3 and "In Trident".
"""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.configuration import set_hypothesis_home_dir
from tritonclient.utils import InferenceServerException

from tests.contract.servers.processes import open_files, workers_of
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import link_models
from tests.contract.shared_memory.client_regions import memory, speaker
from tests.fuzzing import bounded
from tests.unit.onnx_models import identity, write_version
from tests.unit.shared_memory_object import path_of, shared_memory_object
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.shapes("front-ends")]

REGISTER = "/v2/systemsharedmemory/region/{}/register"
LARGE = 4 << 20
STATUSES = {200, 400, 404, 500}
MOST = 2**64
NUMBERS = st.sampled_from([0, 1, 63, 64, 4096, 2**31, 2**63 - 1, 2**63, MOST - 1, MOST, -1, 1.5, True])
ANYTHING = st.none() | st.booleans() | NUMBERS | st.text(max_size=8) | st.lists(NUMBERS, max_size=2)
KEYS = st.sampled_from(["/k", "", "/", "..", "/proc/self/mem", "/a\0b", "/dev/null", "k" * 300]) | st.text(max_size=8)


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("faults")
    set_hypothesis_home_dir(folder / "hypothesis")
    repository = link_models(folder / "models", "simple")
    write_version(identity("UINT8"), repository, "same")
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


def test_memory_that_shrinks_and_grows_under_the_requests(server: ServerProcess) -> None:
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
            for _ in range(60):
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


@bounded(200)
@given(
    name=st.sampled_from(["a", "b", "%00", "a%2Fb", "%C3%A4"]),
    kind=st.sampled_from(["system", "cuda"]),
    document=ANYTHING
    | st.fixed_dictionaries(
        {},
        optional={
            "key": KEYS | ANYTHING,
            "offset": ANYTHING,
            "byte_size": ANYTHING,
            "raw_handle": ANYTHING | st.fixed_dictionaries({}, optional={"b64": KEYS | ANYTHING}),
            "device_id": ANYTHING,
        },
    ),
    action=st.sampled_from(["register", "register", "register", "unregister"]),
)
def test_any_body_is_answered(server: ServerProcess, name: str, kind: str, document: Any, action: str) -> None:
    path = f"/v2/{kind}sharedmemory/region/{name}/{action}"
    status, _, answer = server.request("POST", path, json.dumps(document).encode())
    assert status in STATUSES
    assert status == 200 or json.loads(answer)["error"]


@bounded(200)
@given(
    place=st.fixed_dictionaries(
        {"shared_memory_region": st.sampled_from(["r", "x", ""]) | ANYTHING},
        optional={"shared_memory_byte_size": ANYTHING, "shared_memory_offset": ANYTHING},
    ),
    shape=st.sampled_from([[1, 16], [1, 0], [0, 16], [2**62, 4], []]),
    as_output=st.booleans(),
)
def test_any_range_of_a_region_is_answered(
    server: ServerProcess, place: dict[str, Any], shape: list[int], as_output: bool
) -> None:
    with shared_memory_object(4096) as key:
        register(server, "r", key, 4096)
        one = {"name": "INPUT0", "datatype": "INT32", "shape": shape, "parameters": place}
        other = {"name": "INPUT1", "datatype": "INT32", "shape": [1, 16], "data": [0] * 16}
        document: dict[str, Any] = {"inputs": [one, other]}
        if as_output:
            document = {
                "inputs": [other | {"name": "INPUT0"}, other],
                "outputs": [{"name": "OUTPUT0", "parameters": place}],
            }
        status, _, _ = server.request("POST", "/v2/models/simple/infer", json.dumps(document).encode())
        assert status in STATUSES
        server.request("POST", "/v2/systemsharedmemory/unregister")
