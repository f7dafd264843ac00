"""The slowest and the failed requests of a model, which a server keeps without any option.

Source: docs/spec/http.md "In Trident".
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest

from tests.contract.python.python_models import write_model
from tests.contract.servers.server import ServerProcess

pytestmark = pytest.mark.shapes("one-process", "front-ends", "two-engines")

# Sleeps for as many milliseconds as its input says, and fails for a negative one.
SLEEPER = """
def execute(self, requests):
    responses = []
    for request in requests:
        tensor = pb_utils.get_input_tensor_by_name(request, "MS")
        ms = int(tensor.as_numpy()[0])
        if ms < 0:
            responses.append(pb_utils.InferenceResponse([], pb_utils.TritonError(f"cannot sleep for {ms} ms")))
            continue
        time.sleep(ms / 1000)
        responses.append(pb_utils.InferenceResponse([pb_utils.Tensor("OUT", tensor.as_numpy())]))
    return responses
"""
CONFIG = """
input { name: "MS" data_type: TYPE_INT32 dims: 1 }
output { name: "OUT" data_type: TYPE_INT32 dims: 1 }
"""
SLOW_MS = (400, 200, 300)


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("slowest")
    write_model(folder / "m", "sleeper", SLEEPER, CONFIG, max_batch_size=0)
    with ServerProcess(folder / "m", folder / "log", "--shutdown-grace-secs=0") as server:
        yield server


def infer(server: ServerProcess, ms: int) -> int:
    tensor = {"name": "MS", "datatype": "INT32", "shape": [1], "data": [ms]}
    body = json.dumps({"id": f"sleep {ms}", "inputs": [tensor]}).encode()
    return server.request("POST", "/v2/models/sleeper/infer", body)[0]


def test_slowest_and_failed_requests_are_listed(server: ServerProcess) -> None:
    for ms in (0,) * 50 + SLOW_MS + (0,) * 50:
        assert infer(server, ms) == 200
    for ms in (-1, -2):
        assert infer(server, ms) == 500
    found: Any = server.json("GET", "/v2/models/sleeper/slowest")
    assert found == server.json("GET", "/v2/models/sleeper/versions/1/slowest")
    (version,) = found["versions"]
    assert (found["model_name"], version["version"]) == ("sleeper", "1")
    slowest, failed = version["slowest"], version["failed"]
    assert len(slowest) == 32
    durations = [each["duration_us"] for each in slowest]
    assert durations == sorted(durations, reverse=True)
    # A busy machine may make others as slow.
    by_id = {each["id"]: each for each in slowest}
    for ms in SLOW_MS:
        asleep = by_id[f"sleep {ms}"]
        assert asleep["duration_us"] >= asleep["queue_us"] + asleep["compute_infer_us"]
        assert asleep["compute_infer_us"] >= 1000 * ms
        assert (asleep["status"], asleep["batch_size"]) == ("OK", 1)
        assert asleep["ended"].endswith("Z")
    assert {each["id"] for each in failed} == {"sleep -1", "sleep -2"}
    assert all(each["status"] == "BACKEND" and "cannot sleep for" in each["error"] for each in failed)


def test_slowest_requests_of_an_unknown_model_are_refused(server: ServerProcess) -> None:
    status, _, answer = server.request("GET", "/v2/models/nobody/slowest")
    assert (status, json.loads(answer)["error"]) == (400, "requested model 'nobody' is not available")
