"""`trident import`: each source becomes a model that answers as the source does.

Files are those of the frameworks' own exporters where these are installed with the tests. The others are small folders
with what their programs write: MLflow's MLmodel (as mlflow 3 writes it, shortened), the manifest of
torch-model-archiver, BentoML's model.yaml, MLServer's model-settings.json.
"""

from __future__ import annotations

import json
import pickle
import re
import sys
import warnings
import zipfile
from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import onnx
import openvino
import pytest
import xgboost
from onnx import TensorProto, helper, numpy_helper

import trident
from tests import needed
from tests.hub_folders import write_folder
from tests.unit.core.backends.tensorflow.tensorflow_models import write_saved_model
from trident.adapters.common.options import BadOption
from trident.app.cli import main
from trident.core.inference.tensors import BY_NAME
from trident.tools.importing.command import import_model
from trident.tools.importing.comparison import Differs, _groups, compare
from trident.tools.importing.original import _send_missing, _thresholds, from_pickle
from trident.tools.importing.sources import Decisions, Options, Plan, plans_of

TABLE = np.random.default_rng(0).normal(size=(100, 4)).astype(np.float32)
CLASSIFIER = 'key: "is_classifier" value {{ string_value: "{}" }}'
CLASSES = np.digitize(TABLE[:, 0], [-0.5, 0.5])


def write_onnx(path: Path, first: str | int = "n", **saving: Any) -> Path:
    weights = numpy_helper.from_array(TABLE[:4, :3].copy(), "w")
    sides = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [first, n]) for name, n in (("x", 4), ("y", 3))]
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", sides[:1], sides[1:], [weights])
    model = helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)])
    onnx.save(model, path, **saving)
    return path


def external(folder: Path) -> Path:
    write_onnx(folder / "net.onnx", save_as_external_data=True, location="net.weights", size_threshold=0)
    return folder / "net.onnx"


def boosted(objective: str, name: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        labels = CLASSES if objective.startswith("multi") else CLASSES > 1
        settings = {"objective": objective, **({"num_class": 3} if objective.startswith("multi") else {})}
        xgboost.train(settings, xgboost.DMatrix(TABLE, label=labels), 3).save_model(folder / name)
        return folder / name

    return write


def light(folder: Path) -> Path:
    settings = {"objective": "binary", "verbose": -1}
    lightgbm = needed.lightgbm()
    lightgbm.train(settings, lightgbm.Dataset(TABLE, label=CLASSES > 1), 3).save_model(folder / "light.txt")
    return folder / "light.txt"


def ir(folder: Path) -> Path:
    model = openvino.convert_model(str(write_onnx(folder / "net.onnx")))
    openvino.save_model(model, folder / "net.xml", compress_to_fp16=False)
    return folder / "net.xml"


def module() -> Any:
    torch = needed.package("torch")
    torch.manual_seed(0)
    return torch.nn.Sequential(torch.nn.Linear(4, 8), torch.nn.ReLU(), torch.nn.Linear(8, 2)).eval()


def script(folder: Path) -> Path:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        needed.package("torch").jit.script(module()).save(str(folder / "net.pt"))
    return folder / "net.pt"


def exported(folder: Path) -> Path:
    torch = needed.package("torch")
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        rows: Any = torch.export.Dim("rows", min=1, max=16)
        program = torch.export.export(module(), (torch.zeros(2, 4),), dynamic_shapes=({0: rows},))
        torch.export.save(program, folder / "net.pt2")
    return folder / "net.pt2"


def mlflow(folder: Path) -> Path:
    write_onnx(folder / "model.onnx")
    (folder / "MLmodel").write_text(
        "flavors:\n  onnx:\n    data: 'model.onnx'\n    onnx_version: 1.18.0\n  python_function:\n"
        "    loader_module: mlflow.onnx\n    python_version: 3.11.7\nmodel_uuid: 5d99ea82\n"
    )
    return folder


def bento(folder: Path) -> Path:
    write_onnx(folder / "saved_model.onnx")
    (folder / "model.yaml").write_text("name: iris\nversion: a1\nmodule: bentoml.onnx\n")
    return folder


def mlserver(folder: Path) -> Path:
    boosted("binary:logistic", "model.json")(folder)
    settings = {
        "name": "iris",
        "implementation": "mlserver_xgboost.XGBoostModel",
        "parameters": {"uri": "./model.json"},
    }
    (folder / "model-settings.json").write_text(json.dumps(settings))
    return folder


def run(source: Path, *options: str) -> int:
    return main(["import", str(source), *options])


@pytest.mark.slow
@pytest.mark.parametrize(
    ("write", "what", "file"),
    [
        (external, "an ONNX model", "1/net.weights"),
        (light, "trees of LightGBM", "1/model.txt"),
        (mlserver, "trees of XGBoost", "1/xgboost.json"),
        (ir, "a model of OpenVINO", "1/model.bin"),
    ],
)
def test_imported_model_answers_like_its_source(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], write: Callable[[Path], Path], what: str, file: str
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    assert run(write(source), "--name=made", f"--repository={tmp_path}/models") == 0
    text = capsys.readouterr().out
    assert text.startswith(f"made: {what}")
    assert "the original, run by itself, answers the same" in text
    assert "curl -s http://localhost:8000/v2/models/made/infer -d '{" in text
    assert (tmp_path / "models" / "made" / file).is_file()
    assert [each.name for each in (tmp_path / "models").iterdir()] == ["made"]


@pytest.mark.slow
@pytest.mark.parametrize(
    ("write", "what", "lines"),
    [
        (boosted("multi:softmax", "net.ubj"), "trees of XGBoost", ["xgboost_ubj", CLASSIFIER.format("true")]),
        (boosted("reg:squarederror", "net.json"), "trees of XGBoost", ["xgboost_json", CLASSIFIER.format("false")]),
        (script, "a TorchScript archive; it takes INPUT__0 FP32 [-1, 4], guessed", ["INPUT__0", "dims: [ 2 ]"]),
        (exported, "a package of torch.export", ["ARGS[0]", "max_batch_size: 16", "dims: [ 2 ]"]),
        (mlflow, "an ONNX model, from an MLflow folder\n", []),
        (bento, "an ONNX model, from BentoML's model store\n", []),
    ],
)
def test_a_configuration_has_the_parameters_of_the_file(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], write: Callable[[Path], Path], what: str, lines: list[str]
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    assert run(write(source), "--name=made", f"--repository={tmp_path}/models", "--no-run", "--trust-pickle") == 0
    assert f"made: {what}" in capsys.readouterr().out
    made = tmp_path / "models" / "made"
    written = (made / "config.pbtxt").read_text() if lines else ""  # an ONNX model needs none
    assert [line for line in lines if line not in written] == []
    assert any((made / "1").iterdir())


def test_a_dry_run_shows_the_configuration_and_makes_nothing(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    source = write_onnx(tmp_path / "net.onnx")
    assert run(source, "--dry-run", f"--repository={tmp_path}/models") == 0
    text = capsys.readouterr().out
    assert "max_batch_size: 64" in text
    assert 'name: "y"' in text
    assert not (tmp_path / "models").exists()


@pytest.mark.slow
def test_an_answer_that_differs_from_the_original_is_an_error(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """A Python that answers in the place of ONNX Runtime, and wrongly."""
    python = tmp_path / "python"
    script = """
import json, pathlib, sys, numpy
given = sorted(pathlib.Path(sys.argv[4]).glob("given-*"))
for number, path in enumerate(given):
    numpy.savez(path.with_name(f"answered-{number}.npz"), y=numpy.full((len(numpy.load(path)["x"]), 3), 7))
print(json.dumps([""] * len(given)))
"""
    python.write_text(f"#!{sys.executable}\n{script}")
    python.chmod(0o755)
    source = write_onnx(tmp_path / "net.onnx")
    models = tmp_path / "models"
    assert run(source, f"--python={python}", f"--repository={models}") == 1
    assert (
        "error: the original, run by itself, answers otherwise (random and special rows): " in capsys.readouterr().out
    )
    assert list(models.iterdir()) == []
    assert run(source, f"--python={python}", f"--repository={models}", "--keep") == 1
    assert [each.name for each in models.iterdir()] == ["net"]


def test_a_model_that_does_not_load_is_not_made(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_onnx(tmp_path / "net.onnx")
    source.write_bytes(source.read_bytes()[:60])
    assert run(source, f"--repository={tmp_path}/models") == 1
    assert "error: " in capsys.readouterr().out
    assert list((tmp_path / "models").iterdir()) == []


def test_a_model_is_never_replaced(tmp_path: Path) -> None:
    (tmp_path / "models" / "net").mkdir(parents=True)
    with pytest.raises(BadOption, match="is there already: choose another --name"):
        import_model([str(write_onnx(tmp_path / "net.onnx")), f"--repository={tmp_path}/models"])


@pytest.mark.slow
def test_text_models_and_saved_models_are_made_of_folders(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for folder in ("a", "b"):
        (tmp_path / folder).mkdir()
    write_saved_model(tmp_path / "b")
    assert run(write_folder(tmp_path / "a" / "hub"), f"--repository={tmp_path}/models") == 0
    assert run(tmp_path / "b" / "model.savedmodel", "--name=saved", f"--repository={tmp_path}/models") == 0
    text = capsys.readouterr().out
    assert "hub: a model of the Hugging Face Hub\nit answers in" in text
    assert "saved: a SavedModel of TensorFlow\nit answers in" in text
    # Its framework is not installed with the tests: OpenVINO runs it.
    assert "it is not compared with the original: ModuleNotFoundError: No module named 'tensorflow'" in text
    assert "  hint: install tensorflow, or name a Python that has it: --python=PATH" in text


def test_a_repository_is_imported_model_by_model(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    for name in ("one", "two"):
        assert main(["init", name, f"--repository={tmp_path}/given"]) == 0
    assert run(tmp_path / "given", f"--repository={tmp_path}/models", "--no-run") == 0
    assert sorted(each.name for each in (tmp_path / "models").iterdir()) == ["one", "two"]
    with pytest.raises(BadOption, match="keep their names"):
        import_model([str(tmp_path / "given"), "--name=x", "--no-run", f"--repository={tmp_path}/others"])


@pytest.mark.parametrize(("first", "config"), [("n", "max_batch_size: 64"), (1, "")])
def test_no_run_gives_the_same_configuration(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], first: str | int, config: str
) -> None:
    source = write_onnx(tmp_path / "net.onnx", first=first)
    for options in ([], ["--no-run"]):
        models = tmp_path / f"models{len(options)}"
        assert run(source, f"--repository={models}", *options) == 0
        written = models / "net" / "config.pbtxt"
        assert (written.read_text() if written.exists() else "").startswith(config)
        fixed = "it does not batch, as its first dimension is fixed: x [1,4]\n  hint: export it"
        assert (fixed in capsys.readouterr().out) == (first == 1 and not options)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["net.pkl", "net.bin"])
def test_a_pickle_is_read_only_if_it_is_trusted(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    class Harmful:
        def __reduce__(self) -> Any:
            return (Path.touch, (tmp_path / "was-run",))

    (tmp_path / name).write_bytes(pickle.dumps(Harmful()))
    assert run(tmp_path / name, f"--repository={tmp_path}/models") == 1
    assert "--trust-pickle" in capsys.readouterr().err
    assert not (tmp_path / "was-run").exists()
    assert run(tmp_path / name, f"--repository={tmp_path}/models", "--trust-pickle") == 1
    assert "it is a builtins.NoneType, which has neither `predict` nor `transform`" in capsys.readouterr().err
    assert (tmp_path / "was-run").exists()


@pytest.mark.parametrize(
    ("write", "message", "hint"),
    [
        (
            lambda at: needed.package("torch").save({}, at / "net.pth"),
            "net.pth was written by PyTorch's torch.save",
            "ONNX",
        ),
        (lambda at: (at / "net.onnx").write_text("version https://git-lfs"), "not a known", "git lfs pull"),
        (lambda at: (at / "net.safetensors").write_bytes(b"\0"), "not a known model", "it holds only weights"),
        (lambda at: (at / "net.gguf").write_bytes(b"GGUF"), "not a known model", "llama.cpp are not supported"),
        (lambda at: (at / "net.py").write_text("x = 1"), "not a known model", "`trident init net` writes one"),
        (lambda at: zipfile.ZipFile(at / "net.zip", "w").writestr("net.onnx", ""), "not a known model", "unpack it"),
        (lambda at: (at / "net.xml").write_text('<net name="x">'), "OpenVINO's, without its weights", "put net.bin"),
        (lambda at: None, "has nothing, and no known model", "these are recognised"),
    ],
)
def test_invalid_source_is_reported_with_a_hint(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], write: Callable[[Path], Any], message: str, hint: str
) -> None:
    source = tmp_path / "source"
    source.mkdir()
    write(source)
    inside = next(iter(source.iterdir()), source)
    assert run(inside, f"--repository={tmp_path}/models") == 1
    error = capsys.readouterr().err
    assert message in error
    assert hint in error


@pytest.mark.slow
def test_an_archive_of_torchserve_runs_its_own_handler(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    torch = needed.package("torch")
    manifest = {"model": {"modelName": "sums", "handler": "handler.py", "serializedFile": "net.pt"}}
    handler = (
        "from ts.handler_utils.timer import timed\nfrom ts.torch_handler.base_handler import BaseHandler\n"
        "from ts.utils.util import map_class_to_label\n\n\nclass Sums(BaseHandler):\n"
        "    def preprocess(self, data):\n        return super().preprocess([row['body'] for row in data])\n\n"
        "    @timed\n    def postprocess(self, data):\n"
        "        self.context.metrics.add_counter('Rows', len(data))\n"
        "        return map_class_to_label([[sum(row)] for row in data.tolist()], {'0': 'sum'})\n"
    )
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.script(torch.nn.Identity()).save(str(tmp_path / "net.pt"))
    with zipfile.ZipFile(tmp_path / "sums.mar", "w") as archive:
        archive.writestr("MAR-INF/MANIFEST.json", json.dumps(manifest))
        archive.writestr("handler.py", handler)
        archive.write(tmp_path / "net.pt", "net.pt")
    options = [f"--repository={tmp_path}/models"]
    assert run(tmp_path / "sums.mar", *options) == 1
    assert "has code of its author (handler.py)" in capsys.readouterr().err
    assert run(tmp_path / "sums.mar", *options, "--trust-pickle") == 0
    assert "it has loaded, and is not asked" in capsys.readouterr().out
    model = tmp_path / "models" / "sums"
    tensor = {"datatype": "BYTES", "shape": [2, 1]}
    golden = {
        "request": {"inputs": [{"name": "data", **tensor, "data": ["[1, 2]", "[3, 4]"]}]},
        "response": {"outputs": [{"name": "prediction", **tensor, "data": ['{"sum": 3}', '{"sum": 7}']}]},
    }
    (model / "golden").mkdir()
    (model / "golden" / "sums.json").write_text(json.dumps(golden))
    assert main(["validate", f"{tmp_path}/models"]) == 0
    manifest["model"]["handler"] = "text_classifier"
    (model / "1" / "archive" / "MAR-INF" / "MANIFEST.json").write_text(json.dumps(manifest))
    assert run(model / "1" / "archive", *options) == 1
    assert "import net.pt from it" in capsys.readouterr().err


def test_code_of_an_archive_with_a_torchserve_handler_is_not_imported(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    manifest = {"model": {"modelName": "cats", "handler": "image_classifier", "serializedFile": "net.pt"}}
    with zipfile.ZipFile(tmp_path / "cats.mar", "w") as archive:
        archive.writestr("MAR-INF/MANIFEST.json", json.dumps(manifest))
        for name in ("net.pt", "index_to_name.json", "PIL/__init__.py", "PIL/Image.py", "numpy.so"):
            archive.writestr(name, "raise SystemExit")
    assert run(tmp_path / "cats.mar", f"--repository={tmp_path}/models", "--no-run") == 0
    made = tmp_path / "models" / "cats" / "1" / "archive"
    files = {each.relative_to(made).as_posix() for each in made.rglob("*") if each.is_file()}
    assert files == {"MAR-INF/MANIFEST.json", "net.pt", "index_to_name.json"}
    assert "code of its author is left out (PIL/Image.py, PIL/__init__.py, numpy.so)" in capsys.readouterr().out
    manifest["model"]["modelFile"] = "net.py"
    with zipfile.ZipFile(tmp_path / "own.mar", "w") as archive:
        archive.writestr("MAR-INF/MANIFEST.json", json.dumps(manifest))
        archive.writestr("net.py", "raise SystemExit")
    assert run(tmp_path / "own.mar", f"--repository={tmp_path}/models", "--no-run") == 1
    assert "has code of its author (net.py)" in capsys.readouterr().err


@pytest.mark.slow
@pytest.mark.parametrize("objective", ["reg:squarederror", "binary:logistic", "binary:logitraw", "binary:hinge"])
@pytest.mark.parametrize("best", [None, 1])
def test_trees_of_xgboost_answer_as_its_classes_predict(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], objective: str, best: int | None
) -> None:
    trees = xgboost.train({"objective": objective}, xgboost.DMatrix(TABLE, label=CLASSES > 1), 5)
    if best is not None:
        trees.set_attr(best_iteration=str(best))
    trees.save_model(tmp_path / "trees.json")
    assert run(tmp_path / "trees.json", f"--repository={tmp_path}/models") == 0
    shown = capsys.readouterr().out
    assert ("the 2 rounds up to the best one, of 5" in shown) == (best is not None)
    rows = int(re.search(r"answers the same to (\d+) rows", shown)[1])
    assert rows >= 256 + 20 + 3
    made = json.loads((tmp_path / "models" / "trees" / "1" / "xgboost.json").read_text())
    count = made["learner"]["gradient_booster"]["model"]["gbtree_model_param"]["num_trees"]
    assert count == ("5" if best is None else "2")


@pytest.mark.slow
def test_boosters_without_trees_run_in_their_library(tmp_path: Path) -> None:
    """By a Python model; here in the environment of the tests."""
    settings = {"booster": "gblinear", "objective": "binary:logistic"}
    linear = xgboost.train(settings, xgboost.DMatrix(TABLE, label=CLASSES > 1), 3)
    linear.save_model(tmp_path / "linear.json")
    models = tmp_path / "models"
    assert run(tmp_path / "linear.json", f"--repository={models}", "--no-run") == 0
    assert f"xgboost-cpu=={xgboost.__version__}" in (models / "linear" / "requirements.txt").read_text()
    (models / "linear" / "requirements.txt").unlink()
    with trident.Server(str(models)) as server:
        answer = server.model("linear").infer({"input__0": TABLE[:5]})["output__0"]
    second = linear.predict(xgboost.DMatrix(TABLE[:5]))
    np.testing.assert_array_equal(answer, np.stack([1 - second, second], axis=1))


def test_an_archive_of_many_members_is_not_unpacked(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with zipfile.ZipFile(tmp_path / "many.mar", "w") as archive:
        archive.writestr("MAR-INF/MANIFEST.json", "{}")
        for number in range(10_000):
            archive.writestr(str(number), "")
    assert run(tmp_path / "many.mar", f"--repository={tmp_path}/models") == 1
    assert "many.mar has 10001 members, and may have 10000" in capsys.readouterr().err


def test_the_file_that_kills_its_library_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "python").write_text("#!/bin/sh\nkill -SEGV $$\n")
    (tmp_path / "python").chmod(0o755)
    (tmp_path / "broken.cbm").write_bytes(b"CBM1")
    assert run(tmp_path / "broken.cbm", f"--repository={tmp_path}/models", f"--python={tmp_path}/python") == 1
    said = (
        f"error: {tmp_path}/python was killed by SIGSEGV while it read broken.cbm\nhint: the file is probably damaged"
    )
    assert said in capsys.readouterr().err


def test_package_named_by_a_pickle_is_not_recommended_for_installation(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "own.pkl").write_bytes(b"cprivate_package\nThing\n.")
    assert run(tmp_path / "own.pkl", f"--repository={tmp_path}/models", "--trust-pickle") == 1
    said = "No module named 'private_package'\nhint: name a Python that has it: --python=PATH"
    assert said in capsys.readouterr().err


@pytest.mark.parametrize("name", ["MLmodel", "MAR-INF/MANIFEST.json", "genai_config.json"])
def test_oversized_text_is_not_read(tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str) -> None:
    source = write_folder(tmp_path / "source") if "genai" in name else tmp_path / "source"
    (source / name).parent.mkdir(parents=True, exist_ok=True)
    with (source / name).open("wb") as file:
        file.truncate((64 << 20) + 1)
    assert run(source, f"--repository={tmp_path}/models") == 1
    assert f"{name} cannot be read: it has 67108865 bytes, and may have 67108864" in capsys.readouterr().err


def test_oversized_onnx_file_is_not_copied(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    with write_onnx(tmp_path / "net.onnx").open("ab") as file:
        file.truncate(2 << 30)
    assert run(tmp_path / "net.onnx", f"--repository={tmp_path}/models") == 1
    assert "net.onnx has 2147483648 bytes, and an ONNX file has fewer than 2147483648" in capsys.readouterr().err


def test_model_name_is_one_that_a_server_accepts(tmp_path: Path) -> None:
    assert run(write_onnx(tmp_path / "net.onnx"), f"--repository={tmp_path}/models", "--name=../.net") == 0
    assert [each.name for each in (tmp_path / "models").iterdir()] == ["_.net"]
    assert run(write_onnx(tmp_path / ".net.onnx"), f"--repository={tmp_path}/others") == 0
    assert [each.name for each in (tmp_path / "others").iterdir()] == ["net"]


def test_wide_trees_take_no_memory_for_each_feature(tmp_path: Path) -> None:
    document = json.loads(xgboost.train({}, xgboost.DMatrix(TABLE, label=CLASSES), 1).save_raw("json"))
    document["learner"]["learner_model_param"]["num_feature"] = "1000000"
    (tmp_path / "wide.json").write_text(json.dumps(document))
    (plan,) = plans_of(tmp_path / "wide.json", Options(scratch=tmp_path, python=sys.executable))
    assert plan.decisions().known == {"input__0": []}


def test_names_in_a_source_cannot_control_the_terminal(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    source = write_onnx(tmp_path / "net.onnx")
    model = onnx.load(source)
    model.graph.output[0].name = model.graph.node[0].output[0] = "y\x1b[2J"
    onnx.save(model, source)
    assert run(source, f"--repository={tmp_path}/models") == 0
    assert run(source.rename(tmp_path / "\x1b[2J.onnx"), f"--repository={tmp_path}/\x9b/models", "--name=2") == 0
    assert run(tmp_path / "\x1b]0;none", f"--repository={tmp_path}/models") == 1
    shown = capsys.readouterr()
    assert r"y\u001b[2J FP32 [-1,3]" in shown.out
    assert not re.search("[\x1b\x9b]", shown.out + shown.err)


class Narrow:
    """As scikit-learn's KMeans that was fitted with FP32."""

    n_features_in_ = 2

    def predict(self, table: Any) -> Any:
        if table.dtype != np.float32:
            raise ValueError("Buffer dtype mismatch, expected 'const float' but got 'double'")
        return table[:, 0]


def test_fp32_estimator_gets_fp32_inputs(tmp_path: Path) -> None:
    (tmp_path / "narrow.pkl").write_bytes(pickle.dumps(Narrow()))
    made = from_pickle(str(tmp_path / "narrow.pkl"), str(tmp_path), {"inputs": []})
    assert made["outputs"] == [["label", "FP32", []]]


def test_missing_values_follow_the_estimators_trees() -> None:
    """Two trees of one shape: a node and its leaves."""

    def fitted(goes_left: int) -> Any:
        sides = {"children_left": np.array([1, -1, -1]), "missing_go_to_left": np.array([goes_left, 0, 0])}
        return SimpleNamespace(tree_=SimpleNamespace(feature=np.array([2, -2, -2]), **sides))

    node = helper.make_node(
        "TreeEnsembleRegressor", ["x"], ["y"], domain="ai.onnx.ml", nodes_treeids=[0, 0, 0, 1, 1, 1],
        nodes_featureids=[2, 0, 0] * 2, nodes_truenodeids=[1, 0, 0] * 2, nodes_missing_value_tracks_true=[0] * 6,
        nodes_modes=["BRANCH_LEQ", "LEAF", "LEAF"] * 2,
    )  # fmt: skip
    graph = helper.make_graph([node], "g", [], [])
    _send_missing(graph, SimpleNamespace(steps=[("forest", SimpleNamespace(estimators_=[fitted(0), fitted(1)]))]))
    (sent,) = (each.ints for each in graph.node[0].attribute if each.name == "nodes_missing_value_tracks_true")
    assert list(sent) == [0, 0, 0, 1, 0, 0]


def test_thresholds_behind_a_scaler_are_those_of_its_input() -> None:
    scaler = SimpleNamespace(scale_=2.0, n_features_in_=2, inverse_transform=lambda rows: rows * 2 + 1)
    nodes = {"children_left": [1, -1, -1], "feature": [1, -2, -2], "threshold": [0.5, -2.0, -2.0]}
    tree = SimpleNamespace(tree_=SimpleNamespace(**{name: np.array(each) for name, each in nodes.items()}))
    assert _thresholds(SimpleNamespace(steps=[("scaler", scaler), ("tree", tree)])) == [[1, 2.0]]


def test_large_labels_are_compared_exactly() -> None:
    with pytest.raises(Differs):
        compare({"label": np.array([100_001])}, {"label": np.array([100_002])}, 1e-3)
    assert compare({"label": np.array([100_001])}, {"label": np.array([100_001.0])}, 1e-3) == ((0.0, "label[0]"), set())


def test_missing_categories_are_compared_beside_known_ones() -> None:
    features: Any = SimpleNamespace(name="X", datatype=BY_NAME["FP32"], shape=(1, 2), inner=(2,), count=2)
    sample: Any = SimpleNamespace(inputs=[features], spec=SimpleNamespace(max_batch_size=64))
    plan = Plan(what="", decisions=lambda: Decisions(known={"X": [[3.0, 5.0], []]}))
    rows = dict(_groups(sample, plan))["rows with missing categories"]["X"]
    assert np.isnan(rows[:, 0]).any()
    assert {3.0, 5.0} == {*rows[~np.isnan(rows[:, 0]), 0].tolist()}
    assert np.isfinite(rows[:, 1]).all()


def test_non_text_labels_are_compared_as_bytes() -> None:
    served = {"label": np.array([b"a", b"\xff"], object)}
    assert compare(served, {"label": np.array([b"a", b"\xff"])}, 1e-3) == ((0.0, ""), set())
    with pytest.raises(Differs):
        compare(served, {"label": np.array([b"a", b"\xfe"])}, 1e-3)


@pytest.mark.slow
def test_skeleton_serves_unchanged(tmp_path: Path) -> None:
    assert main(["init", "ratio", f"--repository={tmp_path}"]) == 0
    assert main(["validate", str(tmp_path)]) == 0
    assert main(["init", "ratio", f"--repository={tmp_path}"]) == 1
    assert main(["init", "../ratio", f"--repository={tmp_path}"]) == 1
