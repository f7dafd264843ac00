"""`trident validate`: options, the examination of models and of what they run, and the report."""

from __future__ import annotations

import json
import re
import shutil
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from xml.etree import ElementTree

import pytest

from tests.hub_folders import write_folder
from tests.project import ROOT
from tests.unit import onnx_models
from tests.unit.core.repository.memory_store import MemoryOpener, MemoryStore
from tests.unit.onnx_serving import running_engine
from trident.adapters.common.options import BadOption
from trident.core.backends.python.backend import PythonBackend
from trident.core.config.ensemble import EnsembleStep
from trident.core.config.problem import Problem
from trident.core.config.resolve import resolve_model_spec
from trident.core.config.schema import parse_model_config
from trident.core.errors import BackendFailed, RepositoryUnavailable
from trident.core.lifecycle.state import ModelState
from trident.core.repository.repository import ModelDirectory
from trident.tools.validate import (
    CloudRepository,
    Finding,
    Report,
    RepositoryCheck,
    dot_drawing,
    examine,
    json_report,
    read_validate_options,
    svg_drawing,
    text_drawing,
    text_report,
    validate,
)

SVG = "{http://www.w3.org/2000/svg}"
Problems = Callable[..., list[dict[str, str]]]


@pytest.fixture
def problems(capsys: pytest.CaptureFixture[str]) -> Problems:
    """Validates a repository, and gives the problems that are reported."""

    def run(repository: Path, *options: str) -> list[dict[str, str]]:
        capsys.readouterr()
        status = validate([str(repository), "--format=json", *options])
        found: list[dict[str, str]] = json.loads(capsys.readouterr().out)["problems"]
        assert status == bool(found)
        return found

    return run


# --- options, repositories and reports


@pytest.mark.parametrize("arguments", [[], ["a", "--format=xml"], ["a", "--http-port=1"], ["a", "--backend-config=x"]])
def test_a_bad_option_is_refused(arguments: list[str]) -> None:
    with pytest.raises(BadOption):
        read_validate_options(arguments)


class ByName(RepositoryCheck):
    """Finds two problems in the model `bad`, none in others."""

    def __init__(self) -> None:
        super().__init__(read_validate_options(["repository"]))

    def __call__(self, directory: ModelDirectory) -> Sequence[Problem]:
        if directory.name != "bad":
            return []
        return [Problem(f"{directory.path}/1", f"cannot read {directory.path}/1", "mend it"), Problem("name", "is bad")]


def repository(folder: Path, *models: str) -> str:
    for model in models:
        (folder / model).mkdir(parents=True)
    return str(folder)


def test_every_problem_of_every_model_and_repository_is_found(tmp_path: Path) -> None:
    one, two = repository(tmp_path / "one", "bad", "good"), repository(tmp_path / "two", "good")
    missing, empty = str(tmp_path / "missing"), repository(tmp_path / "empty", "")
    (tmp_path / "empty" / "model.onnx").touch()
    report = examine([one, two, missing, empty], ByName())
    assert report.models == 3
    shown = [(each.repository, each.model, each.path, each.message) for each in report.findings]
    assert shown == [
        (one, "bad", f"{one}/bad/1", f"cannot read {one}/bad/1"),
        (one, "bad", "name", "is bad"),
        (two, "good", f"{two}/good", "model appears in two or more repositories"),
        (missing, "", missing, "repository path is not a valid directory"),
        (empty, "", empty, f"there is no model in {empty}"),
    ]
    assert report.findings[2].hint == f"the other model is {one}/good"
    assert report.findings[4].hint.startswith("found model.onnx, expected MODEL/1/model.onnx: ")


def test_problems_are_aligned_below_their_model() -> None:
    path = "/models/other/1/a/very/long/path/to/a/file/model.onnx"
    fields = {"repository": "/models", "model": "digits", "path": "name", "message": "is missing", "hint": ""}
    report = Report(
        models=3,
        findings=[
            Finding("/models", "digits", "input[0].dims", "is wrong", "make it right"),
            Finding(**fields),
            Finding("/models", "other", path, "is broken", "mend it"),
        ],
    )
    assert text_report(report) == (
        "digits (/models)\n"
        "  input[0].dims  is wrong\n"
        "                 hint: make it right\n"
        "  name           is missing\n"
        "\n"
        "other (/models)\n"
        f"  {path}\n"
        "    is broken\n"
        "    hint: mend it\n"
        "\n"
        "3 problems, in 2 of 3 models\n"
    )
    document = json.loads(json_report(report))
    assert (document["models"], document["problems"][1], document["warnings"]) == (3, fields, [])
    # It is safe for a terminal.
    text = text_report(Report(models=1, findings=[Finding("/m", "a\x1b[2J", "b\r", "c\nd", "e\x9b")]))
    assert text.replace("\n", "").isprintable()
    assert text.count("\n") == 5


def test_settings_without_effect_do_not_change_the_exit_status(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    model = onnx_models.add_sub()
    onnx_models.write_version(model, tmp_path, "hosted", 'instance_group { host_policy: "numa0" }')
    onnx_models.write_version(model, tmp_path, "plain")
    assert validate([str(tmp_path)]) == 0
    assert capsys.readouterr().out == (
        "Warnings. The models load all the same; where no other effect is named, a setting has none.\n\n"
        f"hosted ({tmp_path})\n"
        "  instance_group[0].host_policy  There are no host policies: threads are not bound to cores or nodes.\n\n"
        "2 models, no problems; 1 warning\n"
    )


# --- a repository in the cloud

CONTENTS = {
    "bad/config.pbtxt": b"version_policy { all {} }",
    "bad/1/model.onnx": b"one",
    "bad/2/model.onnx": b"two",
    "last/1/model.onnx": b"one",
    "last/2/model.onnx": b"two",
    "wrong/config.pbtxt": b"{",
    "wrong/1/model.onnx": b"one",
}


def test_a_problem_is_shown_with_its_path_in_the_storage(tmp_path: Path) -> None:
    store = MemoryStore(CONTENTS)
    store.put("last/2/model.onnx/x", b"a file and a folder")
    opener = MemoryOpener(tmp_path / "cache", store)
    report = examine(["s3://bucket/"], ByName(), lambda text: CloudRepository(opener, text, ""))
    assert report.models == 3
    found = {each.model: (each.path, each.message) for each in reversed(report.findings)}
    assert found["bad"] == ("s3://bucket/bad/1", "cannot read s3://bucket/bad/1")
    assert found["last"][0] == "s3://bucket/last"
    assert found["last"][1].startswith("model 'last' in memory://bucket cannot be stored")
    misspelled = MemoryOpener(tmp_path / "none", MemoryStore({}, location="s3://bucket/modles"))
    with pytest.raises(RepositoryUnavailable, match=r"^there is nothing in s3://bucket/modles$"):
        CloudRepository(misspelled, "s3://bucket/modles", "").models()


# --- golden requests

GOLDEN_DOCUMENT = ROOT / "docs" / "golden-requests.md"
GOLDEN_EXAMPLE = re.compile(r"^```json\n(.*?)^```$", re.MULTILINE | re.DOTALL)


@pytest.fixture
def simple(shipped_models: Path, tmp_path: Path) -> Path:
    """A repository with a copy of the model `simple`, which has the golden request of the documentation."""
    copy = tmp_path / "models" / "simple"
    shutil.copytree(shipped_models / "simple", copy)
    (copy / "golden").mkdir(exist_ok=True)
    (copy / "golden" / "sixteen.json").write_text(GOLDEN_EXAMPLE.findall(GOLDEN_DOCUMENT.read_text())[0])
    return copy


def test_a_golden_request_that_differs_is_reported_as_documented(
    simple: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    path = simple / "golden" / "sixteen.json"
    path.write_text(path.read_text().replace("15,16]", "15,17]"))
    assert validate([str(simple.parent)]) == 1
    report = capsys.readouterr().out.replace(str(simple.parent), "/models")
    assert f"```text\n{report}```" in GOLDEN_DOCUMENT.read_text()


def test_golden_requests_are_reported_once_and_skipped_for_a_broken_graph(simple: Path, problems: Problems) -> None:
    config = simple / "config.pbtxt"
    config.write_text(f"{config.read_text()}version_policy {{ all {{ }} }}\n")
    (simple / "2").mkdir()
    (simple / "2" / "model.onnx").write_bytes(b"this is not a graph")
    (simple / "golden" / "a.json").write_text('{"request": {}, "respond": {}}')
    (simple / "golden" / "b.json").write_text("{")
    found = problems(simple.parent)
    assert [each["path"] for each in found] == [str(simple / "2"), "golden/a.json", "golden/b.json"]
    assert found[1]["hint"] == "did you mean 'response'?"


# --- problems that a server refuses

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
    "warmup_batch": WARMUP.format(9, "INPUT0", "TYPE_INT32", 16),
    "warmup_dims": WARMUP.format(1, "INPUT0", "TYPE_INT32", 3),
    "warmup_input": WARMUP.format(1, "X", "TYPE_INT32", 16),
    "backend": 'backend: "none"',
    "runtime": 'runtime: "libtriton_none.so"',
    "runtime_elsewhere": 'runtime: "../libtriton_onnxruntime.so"',
    "datatype": SIDES.replace("data_type: TYPE_INT32", "", 1),
    "one_side": SIDES.split("output")[0].replace('name: "INPUT1"', ""),
}


def test_the_messages_are_those_of_the_server(tmp_path: Path, problems: Problems) -> None:
    for name, config in UNLOADABLE.items():
        onnx_models.write_version(onnx_models.add_sub(), tmp_path, name, f"max_batch_size: 8 {config}")
    with running_engine(tmp_path) as engine:
        reasons = {entry.name: entry.reason.partition(": ")[2] for entry in engine.repository_index(False)}
    assert reasons.keys() == UNLOADABLE.keys()
    found = problems(tmp_path)
    assert {each["model"]: each["message"] for each in found} == reasons
    assert len(found) == len(reasons)


def test_versions_with_different_signatures_have_no_problem(tmp_path: Path, problems: Problems) -> None:
    onnx_models.write_version(onnx_models.identity(), tmp_path, "m", "version_policy { all {} }")
    onnx_models.write(onnx_models.add_sub(), tmp_path / "m" / "2" / "model.onnx")
    with running_engine(tmp_path) as engine:
        assert [entry.state for entry in engine.repository_index(False)] == [ModelState.READY, ModelState.READY]
    assert problems(tmp_path) == []


def test_file_instead_of_a_repository_hints_at_import(tmp_path: Path, problems: Problems) -> None:
    (tmp_path / "net.onnx").touch()
    (found,) = problems(tmp_path / "net.onnx")
    assert found["hint"] == f"{tmp_path / 'net.onnx'} is a file: `trident import` makes a model of it"


# --- models in Python, and of texts

TENSORS = 'input { name: "IN" data_type: TYPE_FP32 dims: 1 } output { name: "OUT" data_type: TYPE_FP32 dims: 1 }'
CONFIG = f'backend: "python" {TENSORS} instance_group {{ kind: KIND_CPU }}'
CLASS = """
class TritonPythonModel:
    def initialize(self, args):
        raise ValueError("no weights")
    def execute(self, requests):
        return []
"""
COMPLETING = f"""{CLASS}
    @staticmethod
    def auto_complete_config(config):
        config.add_input({{"name": "IN", "data_type": "TYPE_FP32", "dims": [1]}})
        return config
"""
BARE = 'backend: "python"'


@pytest.mark.parametrize(
    ("source", "config", "options", "begin", "end"),
    [
        (
            "x = 1\n\n  \ny = = 3\n",
            CONFIG,
            [],
            "SyntaxError: invalid syntax (model.py, line 4)",
            "column 5 of 'y = = 3'",
        ),
        ("import torchh\n", CONFIG, [], "ModuleNotFoundError: No module named 'torchh'", "m/1/model.py(1): <module>"),
        ("import os\nos._exit(3)\n", CONFIG, [], "the process of the model ended with status 3", ""),
        (CLASS, CONFIG, [], "", ""),
        # It is initialized only if that is wanted.
        (CLASS, CONFIG, ["--run"], "ValueError: no weights At: ", ""),
        (CLASS, BARE, [], "the model has no inputs and no outputs, so that a request with an input is refused", ""),
        (COMPLETING, BARE, [], "", ""),
        # The fault, and not what is missing beside it.
        ("import torchh\n", BARE, [], "ModuleNotFoundError: No module named 'torchh'", "m/1/model.py(1): <module>"),
        ("class TritonPythonModel: ...", CONFIG, [], "Python model ", "does not implement `execute` method."),
        ("class TritonPythonModel: ...", CONFIG, ["--run"], "Python model ", "does not implement `execute` method."),
    ],
    ids=[
        *("syntax", "import", "exit", "right", "initialize", "no-tensors", "completing"),
        *("import-bare", "no-execute", "no-execute-run"),
    ],
)
def test_python_model_is_imported_in_its_own_process(
    source: str, config: str, options: list[str], begin: str, end: str, tmp_path: Path, problems: Problems
) -> None:
    version = tmp_path / "m" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text(source if "class" in source else source + CLASS)
    (version.parent / "config.pbtxt").write_text(config)
    messages = [each["message"] for each in problems(tmp_path, *options)]
    assert [(each[: len(begin)], each.endswith(end)) for each in messages] == ([(begin, True)] if begin else [])


def test_missing_module_is_reported_with_where_to_install_it(tmp_path: Path, problems: Problems) -> None:
    version = tmp_path / "m" / "1"
    version.mkdir(parents=True)
    (version / "model.py").write_text("import torchh")
    (found,) = problems(tmp_path)
    assert "the package that has 'torchh' in requirements.txt beside config.pbtxt" in found["hint"]
    assert f"{sys.executable} -m pip install" in found["hint"]


def test_unloadable_version_with_golden_requests_has_one_problem(tmp_path: Path, problems: Problems) -> None:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "golden").mkdir()
    (tmp_path / "m" / "1" / "model.py").write_text(CLASS)
    (tmp_path / "m" / "config.pbtxt").write_text(CONFIG)
    side = '[{"name": "%s", "datatype": "FP32", "shape": [1], "data": [1]}]'
    golden = f'{{"request": {{"inputs": {side % "IN"}}}, "response": {{"outputs": {side % "OUT"}}}}}'
    for name in ("a.json", "b.json"):
        (tmp_path / "m" / "golden" / name).write_text(golden)
    (found,) = problems(tmp_path)
    assert (found["path"], "ValueError: no weights" in found["message"]) == (str(tmp_path / "m" / "1"), True)


def test_endless_import_is_stopped(tmp_path: Path) -> None:
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


# --- ensembles


def test_ensembles_are_drawn_beside_the_report(simple: Path, capsys: pytest.CaptureFixture[str]) -> None:
    tensors = "data_type: TYPE_INT32 dims: [ 16 ]"
    maps = " ".join(f'input_map {{ key: "INPUT{n}" value: "i" }}' for n in range(2))
    for name, model in (("good", "simple"), ("bad", "none")):
        (simple.parent / name / "1").mkdir(parents=True)
        (simple.parent / name / "config.pbtxt").write_text(
            f'platform: "ensemble" max_batch_size: 8 input {{ name: "i" {tensors} }} output {{ name: "o" {tensors} }} '
            f'ensemble_scheduling {{ step {{ model_name: "{model}" model_version: -1 {maps} '
            'output_map { key: "OUTPUT0" value: "o" } } }'
        )
    assert validate([str(simple.parent), "--graph=text"]) == 1
    printed = capsys.readouterr()
    assert printed.out == "good: i -> o\n  1  simple  i -> o\n"
    assert "ensemble bad contains models that are not available or ambiguous: none" in printed.err


def step(model: str, sources: str, results: str, version: int = -1) -> EnsembleStep:
    """One letter is a tensor."""
    inputs, outputs = (tuple((name, name) for name in names) for names in (sources, results))
    return EnsembleStep(model=model, version=version, inputs=inputs, outputs=outputs)


def test_steps_are_drawn_after_those_they_depend_on() -> None:
    """`i` goes to two steps, whose outputs meet; one of them is an output, too."""
    side = "data_type: TYPE_FP32 dims: 1"
    sides = "".join(
        f'{kind} {{ name: "{name}" {side} }} ' for kind, name in (("input", "i"), ("output", "c"), ("output", "b"))
    )
    ensemble = resolve_model_spec(parse_model_config(f'name: "e" {sides}', "config.pbtxt"), 1, {})
    steps = [step("join", "ab", "c"), step("left", "i", "a"), step('ri"g<ht', "i", "b", version=3)]
    graphs = [(ensemble, steps)]
    assert text_drawing(graphs) == (
        'e: i -> c, b\n  1  left       i -> a\n  1  ri"g<ht:3  i -> b\n  2  join       a, b -> c\n'
    )
    lines = dot_drawing(graphs).splitlines()
    assert lines[0] == 'digraph "e" {'
    assert '  step2 [label="ri\\"g<ht:3"];' in lines
    assert [line.strip() for line in lines if "->" in line] == [
        'step1 -> step0 [label="a"];',
        'step2 -> step0 [label="b"];',
        'inputs -> step1 [label="i"];',
        'inputs -> step2 [label="i"];',
        'step0 -> outputs [label="c"];',
        'step2 -> outputs [label="b"];',
    ]
    root = ElementTree.fromstring(svg_drawing(graphs * 2))
    assert [text.text for text in root.iter(SVG + "text")][1:7] == ["a", "b", "i", "i", "c", "b"]
    columns = [(int(box.attrib["x"]), int(box.attrib["y"])) for box in root.iter(SVG + "rect")][:5]
    request, left, right, join, response = columns
    assert request[0] < left[0] == right[0] < join[0] < response[0]
    assert left[1] < request[1] == join[1] < right[1]
