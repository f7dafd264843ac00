"""The distributions of durations on the page of a running server, as Prometheus and Triton's own tests read it."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import Any

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families as parse_openmetrics
from prometheus_client.parser import text_string_to_metric_families as parse

from tests.contract.servers.server import ServerProcess
from tests.unit.onnx_models import picky, write_version
from trident.core.http.admin import OPENMETRICS

pytestmark = [pytest.mark.slow, pytest.mark.shapes("one-process", "front-ends")]

CONFIG = """
max_batch_size: 8
model_metrics {
  metric_control: [
    {
      metric_identifier { family: "nv_inference_first_response_histogram_ms" }
      histogram_options { buckets: [ 60000, 120000 ] }
    },
    {
      metric_identifier { family: "trident_inference_queue_duration_seconds" }
      histogram_options { buckets: [ 60 ] }
    }
  ]
}
"""
OPTIONS = (
    "--metrics-config=histogram_latencies=true",
    "--metrics-config=summary_latencies=true",
    "--metrics-config=summary_quantiles=0.5:0.05,0.99:0.001",
    "--shutdown-grace-secs=0",
)
REQUESTS = 4
OPENMETRICS_ONLY = {"Accept": "application/openmetrics-text;version=1.0.0,text/plain;q=0.5"}


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server that has answered REQUESTS requests well, the last with the id `seen`, and one with an error."""
    folder = tmp_path_factory.mktemp("latencies")
    write_version(picky(), folder / "models", "picky")
    (folder / "models" / "picky" / "config.pbtxt").write_text(CONFIG)
    with ServerProcess(folder / "models", folder / "log", *OPTIONS) as running:
        assert [infer(running, 1) for _ in range(REQUESTS - 1)] == [200] * (REQUESTS - 1)
        assert infer(running, 1, id="seen") == 200
        assert infer(running, 99) == 500
        yield running


def infer(server: ServerProcess, index: int, **fields: Any) -> int:
    tensor = {"name": "INDEX", "datatype": "INT64", "shape": [1, 1], "data": [index]}
    body = json.dumps({**fields, "inputs": [tensor]}).encode()
    return server.request("POST", "/v2/models/picky/infer", body)[0]


def page(server: ServerProcess, headers: dict[str, str] | None = None) -> tuple[str, str]:
    """Content type and text."""
    status, received, body = server.request("GET", "/metrics", None, headers, port=server.metrics_port)
    assert status == 200
    return received["Content-Type"], body.decode()


def test_histograms_and_summaries_agree_with_the_counters(server: ServerProcess) -> None:
    samples = {
        (sample.name, sample.labels.get("le") or sample.labels.get("quantile")): sample.value
        for family in parse(page(server)[1])
        for sample in family.samples
    }
    for part in ("request", "queue"):
        duration_us = samples[f"nv_inference_{part}_duration_us_total", None]
        seconds = samples[f"trident_inference_{part}_duration_seconds_sum", None]
        summary = f"nv_inference_{part}_summary_us"
        assert duration_us > 0
        assert seconds * 1e6 == pytest.approx(duration_us, abs=1)
        assert (samples[f"{summary}_sum", None], samples[f"{summary}_count", None]) == (duration_us, REQUESTS)
        assert 0 < samples[summary, "0.5"] <= samples[summary, "0.99"]
    assert samples["trident_inference_queue_duration_seconds_bucket", "60"] == REQUESTS
    assert samples["trident_inference_request_duration_seconds_bucket", "10"] == REQUESTS
    assert samples["trident_inference_compute_duration_seconds_count", None] == REQUESTS


def test_openmetrics_has_the_ids_of_requests(server: ServerProcess) -> None:
    content_type, text = page(server, OPENMETRICS_ONLY)
    assert content_type == OPENMETRICS
    exemplars = {
        family.name: sample.exemplar
        for family in parse_openmetrics(text)
        for sample in family.samples
        if sample.exemplar is not None
    }
    assert set(exemplars) == {
        "nv_inference_first_response_histogram_ms",
        *(f"trident_inference_{part}_duration_seconds" for part in ("request", "queue", "compute")),
    }
    assert {exemplar.labels["request_id"] for exemplar in exemplars.values()} == {"seen"}
