"""Metrics on stdout: one of several processes writes them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.contract.servers.server import ServerProcess
from tests.project import ROOT
from tests.unit.core.observability.embedded_metric_format import check_document
from tests.waiting import until

pytestmark = pytest.mark.slow

DIGITS = ROOT / "deploy" / "models" / "digits"
REQUEST = (ROOT / "deploy" / "digits" / "7.json").read_bytes()
INFER = "/v2/models/digits/infer"
REQUESTS = 5


def entries(log: Path) -> list[dict[str, Any]]:
    """The whole lines of the metrics log. Every other line of the output must be one of the server's log."""
    lines = [line for line in log.read_text().split("\n")[:-1] if line.startswith("{")]
    return [json.loads(line) for line in lines]


def repository(folder: Path) -> Path:
    (folder / "models").mkdir()
    (folder / "models" / "digits").symlink_to(DIGITS)
    return folder / "models"


def total(found: list[dict[str, Any]], figure: str) -> int:
    return sum(int(each[figure]) for each in found)


@pytest.mark.shapes("front-ends")
def test_embedded_metrics_of_each_interval(http_workers: str, tmp_path: Path) -> None:
    options = (
        "--metrics-log=emf",
        "--metrics-log-interval-secs=1",
        "--metrics-log-namespace=Shop",
        "--metrics-log-dimension=endpoint=e",
        "--metrics-config=histogram_latencies=true",
        "--shutdown-grace-secs=0",
    )
    log = tmp_path / "log"
    with ServerProcess(repository(tmp_path), log, *options) as server:
        for _ in range(REQUESTS):
            assert server.request("POST", INFER, REQUEST)[0] == 200
        assert server.request("POST", INFER, b"{}")[0] == 400
        until(lambda: total(of_model(entries(log)), "request_success") == REQUESTS, server.log_text)
        quiet = len(entries(log))
        until(lambda: len(entries(log)) >= quiet + 4, server.log_text)  # a heartbeat of zeros
        assert server.request("POST", INFER, REQUEST)[0] == 200  # counted in the line that the stop writes
    written = [line for line in log.read_text().splitlines() if line.startswith("{")]
    for line in written:
        check_document(line)
    found = entries(log)
    models, servers = of_model(found), [each for each in found if "model" not in each]
    assert total(models, "request_success") == total(servers, "request_success") == REQUESTS + 1
    assert total(models, "inference_count") == REQUESTS + 1
    assert {each["_aws"]["CloudWatchMetrics"][0]["Namespace"] for each in found} == {"Shop"}
    assert {each["endpoint"] for each in found} == {"e"}
    times = [each["_aws"]["Timestamp"] for each in servers]
    assert times == sorted(set(times)), "two processes write"
    busy = [each for each in models if each["request_success"]]
    assert all(0 < each["request_duration_p50"] <= each["request_duration_p99"] for each in busy)
    assert all("request_duration_mean" not in each for each in models if not each["request_success"])
    assert any(each["ready"] == 1 for each in servers)
    assert 0 <= servers[-1]["cpu_utilization"] <= 100


def of_model(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    return [each for each in found if each.get("model") == "digits"]
