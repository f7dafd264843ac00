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

from tests.contract.servers.processes import from_each
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
REQUESTS = 20


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


def is_seen(server: ServerProcess, settings: dict[str, Any]) -> bool:
    """True if every front end shows these settings."""
    return all(shown == settings for shown in from_each(server, lambda: server.json("GET", "/v2/logging")))


def test_change_over_http_reaches_every_front_end(
    server: ServerProcess, http: triton.InferenceServerClient, grpc: triton_grpc.InferenceServerClient
) -> None:
    assert http.get_log_settings() == START
    wanted = {"log_verbose_level": 1, "log_format": "json", "log_info": None}
    changed = {**START, "log_verbose_level": 1, "log_format": "json"}
    assert http.update_log_settings(wanted) == changed
    until(lambda: is_seen(server, changed), "the front ends do not agree")
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
def test_enabled_log_settings_reach_every_process(
    server: ServerProcess, http: triton.InferenceServerClient, grpc: triton_grpc.InferenceServerClient, protocol: str
) -> None:
    client: Any = http if protocol == "http" else grpc
    begun = len(server.log_text())
    assert "Server-Timing" not in server.request("POST", PATH, good_body())[1]
    client.update_log_settings({"log_access": True, "response_timing": True, "log_verbose_level": 1})
    changed = {**START, "log_access": "true", "response_timing": True, "log_verbose_level": 1}
    until(lambda: is_seen(server, changed), "the front ends do not agree")
    for _ in range(REQUESTS):
        assert server.request("POST", PATH, good_body())[1]["Server-Timing"].startswith("queue;dur=")
        assert grpc.is_model_ready("simple")
    until(lambda: server.log_text()[begun:].count(f"POST {PATH}") == REQUESTS, "the access log lacks lines")
    assert server.log_text()[begun:].count(" batch_size=1") == REQUESTS
    for line in (f"HTTP request: 2 {PATH}", "gRPC request: "):
        until(lambda line=line: server.log_text()[begun:].count(line) >= REQUESTS, f"too few times: {line}")  # type: ignore[misc]
    client.update_log_settings({"log_access": False, "response_timing": False, "log_verbose_level": 0})
    until(lambda: is_seen(server, START), "the front ends do not agree")
    begun = len(server.log_text())
    assert "Server-Timing" not in server.request("POST", PATH, good_body())[1]
    assert PATH not in server.log_text()[begun:]
