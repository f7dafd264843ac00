"""The configuration file of a model directory."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from tests.unit.core.repository.written_model import COMPLETE, model_with_versions, write
from trident.core.config.problem import InvalidModelConfig
from trident.core.config.schema import ModelConfig
from trident.core.errors import ModelNotFound
from trident.core.repository.config import LARGEST_CONFIG, read_config
from trident.core.repository.repository import ModelDirectory


@pytest.fixture
def directory(tmp_path: Path) -> ModelDirectory:
    return model_with_versions(tmp_path / "m", 1)


def test_named_configuration_takes_precedence(directory: ModelDirectory) -> None:
    write(directory, COMPLETE)
    write(directory, COMPLETE.replace("8", "16"), "configs/big.pbtxt")
    assert read_config(directory, config_name="big").max_batch_size == 16
    assert read_config(directory, config_name="other").max_batch_size == 8


def test_missing_file_gives_an_empty_configuration(directory: ModelDirectory) -> None:
    assert read_config(directory) == ModelConfig()


def test_missing_required_file_is_an_error(directory: ModelDirectory, caplog: pytest.LogCaptureFixture) -> None:
    with pytest.raises(ModelNotFound) as caught:
        read_config(directory, required=True)
    assert caught.value.message == "model configuration is not provided for model 'm'"
    missing = directory.path / "config.pbtxt"
    assert caplog.messages == [f"failed to open text file for read {missing}: No such file or directory"]


def test_renamed_directory_overrides_the_name(tmp_path: Path) -> None:
    model = model_with_versions(tmp_path / "m", 1)
    write(model, 'name: "other"')
    assert read_config(ModelDirectory("cat", model.path, is_renamed=True)).name == "cat"


@pytest.mark.parametrize("content", [b"max_batch_size: -", b"\xff\xfe"])
def test_unparsable_file_is_an_invalid_configuration(directory: ModelDirectory, content: bytes) -> None:
    write(directory, content)
    with pytest.raises(InvalidModelConfig, match=r"^failed to read text proto from .*config.pbtxt: "):
        read_config(directory)


def test_folder_in_place_of_the_file_is_refused(directory: ModelDirectory) -> None:
    (directory.path / "config.pbtxt").mkdir()
    with pytest.raises(InvalidModelConfig, match=r"config.pbtxt: it is not a regular file$"):
        read_config(directory)


def test_file_beyond_the_largest_size_is_refused(directory: ModelDirectory) -> None:
    write(directory, "")
    os.truncate(directory.path / "config.pbtxt", LARGEST_CONFIG + 1)
    with pytest.raises(InvalidModelConfig, match=r"it has 8388609 bytes, a model configuration may have 8388608$"):
        read_config(directory)
