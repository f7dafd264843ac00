"""The times of answers and the access log, on the ports of all platforms, with front ends."""

from __future__ import annotations

import json
import re
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tritonclient.grpc
import tritonclient.http

from tests.contract.servers.ports import HOST, free_ports
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import PATH, good_body, link_models
from tests.waiting import until

pytestmark = pytest.mark.shapes("front-ends")

LIMIT_S = 60.0
TIMES = {
    "timing_queue_us",
    "timing_compute_input_us",
    "timing_compute_infer_us",
    "timing_compute_output_us",
    "timing_batch_size",
    "timing_batch_close",
}
SERVER_TIMING = re.compile(
    r"queue;dur=[0-9.]+, compute_input;dur=[0-9.]+, compute_infer;dur=[0-9.]+, compute_output;dur=[0-9.]+, "
    r'batch;desc="([0-9]+)", close;desc="idle"'
)
PREDICT = "/v1/endpoints/0/deployedModels/0:predict"
INSTANCES = json.dumps({"instances": [{"INPUT0": [1] * 16, "INPUT1": [2] * 16}] * 2}).encode()
JSON = {"Content-Type": "application/json"}


class Platforms(ServerProcess):
    """A server with the ports of all platforms, whose log is one JSON object per line."""

    def __init__(self, repository: Path, log: Path, *options: str) -> None:
        self.sagemaker_port, self.vertex_port = free_ports(2)
        super().__init__(
            repository,
            log,
            "--log-access=true",
            "--log-format=json",
            "--shutdown-grace-secs=0",
            "--allow-sagemaker=true",
            f"--sagemaker-port={self.sagemaker_port}",
            "--allow-vertex-ai=true",
            f"--vertex-ai-port={self.vertex_port}",
            *options,
        )

    def access_line(self, path: str, request_id: str | None = None) -> dict[str, Any]:
        """The line of the access log about the request for `path` with this id, as soon as it is written.

        Several processes write the log: its order is not that of the answers.
        """

        def found() -> list[dict[str, Any]]:
            # The last line may not be whole yet.
            events = [json.loads(line) for line in self.log_text().split("\n")[:-1]]
            events = [event for event in events if event["logger"] == "trident.access" and event["path"] == path]
            return [event for event in events if event.get("request_id") == request_id]

        return until(found, lambda: f"{path} is not in the log")[-1]


@pytest.fixture(scope="module")
def platforms(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Platforms]:
    folder = tmp_path_factory.mktemp("platforms")
    with Platforms(link_models(folder / "m", "simple"), folder / "log", "--response-timing=true") as server:
        yield server


def test_client_gets_requested_timings(platforms: Platforms) -> None:
    client = tritonclient.http.InferenceServerClient(platforms.address)
    inputs = [tritonclient.http.InferInput(f"INPUT{n}", [3, 16], "INT32") for n in range(2)]
    for binary in (True, False):
        for each in inputs:
            each.set_data_from_numpy(np.ones((3, 16), np.int32), binary_data=binary)
        outputs = [tritonclient.http.InferRequestedOutput("OUTPUT0", binary_data=binary)]
        result = client.infer("simple", inputs, outputs=outputs, parameters={"timing": True})
        assert (result.as_numpy("OUTPUT0") == 2).all()
        times = result.get_response()["parameters"]
        assert times.keys() == TIMES
        assert times["timing_batch_size"] == 3
        assert times.pop("timing_batch_close") == "idle"
        assert all(type(value) is int and value >= 0 for value in times.values())
        assert "parameters" not in client.infer("simple", inputs, outputs=outputs).get_response()
    client.close()


def test_grpc_client_gets_the_same_timings(platforms: Platforms) -> None:
    with tritonclient.grpc.InferenceServerClient(f"{HOST}:{platforms.grpc_port}") as client:
        inputs = [tritonclient.grpc.InferInput(f"INPUT{n}", [3, 16], "INT32") for n in range(2)]
        for each in inputs:
            each.set_data_from_numpy(np.ones((3, 16), np.int32))
        times = client.infer("simple", inputs, parameters={"timing": True}).get_response().parameters
        assert set(times) == TIMES
        assert times["timing_batch_size"].int64_param == 3
        assert times["timing_batch_close"].string_param == "idle"
        assert not client.infer("simple", inputs).get_response().parameters


def test_every_answer_has_server_timing(platforms: Platforms) -> None:
    requests = [
        (platforms.http_port, PATH, good_body(), 1),
        (platforms.sagemaker_port, "/invocations", INSTANCES, 2),
        (platforms.vertex_port, PREDICT, INSTANCES, 2),
    ]
    for port, path, body, batch_size in requests:
        status, headers, answer = platforms.request("POST", path, body, JSON, port=port)
        assert status == 200, answer
        found = SERVER_TIMING.fullmatch(headers["Server-Timing"])
        assert found, headers["Server-Timing"]
        assert int(found[1]) == batch_size


def test_each_inference_is_in_the_access_log(platforms: Platforms) -> None:
    document = {**json.loads(good_body()), "id": "request 7"}
    requests = [
        (platforms.http_port, PATH, json.dumps(document).encode(), {}, 1),
        (platforms.sagemaker_port, "/invocations", INSTANCES, {"X-Amzn-SageMaker-Inference-Id": "request 7"}, 2),
        (platforms.vertex_port, PREDICT, INSTANCES[:-1] + b',"parameters":{"id":"request 7"}}', {}, 2),
    ]
    for port, path, body, headers, batch_size in requests:
        status, _, answer = platforms.request("POST", path, body, {**JSON, **headers}, port=port)
        assert status == 200, answer
        line = platforms.access_line(path, "request 7")
        expected = {
            "client": HOST,
            "method": "POST",
            "status": 200,
            "received_bytes": len(body),
            "model": "simple",
            "version": 1,
            "batch_size": batch_size,
        }
        assert {name: line.get(name) for name in expected} == expected
        assert line["sent_bytes"] > len(answer)
        assert line["duration_ms"] * 1000 >= line["compute_infer_us"]


def test_failures_and_refusals_are_in_the_access_log_and_probes_are_not(platforms: Platforms) -> None:
    for port, path in (
        (platforms.http_port, "/v2/health/ready"),
        (platforms.sagemaker_port, "/ping"),
        (platforms.vertex_port, "/v1/endpoints/0/deployedModels/0"),
        (platforms.metrics_port, "/metrics"),
    ):
        assert platforms.request("GET", path, port=port)[0] == 200
    wrong = good_body().replace(b"INPUT1", b"INPUT9")
    assert platforms.request("POST", PATH + "?wrong", wrong)[0] == 400
    line = platforms.access_line(PATH + "?wrong")
    assert (line["status"], line["model"]) == (400, "simple")
    with socket.create_connection((HOST, platforms.http_port), LIMIT_S) as client:
        client.sendall(b"GET /long HTTP/1.1\r\nA: " + b"a" * 100_000)
        assert client.recv(12) == b"HTTP/1.1 431"
    assert platforms.access_line("/long")["status"] == 431
    paths = {event.get("path") for event in map(json.loads, platforms.log_text().splitlines())}
    assert not {"/ping", "/metrics", "/v1/endpoints/0/deployedModels/0"} & paths


def test_no_times_are_sent_unless_enabled(http_workers: str, tmp_path: Path) -> None:
    with Platforms(link_models(tmp_path / "m", "simple"), tmp_path / "log") as server:
        document = {**json.loads(good_body()), "parameters": {"timing": True}}
        _, headers, answer = server.request("POST", PATH, json.dumps(document).encode())
        assert ("Server-Timing" in headers, "parameters" in json.loads(answer)) == (False, False)
        _, headers, _ = server.request("POST", "/invocations", INSTANCES, JSON, port=server.sagemaker_port)
        assert "X-Amzn-SageMaker-Custom-Attributes" not in headers
        assert server.access_line("/invocations")["batch_size"] == 2
