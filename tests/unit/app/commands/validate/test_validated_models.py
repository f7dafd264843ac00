"""Models that `trident validate` loads and runs: golden requests, and models in Python."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.hub_folders import write_folder
from trident.app.commands.validate import golden_problems, validate
from trident.core.backends.backend import BackendModel, LoadContext
from trident.core.backends.python.backend import PythonBackend
from trident.core.backends.registry import BackendRegistry
from trident.core.config.golden import GoldenRequest
from trident.core.config.parse import parse_model_config
from trident.core.config.problem import ModelSignature, Problem
from trident.core.config.resolve import resolve_model_spec
from trident.core.config.schema import ModelConfig, ModelInstanceGroup
from trident.core.errors import BackendFailed, OutOfMemory


class Unloadable:
    """A backend that can inspect a model but not load it."""

    supports_gpus = False

    def inspect(self, path: Path, config: ModelConfig) -> ModelSignature:
        return ModelSignature((), ())

    def check(self, config: ModelConfig) -> None: ...

    def load(self, context: LoadContext) -> BackendModel:
        raise OutOfMemory("no memory left", hint="buy some")


def test_a_version_that_fails_to_load_is_a_problem(tmp_path: Path) -> None:
    config = ModelConfig(
        name="m", backend="fake", instance_group=[ModelInstanceGroup(name="m", kind="KIND_CPU", count=1)]
    )
    spec = resolve_model_spec(config, 1, {})
    golden = [GoldenRequest("a.json", "", (), (), ())]
    backends = BackendRegistry({}, makers={"fake": lambda settings: Unloadable()})
    found = golden_problems(backends, tmp_path / "1", config, spec, golden)
    assert found == [Problem(str(tmp_path / "1"), "no memory left", "buy some")]


TENSORS = 'input { name: "IN" data_type: TYPE_FP32 dims: 1 } output { name: "OUT" data_type: TYPE_FP32 dims: 1 }'
CONFIG = f'backend: "python" {TENSORS} instance_group {{ kind: KIND_CPU }}'
CLASS = """
class TritonPythonModel:
    def initialize(self, args):
        raise ValueError("no weights")
    def execute(self, requests):
        return []
"""


def problem(
    source: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], *options: str, config: str = CONFIG
) -> str:
    """The message of the one problem of a model; "" if it has none."""
    version = tmp_path / "models" / "m" / "1"
    version.mkdir(parents=True, exist_ok=True)
    (version / "model.py").write_text(source)
    (version.parent / "config.pbtxt").write_text(config)
    status = validate([str(tmp_path / "models"), "--format=json", *options])
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert status == bool(problems)
    assert len(problems) <= 1
    return str(problems[0]["message"]) if problems else ""


def test_a_source_that_cannot_be_read_is_named_by_line_and_column(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found = problem("x = 1\n\n  \ny = = 3\n" + CLASS, tmp_path, capsys)
    assert found.startswith("SyntaxError: invalid syntax (model.py, line 4) At: ")
    assert found.endswith("m/1/model.py(4): column 5 of 'y = = 3'")


def test_an_import_fails_in_a_process_of_its_own(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = problem("import torchh\n" + CLASS, tmp_path, capsys)
    assert found.startswith("ModuleNotFoundError: No module named 'torchh' At: ")
    assert found.endswith("m/1/model.py(1): <module>")
    found = problem("import os\nos._exit(3)\n" + CLASS, tmp_path, capsys)
    assert found == "the process of the model ended with status 3"


def test_a_model_is_initialized_only_if_that_is_wanted(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert problem(CLASS, tmp_path, capsys) == ""
    assert problem(CLASS, tmp_path, capsys, "--run").startswith("ValueError: no weights At: ")


def test_a_model_without_inputs_and_outputs(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    found = problem(CLASS, tmp_path, capsys, config='backend: "python"')
    assert found == "the model has no inputs and no outputs, so that a request with an input is refused"
    completes = (
        CLASS
        + """
    @staticmethod
    def auto_complete_config(config):
        config.add_input({"name": "IN", "data_type": "TYPE_FP32", "dims": [1]})
        return config
"""
    )
    assert problem(completes, tmp_path, capsys, config='backend: "python"') == ""


def test_an_import_that_does_not_end(tmp_path: Path) -> None:
    (tmp_path / "1").mkdir()
    (tmp_path / "1" / "model.py").write_text("while True: pass")
    config = parse_model_config(CONFIG, "config.pbtxt")
    config.name, config.default_model_filename = "m", "model.py"
    backend = PythonBackend(trial_limit_s=1)
    with pytest.raises(BackendFailed, match="the model did not start within 1 s"):
        backend.try_model(tmp_path / "1", config, resolve_model_spec(config, 1, {}), initialize=False)


def test_the_task_of_a_text_model_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    write_folder(tmp_path / "ranker", "BertForSequenceClassification", labels=["LABEL_0"])
    assert validate([str(tmp_path)]) == 0
    assert capsys.readouterr().out == "ranker: text-ranking\n\n1 model, no problems\n"
