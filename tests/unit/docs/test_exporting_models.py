"""docs/exporting-models.md: its Python is Python, and its commands serve a model as the exporters write it.

The exporters themselves are not installed, so that their calls are only compiled.
"""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import orjson
import pytest
from google.protobuf import text_format
from werkzeug.test import Client

from tests.project import ROOT
from tests.unit import onnx_models
from tests.unit.core.engine.test_in_process import serving
from trident.app.cli import main
from trident.app.settings.reading import CommandLine
from trident.app.settings.server import SERVER_OPTIONS
from trident.core.config.schema import ModelConfig
from trident.core.frontend.bridge import ThreadBridge
from trident.core.http.application import V2Application
from trident.core.http.front_end import HttpOptions

PAGE = (ROOT / "docs" / "exporting-models.md").read_text()
LIBRARIES = ("skl2onnx", "torch.onnx.export")


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", PAGE, re.DOTALL)


def commands(word: str) -> list[list[str]]:
    """The commands of the page that begin with `word`, as words."""
    found = [shlex.split(line) for block in blocks("bash") for line in re.split(r"\n(?=[a-z#])", block.strip())]
    return [words for words in found if words and words[0] == word]


@pytest.mark.parametrize(("library", "code"), list(zip(LIBRARIES, blocks("python"), strict=True)))
def test_the_code_for_a_library_compiles_and_writes_the_model_file(library: str, code: str) -> None:
    compile(code, "exporting-models.md", "exec")
    assert library in code
    assert '"models/iris/1/model.onnx"' in code


def test_the_tensorflow_command_and_the_configuration_are_valid() -> None:
    [words] = commands("python")
    assert words[words.index("--output") + 1] == "models/iris/1/model.onnx"
    [text] = [block for block in blocks("text") if "max_batch_size" in block]
    assert text_format.Parse(text, ModelConfig()).max_batch_size == 64


def test_the_commands_check_and_serve_an_exported_classifier(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    model = onnx_models.classifier()
    # As LightGBM declares it.
    model.graph.output[0].type.tensor_type.shape.dim[0].dim_value = 1
    onnx_models.write_version(model, tmp_path / "models", "iris")
    monkeypatch.chdir(tmp_path)
    [[_, *validate], [_, serve, *options]] = commands("trident")
    assert main(validate) == 0
    assert capsys.readouterr().out == "1 model, no problems\n"
    assert serve == "serve"
    [(_, repository)] = CommandLine(tuple(SERVER_OPTIONS.values())).split(options)[0]
    [[_, url, _, body]] = commands("curl")
    with serving(Path(repository)) as engine:
        answer = Client(V2Application(engine, HttpOptions(), ThreadBridge())).post(
            url.removeprefix("localhost:8000"), data=body
        )
    assert answer.status_code == 200
    shapes = {output["name"]: output["shape"] for output in orjson.loads(answer.data)["outputs"]}
    assert shapes == {"output_label": [2, 1], "output_probability": [2, 3]}
