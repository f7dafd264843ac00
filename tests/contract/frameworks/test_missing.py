"""A server without frameworks names the package to install for each model: in the log and in the answer."""

from __future__ import annotations

import json
import os
from collections.abc import Iterator

import pytest

from tests.contract.frameworks.framework_models import framework_models
from tests.contract.servers.server import ServerProcess
from tests.genai_folders import write_counter
from tests.hub_folders import write_folder
from tests.unit.core.backends.tensorrt.plans import add_sub as add_sub_plan
from tests.unit.core.backends.tensorrt.plans import write_plan
from tests.unit.onnx_models import add_sub, write_version
from tests.unit.onnx_serving import add_sub_config
from tests.waiting import until
from trident.core.backends.registry import BUILT_IN

pytestmark = pytest.mark.slow

# Python runs it when it starts.
SITE = """
import sys
from importlib.machinery import PathFinder

FRAMEWORKS = {
    "onnxruntime", "onnxruntime_genai", "openvino", "tensorflow", "tensorrt", "torch", "treelite", "tokenizers"
}

class WithoutFrameworks:
    @staticmethod
    def find_spec(name, path=None, target=None):
        return None if name.partition(".")[0] in FRAMEWORKS else PathFinder.find_spec(name, path, target)

sys.meta_path[sys.meta_path.index(PathFinder)] = WithoutFrameworks
"""
# Models of PyTorch whose files are not read without PyTorch.
SCRIPT = """
platform: "pytorch_libtorch"
input { name: "INPUT__0" data_type: TYPE_FP32 dims: 4 }
output { name: "OUTPUT__0" data_type: TYPE_FP32 dims: 2 }
"""
MODULE = """
backend: "pytorch" runtime: "model.py"
input { name: "x" data_type: TYPE_FP32 dims: 4 }
output { name: "y" data_type: TYPE_FP32 dims: 2 }
"""
PYTORCH = {"script": ("model.pt", SCRIPT), "module": ("model.py", MODULE)}
EXTRAS = {
    "onnx": "cpu",
    "trees": "trees",
    "vino": "openvino",
    "graph": "tensorflow",
    "script": "torch",
    "module": "torch",
    "plan": "tensorrt",
    "hub": "text",
    "writer": "genai",
}


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    folder = tmp_path_factory.mktemp("bare")
    repository = folder / "models"
    write_version(add_sub(), repository, "onnx", add_sub_config())
    models = framework_models()
    for name in EXTRAS.keys() & models.keys():
        models[name].write_to(repository)
    for name, (file, config) in PYTORCH.items():
        if name not in models:
            (repository / name / "1").mkdir(parents=True)
            (repository / name / "config.pbtxt").write_text(config)
            (repository / name / "1" / file).touch()
    write_folder(repository / "hub")
    write_counter(repository / "writer")
    write_plan(repository / "plan" / "1", add_sub_plan())
    (folder / "sitecustomize.py").write_text(SITE)
    environment = {**os.environ, "PYTHONPATH": str(folder)}
    options = ("--shutdown-grace-secs=0", "--exit-on-error=false")
    with ServerProcess(repository, folder / "log", *options, ready=False, environment=environment) as running:
        until(lambda: all(f"failed to load '{name}'" in running.log_text() for name in EXTRAS), running.log_text)
        yield running


def test_every_framework_is_tested() -> None:
    assert {backend.extra for backend in BUILT_IN.values()} == set(EXTRAS.values())


@pytest.mark.parametrize(("name", "extra"), EXTRAS.items())
def test_missing_framework_is_named_with_its_command(server: ServerProcess, name: str, extra: str) -> None:
    command = f"pip install '.[{extra}]'"
    status, _, body = server.request("POST", f"/v2/models/{name}/infer", b'{"inputs": []}')
    answer = json.loads(body)
    assert status == 503
    assert command in answer["hint"]
    (entry,) = [entry for entry in server.json("POST", "/v2/repository/index") if entry["name"] == name]
    assert entry["state"] == "UNAVAILABLE"
    assert entry["reason"]
    until(lambda: command in server.log_text())
