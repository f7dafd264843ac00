from __future__ import annotations

import pytest
from prometheus_client.openmetrics.parser import text_string_to_metric_families
from werkzeug.test import Client

from tests.unit.fake_engine import FakeEngine
from trident.app.settings.reading import read_settings
from trident.app.settings.server import ServerSettings
from trident.app.sites.applications import Applications
from trident.core.frontend.bridge import Bridge, ThreadBridge
from trident.core.http.admin import OPENMETRICS, PROMETHEUS
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.observability.statistics import MetricsSnapshot, ModelMetrics
from trident.core.observability.switches import SWITCHES

HTTP, SAGEMAKER, VERTEX, METRICS = 8000, 8081, 8082, 8002
ALL = (
    "--allow-sagemaker=true",
    f"--sagemaker-port={SAGEMAKER}",
    "--allow-vertex-ai=true",
    f"--vertex-ai-port={VERTEX}",
)
MODEL = ModelMetrics(model="simple", version=1, statistics=ModelStatistics().snapshot(), load_duration_secs=0.1)


class Measured(FakeEngine):
    def metrics(self) -> MetricsSnapshot:
        return MetricsSnapshot(models=(MODEL,))


def settings(*arguments: str) -> ServerSettings:
    return read_settings(["--model-repository=/m", *arguments], {})


def by_port(*arguments: str) -> dict[int, Client]:
    made = Applications(settings(*arguments), Measured(), lambda _: ThreadBridge()).by_port()
    return {port: Client(application) for port, application in made.items()}


def statuses(clients: dict[int, Client], path: str) -> dict[int, int]:
    return {port: client.get(path).status_code for port, client in clients.items()}


@pytest.mark.parametrize(
    ("arguments", "ports"),
    [
        ((), {HTTP, METRICS}),
        (("--http-port=9", "--metrics-port=10"), {9, 10}),
        (("--allow-metrics=false",), {HTTP}),
        (("--allow-http=false",), {METRICS}),
        (ALL, {HTTP, SAGEMAKER, VERTEX, METRICS}),
        (("--platform=sagemaker", f"--sagemaker-port={SAGEMAKER}"), {SAGEMAKER}),
    ],
)
def test_each_allowed_port_has_an_application(arguments: tuple[str, ...], ports: set[int]) -> None:
    assert by_port(*arguments).keys() == ports
    services = settings(*arguments).services()
    assert {each.port for name, each in services.items() if name != "GRPC"} == ports


def test_each_port_has_its_own_routes() -> None:
    clients = by_port(*ALL)
    found = {path: statuses(clients, path) for path in ("/v2/health/ready", "/ping", "/metrics")}
    assert [port for port in (HTTP, SAGEMAKER, VERTEX) if found["/v2/health/ready"][port] == 200] == [HTTP, VERTEX]
    assert found["/ping"][SAGEMAKER] == 200
    assert found["/ping"][HTTP] == 404
    assert found["/metrics"][METRICS] == 200
    assert found["/metrics"][HTTP] == 404


def test_the_metrics_page_is_in_openmetrics_where_there_are_exemplars() -> None:
    accepted = {"Accept": "application/openmetrics-text;version=1.0.0;q=0.5,text/plain;q=0.4"}
    ports = by_port()
    SWITCHES.set(histograms=True)
    assert ports[HTTP].get("/v2").status_code == 200
    page = ports[METRICS].get("/metrics", headers=accepted)
    assert page.content_type == OPENMETRICS
    assert page.text.endswith("# EOF\n")
    assert [family.name for family in text_string_to_metric_families(page.text)].count("flask_exporter_info") == 1
    SWITCHES.set(histograms=False)
    assert ports[METRICS].get("/metrics", headers=accepted).content_type == PROMETHEUS


def test_each_port_has_its_own_threads() -> None:
    numbers: list[int] = []

    def bridge(threads: int) -> Bridge:
        numbers.append(threads)
        return ThreadBridge()

    threads = ("--http-thread-count=3", "--sagemaker-thread-count=5", "--vertex-ai-thread-count=7")
    Applications(settings(*ALL, *threads), Measured(), bridge)
    assert sorted(numbers) == [3, 5, 7]
