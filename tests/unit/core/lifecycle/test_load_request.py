from __future__ import annotations

import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from trident.core.errors import InvalidRequest
from trident.core.lifecycle.load_request import LoadRequest, check_model_name

CONFIG = '{"backend": "onnxruntime", "max_batch_size": 4}'


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path) -> Iterator[Path]:
    """The folder for files, which must be empty at the end."""
    before, tempfile.tempdir = tempfile.tempdir, str(tmp_path)
    yield tmp_path
    tempfile.tempdir = before
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("name", ["...", "..x", "a..1", ".hidden", "a\\b", "ä b", "-"])
def test_names_that_a_folder_can_have_are_accepted(name: str) -> None:
    check_model_name(name)


@pytest.mark.parametrize("name", ["", " ", "\t\n"])
def test_an_empty_name_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        LoadRequest.read(name, {})
    assert caught.value.message == "Model name cannot be empty. Please enter a valid name to deploy."


@pytest.mark.parametrize("name", ["..", "a/b", "../a", "/"])
def test_a_name_with_path_traversal_is_refused(name: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        LoadRequest.read(name, {})
    text = f"invalid model name '{name}', model name must not contain path traversal characters"
    assert caught.value.message == text


def test_a_request_without_parameters_uses_the_repository() -> None:
    with LoadRequest.read("m", {}) as request:
        assert (request.config, request.located) == (None, None)


def test_a_request_may_have_a_configuration_only() -> None:
    with LoadRequest.read("m", {"config": CONFIG}) as request:
        assert (request.config, request.located) == (CONFIG, None)


def test_the_configuration_is_not_parsed_yet() -> None:
    """An error in it is a failure of the model's load, which the index shows."""
    with LoadRequest.read("m", {"config": ""}) as request:
        assert request.config == ""


def test_files_exist_while_the_request_or_a_user_needs_them(temporary: Path) -> None:
    with LoadRequest.read("m", {"config": CONFIG, "file:1/model.onnx": b"graph"}) as request:
        assert request.located is not None
        assert request.located.key.name == "m"
        assert [file.path for file in request.located.files] == ["1/model.onnx"]
        fetched = request.located.source.fetch("m", request.located.files, 1)
    assert (fetched.directory.path / "1" / "model.onnx").read_bytes() == b"graph"
    fetched.release()
    assert list(temporary.iterdir()) == []


def test_files_without_a_configuration_are_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        LoadRequest.read("m", {"file:1/model.onnx": b"graph"})
    assert caught.value.message == "Load parameter 'config' must be specified for model file override"


def test_a_file_outside_the_model_is_refused() -> None:
    with pytest.raises(InvalidRequest) as caught:
        LoadRequest.read("m", {"config": CONFIG, "file:1/../../x": b""})
    assert caught.value.message == (
        "Invalid file parameter 'file:1/../../x' with normalized path '../x' must stay within model directory."
    )
