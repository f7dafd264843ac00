"""The layout of the platform's model directory: its models and the default one."""

from __future__ import annotations

from pathlib import Path

import pytest

from trident.adapters.sagemaker.layout import Layout, read_layout
from trident.core.errors import ConfigInvalid


def write(root: Path, *paths: str) -> str:
    root.mkdir(exist_ok=True)
    for path in paths:
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).touch()
    return str(root)


@pytest.mark.parametrize(
    ("paths", "name"),
    [
        (["cat/config.pbtxt", "cat/1/model.onnx"], "cat"),
        (["cat/1/model.onnx", "code/inference.py", "code/requirements.txt", "readme.md"], "cat"),
        (["model.onnx"], "model"),
        (["1/model.onnx"], "model"),
        (["config.pbtxt", "1/model.onnx"], "model"),
        (["config.pbtxt", "model.onnx", "code/inference.py"], "model"),
    ],
)
def test_the_only_model_is_the_default(tmp_path: Path, paths: list[str], name: str) -> None:
    root = write(tmp_path / "model", *paths)
    assert read_layout(root) == read_layout(root, name) == Layout((name,), name)


def test_one_of_several_models_must_be_named(tmp_path: Path) -> None:
    root = write(tmp_path / "model", "cat/1/model.onnx", "dog/config.pbtxt")
    assert read_layout(root, "dog") == Layout(("cat", "dog"), "dog")
    with pytest.raises(ConfigInvalid, match="holds several models: cat, dog") as refusal:
        read_layout(root)
    assert refusal.value.hint == "set SAGEMAKER_TRITON_DEFAULT_MODEL_NAME to the model that /invocations runs"
    with pytest.raises(
        ConfigInvalid, match="SAGEMAKER_TRITON_DEFAULT_MODEL_NAME is 'cow', which is not a model in"
    ) as no:
        read_layout(root, "cow")
    assert no.value.hint == "the models are: cat, dog"


def test_a_folder_without_a_model_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigInvalid, match="is not a directory"):
        read_layout(str(tmp_path / "model"))
    root = write(tmp_path / "model")
    with pytest.raises(ConfigInvalid, match="it is empty"):
        read_layout(root)
    write(tmp_path / "model", "code/inference.py", "resnet.onnx")
    with pytest.raises(ConfigInvalid, match=r"there is no model in .*: it holds 'code', 'resnet\.onnx'") as refusal:
        read_layout(root)
    assert "model.onnx" in (refusal.value.hint or "")


def test_reading_the_layout_writes_nothing(tmp_path: Path) -> None:
    root = tmp_path / "model"
    write(root, "model.onnx", "config.pbtxt")
    read_layout(str(root))
    assert sorted(path.name for path in root.iterdir()) == ["config.pbtxt", "model.onnx"]
