"""Sources whose authors have put code into them that writes a file, imported without trust: it is not written.

Either the import says what needs --trust-pickle, or it makes a model without the code.
"""

from __future__ import annotations

import io
import json
import os
import pickle
import shutil
import struct
import subprocess
import sys
import zipfile
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnx
import pytest
from onnx import TensorProto, helper

from tests import needed
from tests.hub_folders import write_folder
from tests.unit.core.backends.tensorflow.tensorflow_models import write_saved_model
from trident.app.cli import main
from trident.core.backends import tensorflow
from trident.core.repository.config import read_config
from trident.core.repository.repository import ModelDirectory
from trident.tools.importing import original

MARK = "import os, pathlib; pathlib.Path(os.environ['MARKER']).touch()\n"
TRUSTED = "if you trust its author, --trust-pickle"
REFUSED = "error: "


class Hostile:
    """An object whose pickle writes the marker file when it is read."""

    def __reduce__(self) -> tuple[Any, ...]:
        return exec, (MARK,)


def write_onnx(path: Path, location: str = "") -> Path:
    """A product with a matrix, which lies in the file `location` unless that is empty."""
    path.parent.mkdir(parents=True, exist_ok=True)
    sides = [helper.make_tensor_value_info(name, TensorProto.FLOAT, ["n", size]) for name, size in (("x", 4), ("y", 3))]
    matrix = helper.make_tensor("w", TensorProto.FLOAT, [4, 3], np.zeros(12))
    if location:
        matrix.ClearField("float_data")
        matrix.data_location = TensorProto.EXTERNAL
        for key, value in (("location", location), ("length", "48")):
            entry = matrix.external_data.add()
            entry.key, entry.value = key, value
    graph = helper.make_graph([helper.make_node("MatMul", ["x", "w"], ["y"])], "g", sides[:1], sides[1:], [matrix])
    onnx.save(helper.make_model(graph, ir_version=10, opset_imports=[helper.make_opsetid("", 17)]), path)
    return path


def pickled(name: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / name).write_bytes(pickle.dumps(Hostile()))
        return folder / name

    return write


def torch_saved(folder: Path) -> Path:
    with zipfile.ZipFile(folder / "model.pt", "w") as archive:
        archive.writestr("model/data.pkl", pickle.dumps(Hostile()))
    return folder / "model.pt"


def beside_onnx(folder: Path) -> Path:
    pickled("model.pkl")(folder)
    (folder / "sitecustomize.py").write_text(MARK)
    return write_onnx(folder / "model.onnx")


def mlflow(flavors: str, **files: bytes) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        inner = folder / "mlflow"
        (inner / "code").mkdir(parents=True)
        (inner / "code" / "numpy.py").write_text(MARK)
        (inner / "model.pkl").write_bytes(pickle.dumps(Hostile()))
        write_onnx(inner / "model.onnx")
        write_onnx(folder / "outside.onnx")
        (inner / "MLmodel").write_text(f"flavors:\n{flavors}")
        return inner

    return write


def triton(config: str, *code: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        model = folder / "hostile"
        write_onnx(model / "1" / "model.onnx")
        if "graphdef" in config:
            graph = tensorflow.GraphDef()
            graph.node.add(name="x", op="WriteFile")
            (model / "1" / "m.bin").write_bytes(graph.SerializeToString())
        for path in code:
            (model / path).write_text(f"{MARK}class TritonPythonModel: pass")
        (model / "config.pbtxt").write_text(config)
        return model

    return write


def library(folder: Path) -> Path:
    """A library that writes the file when it is loaded."""
    source = '__attribute__((constructor)) void run(void) { fclose(fopen(getenv("MARKER"), "w")); }'
    (folder / "code.c").write_text(f"#include <stdio.h>\n#include <stdlib.h>\n{source}\n")
    compiler = needed.program("cc", "apt install gcc")
    subprocess.run([compiler, "-shared", "-fPIC", folder / "code.c", "-o", folder / "ops.data"], check=True)
    return triton(f'model_operations {{ op_library_filename: "{folder}/ops.data" }}')(folder)


def genai(folder: Path, option: str = r"custom_ops_librar\u0079") -> Path:
    model = write_folder(folder / "generator")
    session = f'{{"session_options": {{"{option}": "ops.data"}}}}'
    (model / "genai_config.json").write_text(f'{{"model": {{"decoder": {session}, "decoder": {{}}}}}}')
    return model


def hub(folder: Path) -> Path:
    """`auto_map` names a class in a file of the folder, which transformers would import with trust_remote_code."""
    model = write_folder(folder / "hub")
    config = json.loads((model / "config.json").read_text())
    config["auto_map"] = dict.fromkeys(("AutoModel", "AutoConfig", "AutoTokenizer"), "modeling.Model")
    (model / "config.json").write_text(json.dumps(config))
    (model / "modeling.py").write_text(MARK)
    return model


def saved_model(*operations: str, in_function: bool = False) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        write_saved_model(folder)
        graph = tensorflow._CLASSES["SavedNodes"]()
        given = graph.meta_graphs.add().graph_def
        nodes = given.library.function.add().node_def if in_function else given.node
        for operation in operations:
            nodes.add(name="x", op=operation)
        with (folder / "model.savedmodel" / "saved_model.pb").open("ab") as file:
            file.write(graph.SerializeToString())
        return folder / "model.savedmodel"

    return write


def beside_saved_model(name: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        model = saved_model("Add")(folder)
        (model / name).touch()
        return model

    return write


def torch_archive(name: str, member: str, text: str) -> Callable[[Path], Path]:
    """An archive as torch.jit.save and torch.export.save write them, of which only a member with code counts."""

    def write(folder: Path) -> Path:
        with zipfile.ZipFile(folder / name, "w") as archive:
            archive.writestr("m/constants.pkl" if name.endswith(".pt") else "m/archive_format", "pt2")
            archive.writestr(f"m/{member}", text)
        return folder / name

    return write


def archive(manifest: object, **members: bytes) -> Callable[[Path], Path]:
    """A .mar of TorchServe, with members by their names with `__` for a dot."""

    def write(folder: Path) -> Path:
        with zipfile.ZipFile(folder / "model.mar", "w", zipfile.ZIP_DEFLATED) as mar:
            text = manifest if isinstance(manifest, str) else json.dumps(manifest)
            mar.writestr("MAR-INF/MANIFEST.json", text)
            for name, content in members.items():
                mar.writestr(name.replace("__", "."), content)
        return folder / "model.mar"

    return write


def handled(handler: str) -> object:
    return {"model": {"modelName": "..", "handler": handler, "serializedFile": "m.pt"}}


def script_in_archive(folder: Path) -> Path:
    script = torch_archive("m.pt", "code/__torch__.py", "torch.save(x, 'f')")(folder)
    return archive(handled("base_handler"), m__pt=script.read_bytes())(folder)


def unreadable(folder: Path) -> Path:
    """A member has another name in its own header than in the table of contents, which PyTorch does not compare."""
    path = torch_archive("m.pt", "code/__torch__.py", "torch.save(x, 'f')")(folder)
    path.write_bytes(path.read_bytes().replace(b"code/__torch__.py", b"code/__torch__.qy", 1))
    return path


def two_tables(folder: Path) -> Path:
    """The end of the archive names a table of contents with the code, and another one is just before the end."""
    path = torch_archive("m.pt", "code/__torch__.py", "torch.save(x, 'f')")(folder)
    content = path.read_bytes()
    end = content.rindex(b"PK\5\6")
    first = content.index(b"PK\1\2")
    table = content[first : content.index(b"PK\1\2", first + 1)]
    path.write_bytes(
        content[:end] + table + content[end : end + 12] + struct.pack("<L", len(table)) + content[end + 16 :]
    )
    return path


def after_its_end(folder: Path) -> Path:
    """PyTorch finds the end of this archive, and Python does not."""
    model = triton('platform: "pytorch_libtorch"')(folder)
    script = torch_archive("m.pt", "code/__torch__.py", "torch.save(x, 'f')")(folder)
    (model / "1" / "model.pt").write_bytes(script.read_bytes() + b"PK\5\6")
    return model


def graph_and_archive(folder: Path) -> Path:
    """An empty archive in a field that TensorFlow passes over."""
    model = triton('platform: "tensorflow_savedmodel"')(folder)
    inner = shutil.copytree(saved_model("WriteFile")(folder), model / "1" / "model.savedmodel")
    with (inner / "saved_model.pb").open("ab") as file:
        file.write(b"\x7a\x16")
    zipfile.ZipFile(inner / "saved_model.pb", "a").close()
    return model


def pipe(folder: Path) -> Path:
    model = triton("")(folder)
    os.mkfifo(model / "1" / "weights.pt")
    return model


def pipe_alone(folder: Path) -> Path:
    os.mkfifo(folder / "model.onnx")
    return folder / "model.onnx"


def linked(folder: Path) -> Path:
    (folder / "secret").write_bytes(bytes(48))
    model = write_onnx(folder / "inner" / "model.onnx", "weights")
    (model.parent / "weights").symlink_to(folder / "secret")
    return model


def linked_to_itself(folder: Path) -> Path:
    model = triton("")(folder)
    for name in ("a", "b"):
        (model / "1" / name).symlink_to(model)
    return model


def linked_folder(folder: Path) -> Path:
    model = write_folder(folder / "hub")
    (folder / "secret").write_bytes(bytes(48))
    (model / "labels.txt").symlink_to(folder / "secret")
    return model


def outside(location: str) -> Callable[[Path], Path]:
    def write(folder: Path) -> Path:
        (folder / "secret").write_bytes(bytes(48))
        return write_onnx(folder / "a" / "model.onnx", location.format(folder))

    return write


# The source, and what the import says.
SOURCES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "pickle": (pickled("model.pkl"), TRUSTED),
    "joblib": (pickled("model.joblib"), TRUSTED),
    "pickle of another name": (pickled("model.bin"), TRUSTED),
    "torch.save": (torch_saved, "was written by PyTorch's torch.save, and is not a model"),
    "TorchScript that writes": (torch_archive("m.pt", "code/__torch__.py", "torch.save(x, 'f')"), TRUSTED),
    "TorchScript that maps a file": (torch_archive("m.pt", "code/__torch__.py", "torch. from_file ('f')"), TRUSTED),
    "TorchScript in capitals": (torch_archive("m.pt", "CODE/__TORCH__.PY", "torch.save(x, 'f')"), TRUSTED),
    "TorchScript in a file without a suffix": (
        torch_archive("m.pt", "code/__torch__/m\0.py", "torch.save(x)"),
        TRUSTED,
    ),
    "TorchScript with two tables of contents": (two_tables, "is an archive that cannot be read"),
    "Triton with TorchScript that only PyTorch reads": (after_its_end, "is an archive that cannot be read"),
    "Triton with a graph that is an archive, too": (graph_and_archive, TRUSTED),
    "TorchScript in an archive that cannot be read": (unreadable, "is an archive that cannot be read"),
    "TorchScript with a text of a gigabyte": (
        torch_archive("m.pt", "code/__torch__.py", " " * (65 << 20)),
        "has 68157440 bytes, and may have",
    ),
    # PyTorch evaluates the texts of shapes and guards, and calls any function that is named.
    "torch.export": (torch_archive("m.pt2", "models/model.json", "{}"), TRUSTED),
    "AOTInductor": (torch_archive("m.pt2", "data/aotinductor/model/m.cpp", ""), TRUSTED),
    "pickle and code beside ONNX": (beside_onnx, "serve it: "),
    "MLflow with code": (mlflow("  onnx:\n    data: model.onnx\n    code: code\n"), "serve it: "),
    "MLflow with a pickle": (mlflow("  sklearn:\n    pickled_model: model.pkl\n"), TRUSTED),
    "MLflow with a python_function": (mlflow("  python_function:\n    loader_module: code.numpy\n"), TRUSTED),
    "MLflow with a path out of it": (mlflow("  onnx:\n    data: ../outside.onnx\n"), "names a file out of its folder"),
    "Triton, in Python": (triton('backend: "python"', "1/model.py"), TRUSTED),
    "Triton, in Python by its files": (triton("", "1/model.py"), TRUSTED),
    "Triton, in Python of another name": (
        triton('backend: "pyth\\x6fn" default_model_filename: "m.txt"', "1/m.txt"),
        TRUSTED,
    ),
    "Triton with a library of operations": (library, TRUSTED),
    "Triton with a library of OpenVINO": (
        triton('backend: "openvino" parameters { key: "CPU_EXTENSION_PATH" value { string_value: "ops.data" } }'),
        TRUSTED,
    ),
    "Triton with a library of TensorRT": (
        triton(
            "optimization { execution_accelerators { gpu_execution_accelerator { name: 'tensorrt' "
            "parameters { key: 'trt_extra_plugin_lib_paths' value: 'ops.data' } } } }"
        ),
        TRUSTED,
    ),
    "Triton with a graph that writes": (
        triton('platform: "tensorflow_graphdef" default_model_filename: "m.bin"'),
        TRUSTED,
    ),
    "a pipe": (pipe_alone, "is neither a file nor a folder"),
    "Triton with a pipe": (pipe, "is neither a file nor a folder"),
    "GenAI with a library": (genai, TRUSTED),
    "GenAI that writes": (partial(genai, option="enable_profiling"), TRUSTED),
    "Hub with auto_map": (hub, "serve it: "),
    "SavedModel that writes": (saved_model("WriteFile"), TRUSTED),
    "SavedModel that writes in a function": (saved_model("Add", "WriteFile", in_function=True), TRUSTED),
    "SavedModel that calls Python": (saved_model("EagerPyFunc"), TRUSTED),
    "SavedModel that prints to a file": (saved_model("PrintV2"), TRUSTED),
    "SavedModel that reads a dataset": (saved_model("TextLineDataset"), TRUSTED),
    "SavedModel in another file": (beside_saved_model("saved_model.pbtxt"), TRUSTED),
    "TorchServe with a handler": (archive(handled("h.py"), h__py=MARK.encode()), TRUSTED),
    "TorchServe with a TorchScript that writes": (script_in_archive, TRUSTED),
    "TorchServe with a file out of it": (
        archive({"model": {"handler": "base_handler", "serializedFile": "../../m.pt"}}),
        "lacks its file ../../m.pt",
    ),
    "TorchServe with a manifest that is not JSON": (archive("[" * 10000), "without a model with its handler"),
    "TorchServe with a manifest of another form": (archive({"model": "m"}), "without a model with its handler"),
    "TorchServe with a manifest of a gigabyte": (archive(" " * (65 << 20)), "has 68157440 bytes, and may have"),
    "weights by a link": (linked, TRUSTED),
    "a folder with a link": (linked_folder, TRUSTED),
    "a folder with links to itself": (linked_to_itself, "is a link to a folder: "),
    "weights above the folder": (outside("../secret"), REFUSED),
    "weights by a whole path": (outside("{}/secret"), REFUSED),
}


@pytest.mark.parametrize(("write", "said"), SOURCES.values(), ids=SOURCES)
def test_foreign_code_does_not_run_without_trust(
    write: Callable[[Path], Path],
    said: str,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capfd: pytest.CaptureFixture[str],
) -> None:
    marker = tmp_path / "marker"
    monkeypatch.setenv("MARKER", str(marker))
    source = write(tmp_path)
    status = main(["import", str(source), f"--repository={tmp_path / 'models'}"])
    captured = capfd.readouterr()
    assert not marker.exists()
    assert said in captured.out + captured.err
    assert (status == 0) == (said == "serve it: ")
    if status == 0:
        made = [path.name for path in (tmp_path / "models").rglob("*") if path.is_file()]
        assert not {"model.pkl", "sitecustomize.py", "numpy.py"} & set(made)


@pytest.mark.parametrize("write", [write for write, _ in SOURCES.values()], ids=SOURCES)
def test_foreign_code_does_not_run_when_a_file_is_served(
    write: Callable[[Path], Path], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """`trident serve FILE` imports so; a folder of Triton is linked, and its server runs it."""
    monkeypatch.setenv("MARKER", str(tmp_path / "marker"))
    main(["import", str(write(tmp_path)), f"--repository={tmp_path / 'models'}", "--link", "--no-run"])
    assert not (tmp_path / "marker").exists()


def test_trusted_code_of_a_triton_model_runs(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Shows that the tests above would detect code that runs."""
    monkeypatch.setenv("MARKER", str(tmp_path / "marker"))
    source = triton('backend: "python" output { name: "Y" data_type: TYPE_FP32 dims: [ 1 ] }', "1/model.py")(tmp_path)
    main(["import", str(source), f"--repository={tmp_path / 'models'}", "--trust-pickle"])
    assert (tmp_path / "marker").exists()


def test_name_in_a_source_cannot_inject_configuration(tmp_path: Path) -> None:
    """The key of an argument of a package, which names an input."""
    name = 'x" dims: [ 1 ] }\nparameters { key: "EXECUTION_ENV_PATH" value { string_value: "/evil" } }\ninput { name: "'
    leaf = {"type": None, "context": None, "children_spec": []}
    keyed = {"type": "builtins.dict", "context": json.dumps([name]), "children_spec": [leaf]}
    arguments = {"type": "builtins.tuple", "children_spec": [{"type": "builtins.tuple", "children_spec": []}, keyed]}
    sides = {f"{side}_spec": json.dumps([1, spec]) for side, spec in (("in", arguments), ("out", leaf))}
    tensor = {"dtype": 7, "sizes": [{"as_int": 2}]}
    module = {
        "graph": {"tensor_values": {"a": tensor}},
        "module_call_graph": [{"signature": sides}],
        "signature": {
            f"{side}put_specs": [{f"user_{side}put": {"arg": {"as_tensor": {"name": "a"}}}}] for side in ("in", "out")
        },
    }
    text = json.dumps({"graph_module": module, "range_constraints": {}})
    source = torch_archive("m.pt2", "models/model.json", text)(tmp_path)
    assert main(["import", str(source), f"--repository={tmp_path / 'models'}", "--trust-pickle", "--no-run"]) == 0
    config = read_config(ModelDirectory("m", tmp_path / "models" / "m"))
    assert [each.name for each in config.input] == [f"KWARGS[{name}]"]
    assert not config.parameters


def test_torch_package_with_a_pickle_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """torch.export.load reads a file that is not a pickle of tensors only a second time, as any pickle."""
    torch = needed.package("torch")
    monkeypatch.setenv("MARKER", str(tmp_path / "marker"))
    torch.export.save(torch.export.export(torch.nn.Linear(4, 2), (torch.zeros(2, 4),)), tmp_path / "good.pt2")
    hostile = io.BytesIO()
    torch.save((((Hostile(),), {}),), hostile)
    with zipfile.ZipFile(tmp_path / "good.pt2") as good, zipfile.ZipFile(tmp_path / "bad.pt2", "w") as bad:
        for name in good.namelist():
            bad.writestr(name, hostile.getvalue() if name.endswith("sample_inputs/model.pt") else good.read(name))
    asked = json.dumps({"kind": "package", "inputs": [["FP32", [2, 4]]]})
    task = [sys.executable, original.__file__, "tensors", str(tmp_path / "bad.pt2")]
    assert "Weights only load failed" in subprocess.run(task, input=asked, capture_output=True, text=True).stderr
    assert not (tmp_path / "marker").exists()
