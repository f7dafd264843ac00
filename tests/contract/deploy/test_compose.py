"""deploy/compose: the services of each profile answer, and Prometheus finds them."""

from __future__ import annotations

import contextlib
import http.client
import json
from pathlib import Path
from typing import Any

import pytest
import yaml

from tests.contract.deploy.compose_stack import (
    PROFILES,
    SERVER_IMAGE,
    ComposeStack,
    mounts_of,
    ports_of,
    resolved,
    started_by_default,
)
from tests.contract.deploy.prometheus import Prometheus, finite, shipped_config
from tests.contract.servers.ports import HOST
from tests.project import ROOT
from tests.waiting import until

pytestmark = pytest.mark.slow

LIMIT_S = 60.0
_DIGIT = (ROOT / "deploy" / "digits" / "7.json").read_bytes()
_JSON = {"Content-Type": "application/json"}
_VERTEX = "/v1/endpoints/1234567890/deployedModels/9876543210"
_METRICS_PORTS = {"plain": 8002}


def ask(address: str, method: str, path: str, body: bytes | None = None) -> tuple[int, bytes]:
    """Status and body; status 0 if the connection is refused."""
    connection = http.client.HTTPConnection(address, timeout=LIMIT_S)
    with contextlib.closing(connection), contextlib.suppress(ConnectionError):
        connection.request(method, path, body, _JSON if body else {})
        response = connection.getresponse()
        return response.status, response.read()
    return 0, b""


def wait_until_ready(stack: ComposeStack, service: str, port: int, path: str) -> str:
    """Wait until a probe of `path` is answered with 200. Returns the address."""
    address = stack.address(service, port)

    def is_ready() -> bool:
        assert stack.is_running(service), stack.log_text(service)
        return ask(address, "GET", path)[0] == 200

    until(is_ready, lambda: stack.log_text(service))
    return address


def is_seven(answer: tuple[int, bytes]) -> bool:
    status, body = answer
    assert status == 200, body
    (output,) = json.loads(body)["outputs"]
    return str(output["data"][0]).endswith(":7:seven")


@pytest.mark.parametrize("scheme", ["s3", "gs"])
def test_plain_profile_serves_from_storage(scheme: str, tmp_path: Path) -> None:
    variables = {} if scheme == "s3" else {"MODEL_REPOSITORY": "gs://models/production"}
    with ComposeStack(tmp_path, "plain", **variables) as stack:
        address = wait_until_ready(stack, "plain", 8000, "/v2/health/ready")
        assert is_seven(ask(address, "POST", "/v2/models/digits/infer", _DIGIT))
        index = json.loads(ask(address, "POST", "/v2/repository/index")[1])
        assert {entry["name"]: entry["state"] for entry in index} == {"digits": "READY", "simple": "READY"}
        # The tables of the start are logged a moment after the server is ready.
        until(lambda: f"{scheme}://models/production" in stack.log_text("plain"), lambda: stack.log_text("plain"))
        if scheme == "s3":  # the storage makes no difference to Prometheus
            assert_prometheus_finds(stack, "plain", tmp_path)


def test_without_a_profile_the_models_are_served_from_their_folder(services: dict[str, Any], tmp_path: Path) -> None:
    assert started_by_default(services) == {"local", "prometheus", "grafana"}
    with ComposeStack(tmp_path, "local") as stack:
        address = wait_until_ready(stack, "local", 8000, "/v2/health/ready")
        assert is_seven(ask(address, "POST", "/v2/models/digits/infer", _DIGIT))


@pytest.mark.parametrize(
    ("profile", "probe", "route"), [("sagemaker", "/ping", "/invocations"), ("vertex", _VERTEX, f"{_VERTEX}:predict")]
)
def test_profile_of_a_platform_serves(profile: str, probe: str, route: str, tmp_path: Path) -> None:
    with ComposeStack(tmp_path, profile) as stack:
        address = wait_until_ready(stack, profile, 8080, probe)
        assert is_seven(ask(address, "POST", route, _DIGIT))
        assert_prometheus_finds(stack, profile, tmp_path)


def test_sagemaker_multi_model_profile_serves(tmp_path: Path) -> None:
    with ComposeStack(tmp_path, "sagemaker-mme") as stack:
        stack.wait_for_end("load-models")
        address = wait_until_ready(stack, "sagemaker-mme", 8080, "/ping")
        models = json.loads(ask(address, "GET", "/models")[1])["models"]
        assert {model["modelName"] for model in models} == {"digits", "simple"}
        assert is_seven(ask(address, "POST", "/models/digits/invoke", _DIGIT))
        assert_prometheus_finds(stack, "sagemaker-mme", tmp_path)


def assert_prometheus_finds(stack: ComposeStack, service: str, folder: Path) -> None:
    """Prometheus must find the service with the configuration and rules of the compose file."""
    address = stack.address(service, _METRICS_PORTS.get(service, 8080))
    with Prometheus(folder, shipped_config({service: address})) as prometheus:
        answered = (
            f'sum by (release, namespace) (nv_inference_request_success{{model=~"digits|{service}.*|model"}}) > 0'
        )
        (series,) = prometheus.wait_for(answered, finite)
        assert series["metric"] == {"release": service, "namespace": "compose"}


@pytest.fixture(scope="module")
def services() -> dict[str, Any]:
    return resolved()


def test_every_profile_has_a_server(services: dict[str, Any]) -> None:
    servers = {name: service["profiles"] for name, service in services.items() if service["image"] == SERVER_IMAGE}
    assert servers == {profile: [profile] for profile in PROFILES}
    others = {name for name, service in services.items() if "profiles" not in service}
    assert others == {"prometheus", "grafana"}
    assert {name for name, service in services.items() if "build" not in service} == others


def test_published_ports_are_on_loopback_and_differ(services: dict[str, Any]) -> None:
    assert all(ports_of(services[name]) for name in [*PROFILES, "prometheus", "grafana"])
    assert ports_of(services["local"]) == ports_of(services["plain"])
    ports = [port for name, service in services.items() if name != "local" for port in ports_of(service)]
    assert {port.address for port in ports} == {HOST}
    assert len({port.outside for port in ports}) == len(ports)


def test_mounted_files_exist_and_are_read_only(services: dict[str, Any]) -> None:
    mounts = [mount for service in services.values() for mount in mounts_of(service)]
    assert mounts
    assert [mount for mount in mounts if not mount.source.exists() or not mount.read_only] == []


def test_prometheus_reads_its_mounted_files(services: dict[str, Any]) -> None:
    service = services["prometheus"]
    targets = {mount.target for mount in mounts_of(service)}
    (config,) = [word.removeprefix("--config.file=") for word in service["command"] if "--config.file" in word]
    document = yaml.safe_load((ROOT / "deploy" / "monitoring" / Path(config).name).read_text())
    assert targets == {config, *(str(Path(config).parent / name) for name in document["rule_files"])}
    found = {name for job in document["scrape_configs"] for each in job["dns_sd_configs"] for name in each["names"]}
    assert found == set(PROFILES)


def test_grafana_has_its_data_source_and_dashboard(services: dict[str, Any]) -> None:
    service = services["grafana"]
    mounted = {mount.target: mount.source for mount in mounts_of(service)}
    provisioning = Path("/etc/grafana/provisioning")
    (provider,) = _provisioned(mounted[str(provisioning / "dashboards")])["providers"]
    home = Path(service["environment"]["GF_DASHBOARDS_DEFAULT_HOME_DASHBOARD_PATH"])
    assert str(home.parent) == provider["options"]["path"]
    assert json.loads((mounted[str(home.parent)] / home.name).read_text())["uid"] == "trident"
    (source,) = _provisioned(mounted[str(provisioning / "datasources")])["datasources"]
    assert source["type"] == "prometheus"
    listening = [word for word in services["prometheus"]["command"] if "--web.listen-address" in word]
    assert source["url"] == f"http://prometheus:{listening[0].rpartition(':')[2]}"


def _provisioned(folder: Path) -> dict[str, Any]:
    (file,) = folder.iterdir()
    document: dict[str, Any] = yaml.safe_load(file.read_text())
    return document
