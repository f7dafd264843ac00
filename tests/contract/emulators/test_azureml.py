"""`trident emulate azureml`: calls of the scoring address, through the emulator to the real server."""

from __future__ import annotations

import io
import re
import urllib.request
from pathlib import Path

import pytest
import yaml

from tests.contract.emulators.emulator_process import EmulatorThread
from tests.contract.servers.simple_model import good_body, is_good_answer
from tests.contract.vertex.vertex_container import environment
from tests.project import ROOT
from trident.adapters.azureml.platform import LIVE_ROUTE, READY_ROUTE, SCORE_ROUTE, AzureMLOptions, repository
from trident.app.commands.emulate import read_azureml
from trident.app.emulators.azureml import Emulator

SIMPLE = ROOT / "deploy" / "models" / "simple"


@pytest.mark.slow
def test_calls_reach_the_container(tmp_path: Path) -> None:
    variables = {"TMPDIR": str(tmp_path), "HOME": str(tmp_path)}
    options = read_azureml(["azureml", str(SIMPLE)], environment(variables))
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
def test_the_repository_is_the_mounted_folder_or_the_registered_one_in_it(
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
