"""Files that the frameworks really wrote, and files that nobody did."""

from __future__ import annotations

import pickle
import warnings
import zipfile
from importlib.util import find_spec
from pathlib import Path

import lightgbm
import numpy as np
import openvino
import pytest
import xgboost
from openvino import opset13

from tests.unit.core.backends.tensorflow.tensorflow_models import write_saved_model
from trident.core.backends.model_files import origin_of, origins_in

TABLE = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)


def booster() -> xgboost.Booster:
    return xgboost.train({"max_depth": 2}, xgboost.DMatrix(TABLE, label=TABLE[:, 0]), 2)


@pytest.mark.parametrize("written_as", ["json", "ubj"])
def test_xgboost(written_as: str, tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(booster().save_raw(written_as))
    assert origin_of(path) == f"XGBoost {xgboost.__version__}"


def test_lightgbm(tmp_path: Path) -> None:
    path = tmp_path / "model"
    lightgbm.train({"verbose": -1}, lightgbm.Dataset(TABLE, label=TABLE[:, 0].copy()), 2).save_model(path)
    assert (origin_of(path) or "").startswith("LightGBM (model format v")


def test_openvino(tmp_path: Path) -> None:
    given = opset13.parameter([-1, 3], openvino.Type.f32, name="x")
    path = tmp_path / "model.xml"
    openvino.save_model(openvino.Model([opset13.result(opset13.relu(given))], [given], "m"), str(path))
    assert origin_of(path) == f"OpenVINO {openvino.__version__.partition('-')[0]}"


def test_tensorflow(tmp_path: Path) -> None:
    write_saved_model(tmp_path)
    assert origin_of(tmp_path / "model.savedmodel") == "TensorFlow 2.21.0"
    assert origins_in(tmp_path) == {"model.savedmodel": "TensorFlow 2.21.0"}
    assert origin_of(tmp_path) is None


def test_tensorrt(tmp_path: Path) -> None:
    """The header of a plan, as libnvinfer writes it; only a GPU can make a real one."""
    path = tmp_path / "model.plan"
    path.write_bytes(b"ftrt" + bytes(20) + bytes([11, 4, 0, 106]) + b"rtrt" + bytes(100))
    assert origin_of(path) == "TensorRT 11.4.0 (build 106)"
    path.write_bytes(b"ftrt")
    assert origin_of(path) == "TensorRT"
    path.write_bytes(b"ptrt" + bytes(60))
    assert origin_of(path) == "TensorRT 8.5 or older"


@pytest.mark.slow
@pytest.mark.skipif(find_spec("torch") is None, reason="needs PyTorch")
def test_pytorch(tmp_path: Path) -> None:
    import torch

    path, linear, example = tmp_path / "model", torch.nn.Linear(3, 2), torch.ones(2, 3)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        torch.jit.trace(linear, example).save(str(path))
        assert origin_of(path) == "PyTorch (TorchScript)"
        program = path.with_suffix(".pt2")
        torch.export.save(torch.export.export(linear, (example,)), program)
    assert origin_of(program) == f"PyTorch {torch.__version__.partition('+')[0]} (torch.export)"
    torch.save(linear.state_dict(), path)
    assert origin_of(path) == "PyTorch's torch.save"


def test_a_pickle(tmp_path: Path) -> None:
    path = tmp_path / "model.pt"
    path.write_bytes(pickle.dumps([1]))
    assert origin_of(path) == "Python's pickle"


@pytest.mark.parametrize(
    "content",
    [
        b"",
        b"P",
        b"PK\x03\x04 cut short",
        b"{}",
        b'{"version": [3, "2", 0]}',
        b"version[#L",
        b"\x08\x08\x12\x07pytorch\x1a\x0513.0:",  # an ONNX graph begins so
        b"\x01\0\0\0\0\0\0\0\x02\0\0\0\0\0\0\0",  # weights of OpenVINO begin with any numbers
        b"\xff" * 64,
        b"<html>",
    ],
)
def test_what_does_not_tell(content: bytes, tmp_path: Path) -> None:
    path = tmp_path / "model"
    path.write_bytes(content)
    assert origin_of(path) is None


def test_an_archive_that_says_it_is_larger_than_any_description_is_not_unpacked(tmp_path: Path) -> None:
    path = tmp_path / "model.pt2"
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("m/archive_format", "pt2")
        archive.writestr("m/models/model.json", b" " * (17 << 20) + b'"torch_version": "2.13.0"')
    assert origin_of(path) == "PyTorch (torch.export)"


def test_no_file(tmp_path: Path) -> None:
    assert origin_of(tmp_path) is None
    assert origin_of(tmp_path / "none") is None
