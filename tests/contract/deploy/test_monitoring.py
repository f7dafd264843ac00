"""Every query of dashboard and rules, with a real Prometheus that scrapes servers under load."""

from __future__ import annotations

import contextlib
import json
import re
import shutil
import subprocess
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import pytest
import yaml

from docs.lists import MODEL, families_of
from tests.contract.deploy.prometheus import MONITORING, Prometheus, finite, shipped_config
from tests.contract.repository.cloud_models import cloud_server
from tests.contract.repository.s3_emulator import S3Emulator
from tests.contract.sagemaker.sagemaker_container import SageMakerContainer
from tests.contract.servers.ports import HOST
from tests.contract.servers.server import ServerProcess
from tests.needed import program
from tests.project import ROOT
from tests.unit.onnx_models import picky, write_version
from tests.waiting import until
from trident.core.http.admin import PROMETHEUS
from trident.core.observability.metrics.families import render

pytestmark = pytest.mark.slow

DASHBOARD = json.loads((MONITORING / "dashboards" / "trident.json").read_text())
ALERTS = [rule for group in yaml.safe_load((MONITORING / "rules.yml").read_text())["groups"] for rule in group["rules"]]
# Grafana's default values of its variables.
GRAFANA = {"$__rate_interval": "30s", "$namespace": ".*", "$release": ".*", "$model": ".*", "$version": ".*"}
SELECTOR = re.compile(r"\b(?:up|(?:nv|flask|trident)_\w+)(?:\{[^}]*\})?")
LABEL_VALUES = re.compile(r"label_values\((.*), (\w+)\)")
# The load on the servers of this test makes these alerts true.
ALWAYS_TRUE = ["TridentModelLoadFailed", "TridentModelVersionUnavailable", "TridentNotReady"]
TOOL_LIMIT_S = 300


def filled_in(expression: str) -> str:
    for variable, value in GRAFANA.items():
        expression = expression.replace(variable, value)
    assert "$" not in expression
    return expression


PANEL_QUERIES = {
    f"{panel['id']} {panel['title']}, {target['refId']}": filled_in(target["expr"])
    for panel in DASHBOARD["panels"]
    for target in panel.get("targets", [])
}
RULE_SELECTORS = {
    f"{alert['alert']}: {selector[:60]}": selector
    for alert in ALERTS
    for selector in sorted(set(SELECTOR.findall(alert["expr"])))
}


# --- servers that have every metric, and requests of all kinds to them


_BUCKET = "models"
_DIGIT = (ROOT / "deploy" / "digits" / "7.json").read_bytes()
_TOO_LARGE_BYTES = 1 << 40  # a hole in a file, which takes no room
_PAUSE_S = 0.05
_PLAIN = ("--exit-on-error=false", "--metrics-config=histogram_latencies=true")


@contextlib.contextmanager
def monitored_servers(folder: Path) -> Iterator[dict[str, str]]:
    """Servers under load, the addresses of their pages by the names that prometheus.yml has for them.

    `plain` has its models from S3; one of them cannot be loaded, so that it is never ready. `sagemaker-mme` loads,
    unloads, and is asked for a model that does not fit. `vertex` is not a server but the page of one with a GPU.
    """
    with (
        S3Emulator() as emulator,
        cloud_server(folder, "plain.log", _fill(emulator, folder), *_PLAIN, ready=False) as plain,
        multi_model(folder) as container,
        _gpu_page() as gpu_address,
    ):
        until(lambda: _is_ready(plain, "digits") and _is_ready(plain, "picky"), plain.log_text)
        with repeated(lambda: _ask_plain(plain)), repeated(lambda: _ask_container(container, folder)):
            yield {
                "plain": f"{HOST}:{plain.metrics_port}",
                "sagemaker-mme": f"{HOST}:{container.port}",
                "vertex": gpu_address,
            }


def _fill(emulator: S3Emulator, folder: Path) -> str:
    repository = folder / "repository"
    shutil.copytree(ROOT / "deploy" / "models", repository)
    write_version(picky(), repository, "picky")
    (repository / "broken" / "1").mkdir(parents=True)
    (repository / "broken" / "1" / "model.onnx").write_bytes(b"not a model")
    for path in repository.rglob("*"):
        if path.is_file():
            emulator.put(_BUCKET, str(path.relative_to(repository)), path.read_bytes())
    return f"s3://{emulator.address}/{_BUCKET}"


def multi_model(folder: Path) -> SageMakerContainer:
    root = folder / "models"
    shutil.copytree(ROOT / "deploy" / "models" / "digits", root / "small" / "model")
    shutil.copytree(ROOT / "deploy" / "models" / "digits", root / "large" / "model")
    with (root / "large" / "model" / "1" / "model.onnx").open("ab") as weights:
        weights.truncate(_TOO_LARGE_BYTES)
    return SageMakerContainer(
        folder / "container.log", SAGEMAKER_MULTI_MODEL="true", TRIDENT_SAGEMAKER_MODELS_ROOT=str(root)
    )


@contextlib.contextmanager
def _gpu_page() -> Iterator[str]:
    """A page of GPU metrics, which the server's code makes from invented readings."""
    page = render(families_of(replace(MODEL, gpu_uuid="GPU-0")))

    class Page(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.send_response(200)
            self.send_header("Content-Type", PROMETHEUS)
            self.end_headers()
            with contextlib.suppress(ConnectionError):  # a scrape that was given up
                self.wfile.write(page)

        def log_message(self, *_: object) -> None:
            """Log nothing."""

    with ThreadingHTTPServer((HOST, 0), Page) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        try:
            yield f"{HOST}:{server.server_port}"
        finally:
            server.shutdown()
            thread.join()


@contextlib.contextmanager
def repeated(requests: Callable[[], None]) -> Iterator[None]:
    """Call a function in a loop on a thread. Its exception is raised at the end."""
    ended = threading.Event()
    errors: list[BaseException] = []

    def run() -> None:
        try:
            while not ended.wait(_PAUSE_S):
                requests()
        except BaseException as error:
            errors.append(error)

    thread = threading.Thread(target=run)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()
    if errors:
        raise errors[0]


def _is_ready(server: ServerProcess, model: str) -> bool:
    return server.process.poll() is None and status_of(server, "GET", f"/v2/models/{model}/ready") == 200


def status_of(server: ServerProcess, method: str, path: str, body: bytes | None = None) -> int:
    try:
        return server.request(method, path, body)[0]
    except OSError:
        return 0


def _ask_plain(server: ServerProcess) -> None:
    """Send requests that are answered, fail in the model, and are refused."""
    index = {"name": "INDEX", "datatype": "INT64", "shape": [1, 1]}
    good, bad = (json.dumps({"inputs": [{**index, "data": [value]}]}).encode() for value in (1, 99))
    expected = {
        ("POST", "/v2/models/digits/infer", _DIGIT): 200,
        ("POST", "/v2/models/picky/infer", good): 200,
        ("POST", "/v2/models/picky/infer", bad): 500,
        ("POST", "/v2/models/digits/infer", b"{"): 400,
        ("GET", "/v2/health/ready", None): 400,
        ("POST", "/v2/repository/index", None): 200,
    }
    found = {key: status_of(server, *key) for key in expected}
    assert found == expected, server.log_text()[-4000:]


def _ask_container(container: SageMakerContainer, folder: Path) -> None:
    """Load, invoke and unload models; one load is repeated, one finds no room, and one finds no model."""
    root = folder / "models"
    statuses = [
        container.health_status(),
        container.load("small", f"{root}/small/model").status,
        container.load("small", f"{root}/small/model").status,
        container.load("large", f"{root}/large/model").status,
        container.load("none", f"{root}/none/model").status,
        container.ask("POST", "/models/small/invoke", _DIGIT, Content_Type="application/json").status,
        container.ask("DELETE", "/models/small").status,
    ]
    assert statuses == [200, 200, 409, 507, 400, 200, 200], statuses


# --- tests


@pytest.fixture(scope="module")
def prometheus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Prometheus]:
    program("prometheus", "apt install prometheus")
    folder = tmp_path_factory.mktemp("monitoring")
    with monitored_servers(folder) as addresses, Prometheus(folder, shipped_config(addresses)) as running:
        running.wait_for("up == 1", lambda result: len(result) == len(addresses))
        yield running


@pytest.mark.parametrize("query", PANEL_QUERIES.values(), ids=PANEL_QUERIES)
def test_dashboard_query_returns_data(query: str, prometheus: Prometheus) -> None:
    prometheus.wait_for(query, finite)


@pytest.mark.parametrize(
    "variable",
    [each for each in DASHBOARD["templating"]["list"] if each["type"] == "query"],
    ids=lambda each: each["name"],
)
def test_variable_of_the_dashboard_has_values(variable: dict[str, dict[str, str]], prometheus: Prometheus) -> None:
    parts = LABEL_VALUES.fullmatch(filled_in(variable["query"]["query"]))
    assert parts is not None
    series, label = parts.groups()
    assert label == variable["name"]
    prometheus.wait_for(series, lambda result: all(each["metric"].get(label) for each in result) and result)


@pytest.mark.parametrize("query", RULE_SELECTORS.values(), ids=RULE_SELECTORS)
def test_rule_uses_existing_series(query: str, prometheus: Prometheus) -> None:
    prometheus.wait_for(query, finite)


@pytest.mark.parametrize("name", ALWAYS_TRUE)
def test_rule_fires_under_this_load(name: str, prometheus: Prometheus) -> None:
    (expression,) = [alert["expr"] for alert in ALERTS if alert["alert"] == name]
    prometheus.wait_for(expression, finite)


def test_missing_series_and_bad_queries_are_found(prometheus: Prometheus) -> None:
    """Otherwise the tests above would prove nothing."""
    assert not finite(prometheus.query("nv_inference_load_ratio_bucket"))
    with pytest.raises(AssertionError, match="parse error"):
        prometheus.query("sum(rate(nv_inference_count[5m])")


@pytest.mark.parametrize(
    "arguments",
    [
        ("check", "config", "prometheus.yml"),
        ("check", "rules", "--lint-fatal", "rules.yml"),
        ("test", "rules", "rules_test.yml"),
    ],
    ids=" ".join,
)
def test_promtool_accepts_the_files(arguments: tuple[str, ...]) -> None:
    command = [program("promtool", "apt install prometheus"), *arguments]
    finished = subprocess.run(
        command, cwd=MONITORING, capture_output=True, text=True, timeout=TOOL_LIMIT_S, check=False
    )
    assert finished.returncode == 0, finished.stdout + finished.stderr
