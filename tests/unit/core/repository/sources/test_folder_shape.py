"""The shape of a folder that a user uploaded."""

from __future__ import annotations

from collections.abc import Sequence

import pytest

from trident.core.repository.sources import FolderShape, can_be_model, folder_shape


@pytest.mark.parametrize(
    ("paths", "shape"),
    [
        ([], FolderShape.REPOSITORY),
        (["cat/1/model.onnx"], FolderShape.REPOSITORY),
        (["cat/config.pbtxt", "code/inference.py"], FolderShape.REPOSITORY),
        (["readme.md", "code/inference.py"], FolderShape.REPOSITORY),
        (["config.pbtxt", "1/model.onnx"], FolderShape.MODEL),
        (["1/model.onnx"], FolderShape.MODEL),
        (["1/model.savedmodel/saved_model.pb"], FolderShape.MODEL),
        (["1/other.onnx", "config.pbtxt"], FolderShape.MODEL),
        (["1/model.onnx", "model.onnx"], FolderShape.MODEL),
        (["config.pbtxt", "1/model.onnx", "model.onnx"], FolderShape.MODEL),
        (["config.pbtxt"], FolderShape.MODEL),
        (["config.pbtxt", "model.onnx"], FolderShape.FILES),
        (["model.onnx", "model.onnx.data", "code/inference.py"], FolderShape.FILES),
        (["model.onnx", "cat/1/model.onnx"], FolderShape.REPOSITORY),
        (["1/1/model.onnx"], FolderShape.REPOSITORY),
        (["1/config.pbtxt"], FolderShape.REPOSITORY),
        (["other.onnx"], FolderShape.REPOSITORY),
    ],
)
def test_folder_has_a_shape(paths: Sequence[str], shape: FolderShape) -> None:
    assert folder_shape(paths) is shape


@pytest.mark.parametrize(
    ("paths", "can"),
    [
        (["config.pbtxt"], True),
        (["configs/small.pbtxt"], True),
        (["1/model.onnx"], True),
        (["1/"], True),
        (["01/model.onnx"], False),
        (["configs/readme.md"], False),
        (["inference.py", "lib/1.py"], False),
        ([], False),
    ],
)
def test_folder_can_be_a_model_or_not(paths: Sequence[str], can: bool) -> None:
    assert can_be_model(paths) is can
