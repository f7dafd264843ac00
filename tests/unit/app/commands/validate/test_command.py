from __future__ import annotations

import json
import logging
import re
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.project import ROOT
from tests.unit import onnx_models
from tests.unit.app.commands.validate.repositories import bad_names, repository
from tests.unit.core.engine.test_in_process import serving
from trident.app.commands.validate import validate
from trident.core.lifecycle.state import ModelState
from trident.core.observability.log import close_log

GOLDEN_DOCUMENT = ROOT / "docs" / "golden-requests.md"
GOLDEN_EXAMPLE = re.compile(r"^```json\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture(autouse=True)
def _log_as_before() -> Iterator[None]:
    loggers = [logging.getLogger(), logging.getLogger("trident")]
    levels = [logger.level for logger in loggers]
    yield
    close_log()
    for logger, level in zip(loggers, levels, strict=True):
        logger.setLevel(level)


def test_the_exit_status_is_1_if_there_is_a_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    good, bad = repository(tmp_path / "one", "good"), repository(tmp_path / "two", "bad")
    assert validate([good], check=bad_names) == 0
    assert capsys.readouterr().out == "1 model, no problems\n"
    assert validate([good, bad], check=bad_names) == 1
    assert capsys.readouterr().out.endswith("2 problems, in 1 of 2 models\n")
    assert validate([good, bad, "--format=json"], check=bad_names) == 1
    assert [each["path"] for each in json.loads(capsys.readouterr().out)["problems"]] == ["name", "input[0]"]


def test_settings_without_effect_do_not_change_the_exit_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, text in (("hosted", 'instance_group { host_policy: "numa0" }'), ("broken", "{")):
        (tmp_path / name).mkdir()
        (tmp_path / name / "config.pbtxt").write_text(text)
    assert validate([str(tmp_path)], check=lambda directory: []) == 0
    assert capsys.readouterr().out == (
        "Warnings. The models load all the same; where no other effect is named, a setting has none.\n\n"
        f"hosted ({tmp_path})\n"
        "  instance_group[0].host_policy  There are no host policies: threads are not bound to cores or nodes.\n\n"
        "2 models, no problems; 1 warning\n"
    )


def test_the_shipped_models_have_no_problems(shipped_models: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert validate([str(shipped_models)]) == 0
    assert capsys.readouterr().out == f"{len(list(shipped_models.iterdir()))} models, no problems\n"


@pytest.fixture
def simple(shipped_models: Path, tmp_path: Path) -> Path:
    """A repository with a copy of the model `simple`, which has the golden request of the documentation."""
    copy = tmp_path / "models" / "simple"
    shutil.copytree(shipped_models / "simple", copy)
    (copy / "golden").mkdir(exist_ok=True)
    (copy / "golden" / "sixteen.json").write_text(GOLDEN_EXAMPLE.findall(GOLDEN_DOCUMENT.read_text())[0])
    return copy


def serve_all_versions(model: Path) -> None:
    path = model / "config.pbtxt"
    path.write_text(path.read_text() + "version_policy { all { } }\n")


def test_a_golden_request_that_differs_is_reported_as_documented(
    simple: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = simple / "golden" / "sixteen.json"
    path.write_text(path.read_text().replace("15,16]", "15,17]"))
    assert validate([str(simple.parent)]) == 1
    report = capsys.readouterr().out.replace(str(simple.parent), "/models")
    assert f"```text\n{report}```" in GOLDEN_DOCUMENT.read_text()


def test_each_invalid_golden_request_is_reported_once(simple: Path, capsys: pytest.CaptureFixture[str]) -> None:
    serve_all_versions(simple)
    (simple / "2").mkdir()
    (simple / "2" / "model.onnx").write_bytes(b"this is no graph")
    (simple / "golden" / "a.json").write_text('{"request": {}, "respond": {}}')
    (simple / "golden" / "b.json").write_text("{")
    assert validate([str(simple.parent), "--format=json"]) == 1
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert [each["path"] for each in problems] == [str(simple / "2"), "golden/a.json", "golden/b.json"]
    assert problems[1]["hint"] == "did you mean 'response'?"


def test_golden_requests_are_not_run_on_a_broken_graph(simple: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (simple / "1" / "model.onnx").write_bytes(b"this is no graph")
    assert validate([str(simple.parent), "--format=json"]) == 1
    (problem,) = json.loads(capsys.readouterr().out)["problems"]
    assert problem["path"] == str(simple / "1")


SIDES = "".join(
    f'{side} {{ name: "{side.upper()}{n}" data_type: TYPE_INT32 dims: [ 16 ] }} '
    for side in ("input", "output")
    for n in range(2)
)
ACCELERATED = 'optimization {{ execution_accelerators {{ cpu_execution_accelerator [ {{ name: "{}" }} ] }} }}'
WARMUP = (
    'model_warmup [ {{ name: "w" batch_size: {} '
    'inputs {{ key: "{}" value {{ data_type: {} dims: [ {} ] zero_data: true }} }} '
    'inputs {{ key: "INPUT1" value {{ data_type: TYPE_INT32 dims: [ 16 ] zero_data: true }} }} }} ]'
)
# Models that the server cannot load, each for one reason.
UNLOADABLE = {
    "accelerator_missing": ACCELERATED.format("openvino"),
    "accelerator_unknown": ACCELERATED.format("abacus"),
    "warmup_batch": WARMUP.format(9, "INPUT0", "TYPE_INT32", 16),
    "warmup_dims": WARMUP.format(1, "INPUT0", "TYPE_INT32", 3),
    "warmup_datatype": WARMUP.format(1, "INPUT0", "TYPE_FP32", 16),
    "warmup_input": WARMUP.format(1, "X", "TYPE_INT32", 16),
    "warmup_inputs": 'model_warmup [ { name: "w" batch_size: 1 } ]',
    "backend": 'backend: "none"',
    "runtime": 'runtime: "libtriton_none.so"',
    "runtime_elsewhere": 'runtime: "../libtriton_onnxruntime.so"',
    "datatype": SIDES.replace("data_type: TYPE_INT32", "", 1),
    "one_side": SIDES.split("output")[0].replace('name: "INPUT1"', ""),
}


def test_the_messages_are_those_of_the_server(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name, config in UNLOADABLE.items():
        onnx_models.write_version(onnx_models.add_sub(), tmp_path, name, f"max_batch_size: 8 {config}")
    with serving(tmp_path) as engine:
        reasons = {entry.name: entry.reason.partition(": ")[2] for entry in engine.repository_index(False)}
    assert reasons.keys() == UNLOADABLE.keys()
    capsys.readouterr()
    assert validate([str(tmp_path), "--format=json"]) == 1
    problems = json.loads(capsys.readouterr().out)["problems"]
    assert {each["model"]: each["message"] for each in problems} == reasons
    assert len(problems) == len(reasons)


def test_versions_with_different_signatures_have_no_problem(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    onnx_models.write_version(onnx_models.identity(), tmp_path, "m", "version_policy { all {} }")
    onnx_models.write(onnx_models.add_sub(), tmp_path / "m" / "2" / "model.onnx")
    with serving(tmp_path) as engine:
        assert [entry.state for entry in engine.repository_index(False)] == [ModelState.READY, ModelState.READY]
    capsys.readouterr()
    assert validate([str(tmp_path)]) == 0, capsys.readouterr().out


def test_ensembles_are_drawn_beside_the_report(simple: Path, capsys: pytest.CaptureFixture[str]) -> None:
    repository = simple.parent
    for name, model in (("good", "simple"), ("bad", "none")):
        (repository / name / "1").mkdir(parents=True)
        tensors = "data_type: TYPE_INT32 dims: [ 16 ]"
        maps = " ".join(f'input_map {{ key: "INPUT{n}" value: "i" }}' for n in range(2))
        (repository / name / "config.pbtxt").write_text(
            f'platform: "ensemble" max_batch_size: 8 input {{ name: "i" {tensors} }} output {{ name: "o" {tensors} }} '
            f'ensemble_scheduling {{ step {{ model_name: "{model}" model_version: -1 {maps} '
            'output_map { key: "OUTPUT0" value: "o" } } }'
        )
    assert validate([str(repository), "--graph=text"]) == 1
    printed = capsys.readouterr()
    assert printed.out == "good: i -> o\n  1  simple  i -> o\n"
    assert "ensemble bad contains models that are not available or ambiguous: none" in printed.err
