"""The settings of the log change in every process of a server, over both protocols.

Source: docs/spec/trace-and-log.md section 5.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any

import pytest
import tritonclient.grpc as triton_grpc
import tritonclient.http as triton

from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import PATH, good_body
from tests.waiting import until

pytestmark = pytest.mark.shapes("front-ends")

START = {
    "log_file": "",
    "log_info": True,
    "log_warning": True,
    "log_error": True,
    "log_verbose_level": 0,
    "log_format": "default",
}
QUIET = {name: value for name, value in START.items() if name != "log_file"}
MANY = 20


@pytest.fixture
def http(server: ServerProcess) -> Iterator[triton.InferenceServerClient]:
    client = triton.InferenceServerClient(server.address)
    yield client
    client.update_log_settings(QUIET)
    client.close()


@pytest.fixture
def grpc(server: ServerProcess) -> Iterator[triton_grpc.InferenceServerClient]:
    with triton_grpc.InferenceServerClient(f"127.0.0.1:{server.grpc_port}") as client:
        yield client


def seen(server: ServerProcess) -> list[Any]:
    """What many new connections see: with front ends these reach all of them."""
    return [server.json("GET", "/v2/logging") for _ in range(MANY)]


def test_a_change_over_http_is_seen_everywhere(
    server: ServerProcess, http: triton.InferenceServerClient, grpc: triton_grpc.InferenceServerClient
) -> None:
    assert http.get_log_settings() == START
    wanted = {"log_verbose_level": 1, "log_format": "json", "log_info": None}
    changed = {**START, "log_verbose_level": 1, "log_format": "json"}
    assert http.update_log_settings(wanted) == changed
    until(lambda: seen(server) == [changed] * MANY, "the front ends do not agree")
    settings = grpc.get_log_settings().settings
    assert (settings["log_verbose_level"].uint32_param, settings["log_format"].string_param) == (1, "json")
    marker = "/v2/models/marked/ready"
    server.request("GET", marker)
    until(lambda: any(marker in line for line in server.log_text().splitlines()), "not logged")
    line = next(line for line in server.log_text().splitlines() if marker in line)
    assert json.loads(line)["message"]


def histogram_counts(server: ServerProcess) -> dict[str, float]:
    page = server.request("GET", "/metrics", port=server.metrics_port)[2].decode()
    found = re.findall(r'^trident_inference_request_duration_seconds_(count|sum){model="simple".*} (\S+)$', page, re.M)
    return {name: float(value) for name, value in found}


def test_histograms_begin_when_they_are_switched_on(server: ServerProcess, http: triton.InferenceServerClient) -> None:
    assert server.request("POST", PATH, good_body())[0] == 200
    assert histogram_counts(server) == {}
    for _ in range(2):  # the second time they begin anew
        http.update_log_settings({"histogram_latencies": True})
        assert histogram_counts(server) == {"count": 0, "sum": 0}
        for _ in range(3):
            assert server.request("POST", PATH, good_body())[0] == 200
        counts = histogram_counts(server)
        assert counts["count"] == 3
        assert 0 < counts["sum"] < 30
        http.update_log_settings({"histogram_latencies": False})
        assert histogram_counts(server) == {}


@pytest.mark.parametrize("protocol", ["http", "grpc"])
def test_what_is_switched_on_reaches_every_process(
    server: ServerProcess, http: triton.InferenceServerClient, grpc: triton_grpc.InferenceServerClient, protocol: str
) -> None:
    client: Any = http if protocol == "http" else grpc
    begun = len(server.log_text())
    assert "Server-Timing" not in server.request("POST", PATH, good_body())[1]
    client.update_log_settings({"log_access": True, "response_timing": True, "log_verbose_level": 1})
    changed = {**START, "log_access": "true", "response_timing": True, "log_verbose_level": 1}
    until(lambda: seen(server) == [changed] * MANY, "the front ends do not agree")
    for _ in range(MANY):
        assert server.request("POST", PATH, good_body())[1]["Server-Timing"].startswith("queue;dur=")
        assert grpc.is_model_ready("simple")
    until(lambda: server.log_text()[begun:].count(f"POST {PATH}") == MANY, "the access log lacks lines")
    log = server.log_text()[begun:]
    assert log.count(" batch_size=1") == MANY
    assert (log.count(f"HTTP request: 2 {PATH}"), log.count("gRPC request: ")) >= (MANY, MANY)
    client.update_log_settings({"log_access": False, "response_timing": False, "log_verbose_level": 0})
    until(lambda: seen(server) == [START] * MANY, "the front ends do not agree")
    begun = len(server.log_text())
    assert "Server-Timing" not in server.request("POST", PATH, good_body())[1]
    assert PATH not in server.log_text()[begun:]
