"""The pages on Triton, tuning, speed and exporting agree with the product: options, commands, names, figures, texts.

Source of Triton's options: docs/spec/server-options.md section 2.
"""

from __future__ import annotations

import re
import shlex
import subprocess
import sys
from pathlib import Path

import orjson
import pytest
from google.protobuf import text_format
from google.protobuf.descriptor import Descriptor
from werkzeug.test import Client

import trident
from docs.lists import OPTION_NOTES, metric_rows
from tests.project import ROOT
from tests.unit import onnx_models
from tests.unit.docs.test_troubleshooting import in_source, rows
from tests.unit.onnx_serving import running_engine
from trident.app.cli import main
from trident.app.settings.groups import UNUSED_OPTIONS
from trident.app.settings.reading import read_settings, split_arguments, with_repositories
from trident.app.settings.server import SERVER_OPTIONS
from trident.core.backends.cpu_budget import plan_threads
from trident.core.backends.onnxruntime.providers import tensorrt_options
from trident.core.config.schema import ModelConfig
from trident.tools.bench.command import long_options
from trident.tools.commands import options_of
from trident.tools.validate import read_validate_options

TRITON = (ROOT / "docs" / "coming-from-triton.md").read_text()
TUNING = (ROOT / "docs" / "tuning.md").read_text()
SPEED = (ROOT / "docs" / "speed.md").read_text()
TROUBLE = (ROOT / "docs" / "troubleshooting.md").read_text()
GUIDES = (TRITON, TUNING, TROUBLE)
LIMIT_S = 30
QUOTE = re.compile(r"`([^`\n]+)`")
OPTION_NAME = re.compile(r"[a-z0-9]+(?:-[a-z0-9]+)+")
NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")


# Texts in backticks in tuning.md that name something else than options and settings: protocol, client, value.
OTHER_NAMES = """
inference_count execution_count queue compute_infer ns count auto instances 0 FP32 FP16 BF16 INT8 tensorrt
cuda config.pbtxt tritonclient.http Retry-After Inference-Header-Content-Length application/x-npy parameters
application/vnd.sagemaker-triton.binary+json;json-header-size=N
"""


def code(page: str) -> list[str]:
    """The texts in backticks, including those that span lines, outside fenced blocks."""
    text = re.sub(r"^```.*?^```$", "", page, flags=re.MULTILINE | re.DOTALL)
    return [" ".join(quote.split()) for quote in re.findall(r"`([^`]+)`", text)]


def commands(page: str) -> list[list[str]]:
    """The command lines of `trident` on a page, without that word; for a container the command of the image."""
    blocks = re.findall(r"```bash\n(.*?)```", page, re.DOTALL)
    lines = [*code(page), *(line for block in blocks for line in block.splitlines())]
    in_container = [
        f"trident serve {line.split(' trident ')[1]}"
        for line in lines
        if line.startswith("docker run") and " trident " in line
    ]
    return [
        shlex.split(line, comments=True)[1:]
        for line in [*lines, *in_container]
        if line.startswith("trident ") and "…" not in line
    ]


# --- coming from Triton


def test_option_table_has_tritons_options_and_its_notes() -> None:
    options = [each for each in (*SERVER_OPTIONS.values(), *UNUSED_OPTIONS) if each.flag and not each.own]
    own = {name for each in options for name in each.names} - {"id"}
    section = (ROOT / "docs" / "spec" / "server-options.md").read_text().partition("## 2. Options")[2]
    tables = " ".join(QUOTE.sub("", cells[0]) for cells in rows(section, "option"))
    assert len(OPTION_NAME.findall(tables)) > 70
    assert set(OPTION_NAME.findall(tables)) <= own <= set(OPTION_NAME.findall(section.partition("## 3. ")[0]))
    assert OPTION_NOTES.keys() <= own


def test_guide_commands_are_valid() -> None:
    written = (command for page in GUIDES for command in commands(page))
    found = [command for command in written if not any(word.startswith("--help") for word in command)]
    assert len(found) > 5
    for command, *arguments in found:
        if command == "serve":
            read_settings(with_repositories([*arguments, "--model-repository=/models"]), {})
        elif command == "doctor":
            read_settings(
                with_repositories([each for each in arguments if each != "--json"]), {}, needs_repository=False
            )
        elif command == "validate":
            read_validate_options(arguments)
        elif command != "emulate" and (options := options_of(command)):
            split_arguments(options, long_options(arguments) if command == "bench" else arguments)
        elif command == "openapi":
            read_settings([each for each in arguments if each.startswith("-")], {}, needs_repository=False)
        else:
            assert command == "emulate"


@pytest.mark.slow
def test_missing_features_answer_with_the_texts_on_the_page() -> None:
    texts = [text for cells in rows(TRITON, "feature") for text in QUOTE.findall(cells[2])]
    assert len(texts) > 5
    assert [text for text in texts if not in_source(text)] == []


@pytest.mark.slow
def test_the_script_turns_answers_into_golden_requests(tmp_path: Path) -> None:
    script = re.search(r"^```python\n(.*?)^```$", TRITON, re.MULTILINE | re.DOTALL)
    assert script is not None
    (tmp_path / "golden.py").write_text(script[1])
    models = tmp_path / "models"
    onnx_models.write_version(onnx_models.add_sub(), models, "simple", "max_batch_size: 8")
    row = ", ".join(map(str, range(16)))
    inputs = [f'{{"name": "INPUT{n}", "datatype": "INT32", "shape": [1, 16], "data": [{row}]}}' for n in range(2)]
    (tmp_path / "sixteen.json").write_text(f'{{"inputs": [{", ".join(inputs)}]}}')
    with trident.Server(models) as server, server.serve() as ports:
        arguments = [str(tmp_path / "golden.py"), ports.url, str(models / "simple"), str(tmp_path / "sixteen.json")]
        subprocess.run([sys.executable, *arguments], check=True, timeout=LIMIT_S)
    golden = models / "simple" / "golden" / "sixteen.json"
    with running_engine(models) as engine:
        assert engine.is_ready()
    golden.write_text(golden.read_text().replace("30", "31"))
    with running_engine(models) as engine:
        assert not engine.is_ready()


# --- tuning


def config_fields(message: Descriptor = ModelConfig.DESCRIPTOR, seen: frozenset[str] = frozenset()) -> set[str]:
    """The names of all fields and enum values of a model configuration."""
    if message.full_name in seen:
        return set()
    found: set[str] = set()
    for field in message.fields:
        found.add(field.name)
        if field.message_type is not None:
            found |= config_fields(field.message_type, seen | {message.full_name})
        if field.enum_type is not None:
            found |= {value.name for value in field.enum_type.values}
    return found


METRICS = frozenset(row.name for row in metric_rows())
NAMES = METRICS | {each.variable for each in SERVER_OPTIONS.values()} | config_fields() | {*OTHER_NAMES.split()}


def is_option(text: str) -> bool:
    """Tell whether a text consists of one or more options with values that parse."""
    options = [*SERVER_OPTIONS.values(), *UNUSED_OPTIONS]
    if "=" not in text:
        return any(text.removeprefix("--") in each.names for each in options)
    ((option, value),), _ = split_arguments(options, [text])
    return option.kind.parse(value) is not None


def known(text: str) -> bool:
    """Tell whether a text in backticks is a name of the product."""
    if text.startswith("rate("):
        return set(re.findall(r"\b(?:nv|trident|flask)_\w+", text)) <= METRICS
    if text.startswith("--"):
        measuring = {each.flag for each in (*options_of("bench"), *options_of("tune"))}
        return text.removeprefix("--").partition("=")[0] in measuring or is_option(text)
    if text.startswith("thread plan: "):
        return text == f"thread plan: {plan_threads(8, 2)}"
    if re.match("-[a-zA-Z]", text):
        return all(long_options([word]) != [word] for word in text.split() if word.startswith("-"))
    if text.startswith("trt_"):
        return text == "trt_cuda_graph_enable" or bool(tensorrt_options({text: "1"}))
    if text.startswith("/") or text.split()[0] in {"GET", "make", "python", "trident"}:
        return True
    return text in NAMES or in_source(text)


def test_tuning_page_names_exist() -> None:
    names = code(TUNING)
    assert len(names) > 80
    assert [name for name in names if not known(name)] == []
    wrong = ["--no-such-option", "nv_no_such_metric", "max_batch_sice", "rate(nv_none[5m])", "thread plan: 1 core"]
    assert [name for name in wrong if known(name)] == []


FIGURES = re.compile(r"Figures from \[[^\]]*\]\(\.\./bench/results/([^)]+)\)[^\n]*\n\n((?:\|[^\n]*\n)+)")


def figures(page: str) -> list[tuple[str, str]]:
    """For each table of figures, the file that it comes from and its rows."""
    return [(file, table.split("\n", 2)[2]) for file, table in FIGURES.findall(page)]


def strange_figures(page: str) -> list[str]:
    """The numbers in the tables of figures that the named file does not contain."""
    strange = []
    for file, table in figures(page):
        measured = set(NUMBER.findall((ROOT / "bench" / "results" / file).read_text()))
        strange += [number for number in NUMBER.findall(table) if number not in measured]
    return strange


def test_the_named_file_contains_every_figure() -> None:
    assert len(figures(SPEED)) == SPEED.count("Figures from") > 0
    assert strange_figures(SPEED) == []
    assert strange_figures(SPEED.replace("| 50,430 |", "| 99,614 |")) == ["99,614"]


def test_the_options_of_the_security_policy_exist() -> None:
    flags = {each.flag for each in SERVER_OPTIONS.values()} | {"version"}
    named = re.findall(r"`(?:trident )?--([a-z-]+)", (ROOT / "SECURITY.md").read_text())
    assert len(named) > 3
    assert set(named) <= flags


# --- exporting models: its Python is Python, and its commands serve a model as the exporters write it. The exporters
# themselves are not installed.

EXPORTING = (ROOT / "docs" / "exporting-models.md").read_text()
LIBRARIES = ("skl2onnx", "torch.onnx.export")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", EXPORTING, re.DOTALL)


def test_the_code_for_each_library_and_the_configuration_are_valid() -> None:
    for code in blocks("python"):
        compile(code, "exporting-models.md", "exec")
    for library, code in zip(LIBRARIES, blocks("python"), strict=False):
        assert library in code
        assert '"models/iris/1/model.onnx"' in code
    assert "tf2onnx.convert --saved-model saved --output models/iris/1/model.onnx " in EXPORTING
    [text] = [block for block in blocks("text") if "max_batch_size" in block]
    assert text_format.Parse(text, ModelConfig()).max_batch_size == 64


def test_guide_commands_check_and_serve_an_exported_classifier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = onnx_models.classifier()
    # As LightGBM declares it.
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 1
    onnx_models.write_version(model, tmp_path / "models", "iris")
    monkeypatch.chdir(tmp_path)
    *_, validate, serve = commands(EXPORTING)
    assert (main(validate), capsys.readouterr().out) == (0, "1 model, no problems\n")
    assert serve == ["serve", "--model-repository=models"]
    [(url, body)] = re.findall(r"curl localhost:8000(/\S+) -d '(.*?)'", EXPORTING, re.DOTALL)
    with trident.Server("models") as server:
        answer = Client(server.wsgi()).post(url, data=body)
    assert answer.status_code == 200
    shapes = {output["name"]: output["shape"] for output in orjson.loads(answer.data)["outputs"]}
    assert shapes == {"output_label": [2, 1], "output_probability": [2, 3]}
