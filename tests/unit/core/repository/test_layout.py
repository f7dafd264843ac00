"""The layout of a repository: models, configuration files, and the files that identify a backend."""

from __future__ import annotations

from pathlib import Path

import pytest

from trident.core.errors import RepositoryUnavailable
from trident.core.repository.repository import ModelDirectory, config_path, detection_files, scan_repository


def test_scan_finds_directories_and_ignores_files(tmp_path: Path) -> None:
    for name in ("b", "a", ".hidden", "lost+found", "__pycache__"):
        (tmp_path / name).mkdir()
    (tmp_path / "README").touch()
    (tmp_path / "linked").symlink_to(tmp_path / "a", target_is_directory=True)
    found = scan_repository(tmp_path)
    assert [directory.name for directory in found] == ["a", "b", "linked"]
    assert found[0] == ModelDirectory("a", tmp_path / "a")


def test_scan_of_a_missing_directory_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(RepositoryUnavailable, match=r"^repository path is not a valid directory$"):
        scan_repository(tmp_path / "none")


def test_named_configuration_takes_precedence_over_the_plain_one(tmp_path: Path) -> None:
    directory = ModelDirectory("m", tmp_path)
    assert config_path(directory, "fast") is None
    plain = tmp_path / "config.pbtxt"
    plain.touch()
    assert config_path(directory) == plain
    assert config_path(directory, "fast") == plain
    named = tmp_path / "configs" / "fast.pbtxt"
    named.parent.mkdir()
    named.touch()
    assert config_path(directory, "fast") == named
    assert config_path(directory) == plain


def test_detection_files_are_those_of_the_first_sub_directory(tmp_path: Path) -> None:
    directory = ModelDirectory("m", tmp_path)
    assert detection_files(directory) == frozenset()
    for version, name in (("1", "model.onnx"), ("2", "model.py")):
        (tmp_path / version).mkdir()
        (tmp_path / version / name).touch()
    assert detection_files(directory) == {"model.onnx"}
    assert detection_files(ModelDirectory("gone", tmp_path / "gone")) == frozenset()
