from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from trident.core.config.problem import InvalidModelConfig
from trident.core.config.schema import ModelConfig
from trident.core.repository.checksums import check_checksums
from trident.core.repository.repository import ModelDirectory

RIGHT = hashlib.md5(b"graph").hexdigest()


def config(**checksums: str) -> ModelConfig:
    found = ModelConfig()
    agent = found.model_repository_agents.agents.add(name="checksum")
    for key, value in checksums.items():
        agent.parameters[key] = value
    return found


@pytest.fixture
def directory(tmp_path: Path) -> ModelDirectory:
    (tmp_path / "m" / "1").mkdir(parents=True)
    (tmp_path / "m" / "1" / "model.onnx").write_bytes(b"graph")
    (tmp_path / "secret").write_bytes(b"graph")
    return ModelDirectory("m", tmp_path / "m")


def test_files_with_their_md5_are_accepted(directory: ModelDirectory) -> None:
    check_checksums(directory, config(**{"MD5:1/model.onnx": RIGHT, "md5:./1/model.onnx": RIGHT.upper()}))


def test_a_file_of_a_version_is_checked_with_that_version(directory: ModelDirectory) -> None:
    written = config(**{"MD5:2/model.onnx": RIGHT})
    check_checksums(directory, written, without={2})
    with pytest.raises(InvalidModelConfig, match=r"^failed to open text file for read 2/model.onnx: No such file"):
        check_checksums(directory, written, without={1})


@pytest.mark.parametrize(
    ("name", "expected", "text"),
    [
        ("1/model.onnx", "0" * 32, f"Mismatched MD5 hash for file 1/model.onnx, expect: {'0' * 32}, got: {RIGHT}"),
        ("../secret", RIGHT, "file ../secret is outside of the model directory"),
    ],
)
def test_another_file_is_refused(directory: ModelDirectory, name: str, expected: str, text: str) -> None:
    with pytest.raises(InvalidModelConfig) as caught:
        check_checksums(directory, config(**{f"MD5:{name}": expected}))
    assert caught.value.message == text
