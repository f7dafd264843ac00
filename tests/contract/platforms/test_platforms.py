"""Azure ML, and a platform of another package: the real server as each starts its container, with variables only."""

from __future__ import annotations

import io
import json
import re
import subprocess
import urllib.request
from pathlib import Path

import openapi_spec_validator
import pytest
import yaml

from tests.contract.emulators.emulator_process import EmulatorThread
from tests.contract.platforms.container import platform_environment
from tests.contract.servers.ports import HOST
from tests.contract.servers.server import ServerProcess, environment_without
from tests.contract.servers.session import TRIDENT
from tests.contract.servers.simple_model import good_body, is_good_answer
from tests.project import ROOT
from trident.adapters.azureml.platform import LIVE_ROUTE, READY_ROUTE, SCORE_ROUTE, AzureMLOptions, repository
from trident.tools.emulators.azureml import Emulator
from trident.tools.emulators.command import read_azureml

PLATFORMS = {"TRIDENT_PLATFORMS": "tests.contract.platforms.sample:SAMPLE", "PYTHONPATH": str(ROOT)}
MODELS = ROOT / "deploy" / "models"


class PlatformContainer(ServerProcess):
    """`trident serve` without an argument, in the environment that a platform sets."""

    def __init__(self, log: Path, live: str, port_variable: str, **variables: str) -> None:
        super().__init__(MODELS, log)
        self._live = live
        self.environment = {
            **environment_without("AIP_", "AZUREML_", "SAGEMAKER_", "TRIDENT_"),
            **variables,
            port_variable: str(self.http_port),
            "TRIDENT_HTTP_ADDRESS": HOST,
            "TRIDENT_ALLOW_GRPC": "false",
            "TRIDENT_METRICS_PORT": str(self.metrics_port),
        }

    @property
    def command(self) -> list[str]:
        return [TRIDENT, "serve"]

    def _is_ready(self) -> bool:
        try:
            return self.request("GET", self._live)[0] in (200, 404)
        except ConnectionError:
            return False

    def post(self, path: str, body: bytes, content_type: str = "application/json", accept: str = "*/*") -> bytes:
        headers = {"Content-Type": content_type, "Accept": accept}
        status, _, answer = self.request("POST", path, body, headers)
        assert status == 200, answer
        return answer


@pytest.mark.slow
def test_azure_ml_scores_a_registered_folder_in_every_format(tmp_path: Path) -> None:
    mounted = tmp_path / "azureml-models" / "simple" / "1"
    mounted.mkdir(parents=True)
    (mounted / "simple").symlink_to(MODELS / "simple")
    with PlatformContainer(
        tmp_path / "log", "/ready", "TRIDENT_AZUREML_PORT", AZUREML_MODEL_DIR=str(mounted)
    ) as container:
        assert [container.request("GET", path)[0] for path in ("/", "/ready", "/v2/health/ready")] == [200, 200, 404]
        assert is_good_answer(container.post("/score", good_body()))
        row, sums = [*range(16), *[3] * 16], [each + 3 for each in range(16)]
        differences = [each - 3 for each in range(16)]
        predictions = json.loads(container.post("/score", json.dumps({"instances": [row]}).encode()))["predictions"]
        assert predictions == [{"OUTPUT0": sums, "OUTPUT1": differences}]
        assert json.loads(container.post("/score", json.dumps({"input_data": [row]}).encode())) == predictions
        lines = container.post("/score", ",".join(map(str, row)).encode(), "text/csv", "text/csv")
        assert lines.decode().strip() == ",".join(map(str, [*sums, *differences]))
        assert container.request("POST", "/score", b"x", {"Content-Type": "image/png"})[0] == 415
    log = container.log_text()
    assert f"Started Azure ML HTTPService at {HOST}:{container.http_port}" in log
    assert "AZUREML_MODEL_DIR" in log


@pytest.mark.slow
def test_a_platform_of_another_package_serves(tmp_path: Path) -> None:
    variables = {**PLATFORMS, "SAMPLE_MODELS": str(MODELS / "simple")}
    with PlatformContainer(tmp_path / "log", "/", "TRIDENT_SAMPLE_PORT", **variables) as container:
        assert is_good_answer(container.post("/predict", good_body()))
    assert "Started Sample HTTPService" in container.log_text()


def trident(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**environment_without("TRIDENT_"), "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run([TRIDENT, *arguments], env=environment, capture_output=True, text=True, check=False)


def test_the_help_has_the_options_of_a_platform_of_another_package() -> None:
    shown = trident("serve", "--help=sample-cloud", **PLATFORMS)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "--sample-port=<integer>" in shown.stdout
    assert "TRIDENT_SAMPLE_PORT; default 5099" in shown.stdout
    assert "sample if SAMPLE_MODELS is set" in trident("serve", "--help=platform", **PLATFORMS).stdout


def test_a_platform_of_another_package_has_an_openapi_document() -> None:
    shown = trident("openapi", "sample", **PLATFORMS)
    assert (shown.returncode, shown.stderr) == (0, "")
    document = json.loads(shown.stdout)
    openapi_spec_validator.validate(document)
    assert list(document["paths"]) == ["/predict"]


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("no_such_module:PLATFORM", "there is no platform at 'no_such_module:PLATFORM'"),
        ("tests.contract.platforms.sample", "there is no platform at"),
        ("tests.contract.platforms.sample:VARIABLE", "is not a Platform, but str"),
    ],
)
def test_unknown_platform_aborts_startup(name: str, error: str) -> None:
    shown = trident("serve", "--model-repository=/m", TRIDENT_PLATFORMS=name)
    assert shown.returncode == 1
    assert error in shown.stderr
    assert "Traceback" not in shown.stderr


# --- the emulator of Azure ML


SIMPLE = ROOT / "deploy" / "models" / "simple"


@pytest.mark.slow
def test_calls_reach_the_container(tmp_path: Path) -> None:
    variables = {"TMPDIR": str(tmp_path), "HOME": str(tmp_path)}
    options = read_azureml(["azureml", str(SIMPLE)], platform_environment(variables))
    said, breaches = io.StringIO(), io.StringIO()
    with EmulatorThread(Emulator(options, said, breaches)) as running:
        request = urllib.request.Request(f"{running.url}/score", good_body(), {"Content-Type": "application/json"})
        with urllib.request.urlopen(request) as answer:
            assert is_good_answer(answer.read())
            assert answer.headers["azureml-model-deployment"] == "blue"
        assert running.end() == 0, breaches.getvalue()
    assert "1 call\n" in said.getvalue()


@pytest.mark.parametrize(
    ("files", "found"),
    [
        (("zoo/a/1/model.onnx", "zoo/b/1/model.onnx"), "zoo"),
        (("digits/config.pbtxt", "digits/1/model.onnx"), ""),
        (("digits/1/model.onnx",), ""),
        (("a/1/model.onnx", "b/1/model.onnx"), ""),
        (("model.onnx",), ""),
        ((), ""),
    ],
)
def test_repository_is_the_mounted_folder_or_its_registered_subfolder(
    files: tuple[str, ...], found: str, tmp_path: Path
) -> None:
    for file in files:
        (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / file).touch()
    assert repository(str(tmp_path)) == str(tmp_path / found)


def test_the_deployment_names_the_routes_of_the_container() -> None:
    deployment = yaml.safe_load((ROOT / "deploy" / "azureml" / "deployment.yml").read_text())
    port = AzureMLOptions().azureml_port
    assert deployment["environment"]["inference_config"] == {
        f"{name}_route": {"port": port, "path": path}
        for name, path in {"liveness": LIVE_ROUTE, "readiness": READY_ROUTE, "scoring": SCORE_ROUTE}.items()
    }
    page = (ROOT / "docs" / "azureml.md").read_text()
    assert all(f"`{path}`" in page for path in (LIVE_ROUTE, READY_ROUTE, SCORE_ROUTE))
    assert {f"--{name.replace('_', '-')}" for name in vars(AzureMLOptions) if "azureml" in name} <= set(
        re.findall(r"--[a-z-]+", page)
    )
