"""A platform of another package: the real server as Azure ML starts its container, with environment variables only."""

from __future__ import annotations

import subprocess
from pathlib import Path

import pytest

from tests.contract.platforms.azureml import MODEL_DIR
from tests.contract.servers.ports import HOST
from tests.contract.servers.server import ServerProcess, environment_without
from tests.contract.servers.session import TRIDENT
from tests.contract.servers.simple_model import good_body, is_good_answer
from tests.project import ROOT

PLATFORMS = {"TRIDENT_PLATFORMS": "tests.contract.platforms.azureml:AZUREML", "PYTHONPATH": str(ROOT)}
SCORE_PORT = "TRIDENT_AZUREML_PORT"


class AzureMLContainer(ServerProcess):
    """`trident serve` without an argument, where the platform has mounted `models`."""

    def __init__(self, models: Path, log: Path) -> None:
        super().__init__(models, log)
        self.environment = {
            **environment_without("AIP_", "SAGEMAKER_", "TRIDENT_"),
            **PLATFORMS,
            MODEL_DIR: str(models),
            SCORE_PORT: str(self.http_port),
            "TRIDENT_HTTP_ADDRESS": HOST,
            "TRIDENT_METRICS_PORT": str(self.metrics_port),
        }

    @property
    def command(self) -> list[str]:
        return [TRIDENT, "serve"]

    def _is_ready(self) -> bool:
        return self.status("/ready") == 200

    def status(self, path: str) -> int:
        try:
            return self.request("GET", path)[0]
        except ConnectionError:
            return 0


def test_a_shipped_model_answers_on_the_platforms_routes(tmp_path: Path) -> None:
    with AzureMLContainer(ROOT / "deploy" / "models" / "simple", tmp_path / "log") as container:
        assert (container.status("/"), container.status("/ready")) == (200, 200)
        status, _, answer = container.request("POST", "/score", good_body())
        assert status == 200
        assert is_good_answer(answer)
        assert container.status("/v2/health/ready") == 404
    log = container.log_text()
    assert f"Started Azure ML HTTPService at {HOST}:{container.http_port}" in log
    assert MODEL_DIR in log


def trident(*arguments: str, **variables: str) -> subprocess.CompletedProcess[str]:
    environment = {**environment_without("TRIDENT_"), "PYTHONPATH": str(ROOT), **variables}
    return subprocess.run([TRIDENT, *arguments], env=environment, capture_output=True, text=True, check=False)


def test_the_help_has_the_options_of_a_platform_of_another_package() -> None:
    shown = trident("serve", "--help=azure-ml", **PLATFORMS)
    assert (shown.returncode, shown.stderr) == (0, "")
    assert "--azureml-port=<integer>" in shown.stdout
    assert "TRIDENT_AZUREML_PORT; default 5001" in shown.stdout
    assert "azureml if AZUREML_MODEL_DIR is set" in trident("serve", "--help=platform", **PLATFORMS).stdout


@pytest.mark.parametrize(
    ("name", "error"),
    [
        ("no_such_module:PLATFORM", "there is no platform at 'no_such_module:PLATFORM'"),
        ("tests.contract.platforms.azureml", "there is no platform at"),
        ("tests.contract.platforms.azureml:MODEL_DIR", "is not a Platform, but str"),
        ("trident.adapters.platforms:BUILT_IN", "is not a Platform, but tuple"),
    ],
)
@pytest.mark.parametrize("arguments", [("serve", "--model-repository=/m"), ("serve", "--help"), ()])
def test_a_name_that_leads_to_no_platform_aborts_startup(name: str, error: str, arguments: tuple[str, ...]) -> None:
    shown = trident(*arguments, TRIDENT_PLATFORMS=name)
    assert shown.returncode == 1
    assert error in shown.stderr
    assert "Traceback" not in shown.stderr
