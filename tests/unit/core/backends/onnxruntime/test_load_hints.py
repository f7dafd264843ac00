"""The cures for model files that ONNX Runtime does not load, with texts that it really produces."""

from __future__ import annotations

import os
from collections.abc import Callable
from pathlib import Path

import onnx
import pytest

from tests.unit import onnx_models
from tests.unit.backend_serving import config_of
from trident.core.backends.onnxruntime.backend import OnnxRuntimeBackend
from trident.core.backends.onnxruntime.session import load_hint
from trident.core.errors import ModelLoadFailed


def too_new(part: str) -> onnx.ModelProto:
    model = onnx_models.add_sub()
    if part == "IR":
        model.ir_version = 99
    else:
        model.opset_import[0].version = 99
    return model


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        (b"version https://git-lfs.github.com/spec/v1\noid sha256:1\n", "Git LFS pointer"),
        (b"", "the file is empty"),
        (onnx_models.slow().SerializeToString()[:50_000], "the file (50000 bytes) is not an ONNX model, or incomplete"),
        (too_new("IR").SerializeToString(), "the model has IR version 99, and ONNX Runtime "),
        (too_new("opset").SerializeToString(), "the model has opset 99 of ai.onnx, and ONNX Runtime "),
    ],
    ids=["pointer", "empty", "incomplete", "IR version", "opset"],
)
def test_a_file_that_does_not_load_gets_its_cure(content: bytes, hint: str, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(ModelLoadFailed) as caught:
        OnnxRuntimeBackend().inspect(tmp_path, config_of(""))
    assert hint in (caught.value.hint or "")


def test_a_forbidden_file_is_named() -> None:
    text = "[ONNXRuntimeError] : 1 : FAIL : Load model from /m/1/model.onnx failed:system error number 13"
    assert "chmod -R a+rX /m/1" in (load_hint(text, Path("/m/1/model.onnx"), "1.31.1") or "")


@pytest.fixture
def weights(tmp_path: Path) -> Path:
    """The file with the weights of a model, which is beside it in its version folder."""
    version = onnx_models.write_version(onnx_models.slow(), tmp_path, "model")
    model = onnx.load(version / "model.onnx")
    onnx.save(model, version / "model.onnx", save_as_external_data=True, location="weights", size_threshold=0)
    OnnxRuntimeBackend().inspect(version, config_of(""))
    return version / "weights"


def move_out(file: Path, into: str) -> None:
    """Leave a link to a file that was moved; or to nothing, if it was not."""
    target = file.parent.parent / into
    file.rename(file.parent.parent / "moved")
    file.symlink_to(target)


@pytest.mark.parametrize(
    ("damage", "hint"),
    [
        (Path.unlink, "'weights', which is missing: copy the file "),
        (lambda file: os.truncate(file, 1000), "'weights', which was cut: it has 1000 of at least "),
        (lambda file: os.truncate(file, 0), "'weights': the file is empty"),
        (lambda file: move_out(file, "moved"), "/moved: replace the link by the file"),
        (lambda file: move_out(file, "gone"), "/gone, which is not there: copy the file "),
        (lambda file: (file.unlink(), file.mkdir()), "'weights', which is not a file"),
    ],
    ids=["missing", "cut", "empty", "link out", "dangling link", "folder"],
)
def test_weights_in_another_file_that_cannot_be_read_get_their_cure(
    damage: Callable[[Path], object], hint: str, weights: Path
) -> None:
    damage(weights)
    with pytest.raises(ModelLoadFailed) as caught:
        OnnxRuntimeBackend().inspect(weights.parent, config_of(""))
    assert hint in (caught.value.hint or "")


def test_weights_that_may_not_be_read_are_named(weights: Path) -> None:
    text = "[ONNXRuntimeError] : 1 : FAIL : SystemError : 13"  # all that ONNX Runtime says
    hint = load_hint(text, weights.parent / "model.onnx", "1", lambda file, mode: file != weights)
    assert f"may not read: chmod a+r {weights}" in (hint or "")


def test_another_failure_has_no_hint(tmp_path: Path) -> None:
    path = onnx_models.write(onnx_models.add_sub(), tmp_path / "model.onnx")
    assert load_hint("Fatal error: Mine is not a registered function/op", path, "1.31.1") is None
