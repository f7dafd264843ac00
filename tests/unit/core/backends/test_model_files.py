"""Files of models: their origin, and each backend's error for a file that is not a model."""

from __future__ import annotations

import pickle
import warnings
from collections.abc import Callable
from pathlib import Path

import numpy as np
import openvino
import pytest
import xgboost
from openvino import opset13

from tests import needed
from tests.unit.backend_serving import config_of
from tests.unit.core.backends.tensorflow.tensorflow_models import write_saved_model
from trident.core.backends.model_files import origin_of, origins_in
from trident.core.backends.registry import BackendRegistry
from trident.core.config.schema import ModelConfig
from trident.core.errors import ModelLoadFailed

# --- the origin of a file


TABLE = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)


def booster() -> xgboost.Booster:
    return xgboost.train({"max_depth": 2}, xgboost.DMatrix(TABLE, label=TABLE[:, 0]), 2)


def write_lightgbm(path: Path) -> None:
    lightgbm = needed.lightgbm()
    lightgbm.train({"verbose": -1}, lightgbm.Dataset(TABLE, label=TABLE[:, 0].copy()), 2).save_model(path)


def write_openvino(path: Path) -> None:
    given = opset13.parameter([-1, 3], openvino.Type.f32, name="x")
    openvino.save_model(openvino.Model([opset13.result(opset13.relu(given))], [given], "m"), str(path))


def content(written: bytes) -> Callable[[Path], object]:
    return lambda path: path.write_bytes(written)


# The header of a plan is as libnvinfer writes it; only a GPU can make a real one.
PLAN = b"ftrt" + bytes(20) + bytes([11, 4, 0, 106]) + b"rtrt" + bytes(100)


@pytest.mark.parametrize(
    ("write", "origin"),
    [
        (lambda path: path.write_bytes(booster().save_raw("json")), "XGBoost"),
        (lambda path: path.write_bytes(booster().save_raw("ubj")), "XGBoost"),
        (write_lightgbm, "LightGBM"),
        (write_openvino, "OpenVINO"),
        (content(PLAN), "TensorRT 11.4.0 (build 106)"),
        (content(b"ftrt"), "TensorRT"),
        (content(b"ptrt" + bytes(60)), "TensorRT 8.5 or older"),
        (content(pickle.dumps([1])), "Python's pickle"),
        (content(b""), None),
        (content(b"PK\x03\x04 cut short"), None),
        (content(b"{}"), None),
        (content(b"\x08\x08\x12\x07pytorch\x1a\x0513.0:"), None),  # an ONNX graph begins so
        (content(b"\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0"), None),  # weights of OpenVINO begin with any numbers
        (lambda path: None, None),
    ],
)
def test_origin_of_a_file_is_named(write: Callable[[Path], object], origin: str | None, tmp_path: Path) -> None:
    path = tmp_path / "model.xml"
    write(path)
    assert origin_of(path) == origin


def test_saved_model_is_of_tensorflow(tmp_path: Path) -> None:
    write_saved_model(tmp_path)
    assert origins_in(tmp_path) == {"model.savedmodel": "TensorFlow"}
    assert origin_of(tmp_path) is None


@pytest.mark.slow
def test_origin_of_pytorch_files_is_named(tmp_path: Path) -> None:
    torch = needed.package("torch")
    path, linear, example = tmp_path / "model", torch.nn.Linear(3, 2), torch.ones(2, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(linear, example).save(str(path))
        assert origin_of(path) == "PyTorch (TorchScript)"
        program = path.with_suffix(".pt2")
        torch.export.save(torch.export.export(linear, (example,)), program)
    assert origin_of(program) == "PyTorch (torch.export)"
    torch.save(linear.state_dict(), path)
    assert origin_of(path) == "PyTorch's torch.save"


# --- files that are no models


_TREES = 'parameters { key: "is_classifier" value { string_value: "false" } }\n'
_TREES += 'parameters { key: "model_type" value { string_value: "lightgbm" } }\n'
SAVED_MODEL = "model.savedmodel/saved_model.pb"
CONTENTS = {
    "pointer": (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "Git LFS pointer"),
    "empty": (b"", "the file is empty"),
}
FILES = {
    "model.onnx": config_of(""),
    "model.xml": config_of("", backend="openvino"),
    "model.txt": config_of(_TREES, backend="fil"),
    SAVED_MODEL: config_of('platform: "tensorflow_savedmodel"', backend="tensorflow"),
    "model.pt": config_of("", backend="pytorch"),
    "model.pt2": config_of('platform: "torch_aoti"', backend="pytorch"),
}
# An empty SavedModel is a valid message, without tags.
CASES = [(name, kind) for name in FILES for kind in CONTENTS if (name, kind) != (SAVED_MODEL, "empty")]


@pytest.mark.parametrize(("name", "kind"), CASES)
def test_pointers_and_empty_files_have_one_hint(name: str, kind: str, tmp_path: Path) -> None:
    if name == "model.pt":
        needed.package("torch")
    content, hint = CONTENTS[kind]
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(content)
    config: ModelConfig = FILES[name]
    with pytest.raises(ModelLoadFailed) as raised:
        BackendRegistry({}).inspect(tmp_path, config)
    assert hint in (raised.value.hint or "")


def test_weights_that_are_a_pointer_are_named(tmp_path: Path) -> None:
    given = opset13.parameter([-1, 3], openvino.Type.f32, name="x")
    product = opset13.matmul(given, opset13.constant(np.ones((3, 400), np.float32)), False, False)
    path = tmp_path / "model.xml"
    openvino.save_model(openvino.Model([opset13.result(product)], [given], "m"), str(path), compress_to_fp16=False)
    weights = path.with_suffix(".bin")
    complete = weights.read_bytes()
    for content, hint in (
        (b"version https://git-lfs.github.com/spec/v1\n", "'model.bin': the file is a Git LFS pointer"),
        (complete[:100], "'model.bin' is incomplete"),
    ):
        weights.write_bytes(content)
        with pytest.raises(ModelLoadFailed) as raised:
            BackendRegistry({}).inspect(tmp_path, FILES["model.xml"])
        assert (raised.value.hint or "").startswith(hint)
    weights.write_bytes(complete)
    path.write_text(path.read_text().replace('type="MatMul" version="opset1"', 'type="Zap" version="extension"'))
    with pytest.raises(ModelLoadFailed) as raised:
        BackendRegistry({}).inspect(tmp_path, FILES["model.xml"])
    assert "the model has the operator Zap of extension" in (raised.value.hint or "")
