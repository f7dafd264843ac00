"""The layout of a repository: candidates, configuration files, and what tells a backend."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.errors import RepositoryUnavailable
from core.repository.layout import ModelDirectory, config_file, detection_files, scan_repository


def test_every_directory_is_a_candidate_and_no_file(tmp_path: Path) -> None:
    for name in ("b", "a", ".hidden"):
        (tmp_path / name).mkdir()
    (tmp_path / "README").touch()
    (tmp_path / "linked").symlink_to(tmp_path / "a", target_is_directory=True)
    found = scan_repository(tmp_path)
    assert [directory.name for directory in found] == [".hidden", "a", "b", "linked"]
    assert found[1] == ModelDirectory("a", tmp_path / "a")


def test_a_path_that_is_no_directory(tmp_path: Path) -> None:
    with pytest.raises(RepositoryUnavailable, match=r"^repository path is not a valid directory$"):
        scan_repository(tmp_path / "none")


def test_a_named_config_goes_before_the_plain_one(tmp_path: Path) -> None:
    directory = ModelDirectory("m", tmp_path)
    assert config_file(directory, "fast") is None
    plain = tmp_path / "config.pbtxt"
    plain.touch()
    assert config_file(directory) == plain
    assert config_file(directory, "fast") == plain
    named = tmp_path / "configs" / "fast.pbtxt"
    named.parent.mkdir()
    named.touch()
    assert config_file(directory, "fast") == named
    assert config_file(directory) == plain


def test_only_the_first_sub_directory_tells_the_backend(tmp_path: Path) -> None:
    directory = ModelDirectory("m", tmp_path)
    assert detection_files(directory) == frozenset()
    for version, name in (("1", "model.onnx"), ("2", "model.py")):
        (tmp_path / version).mkdir()
        (tmp_path / version / name).touch()
    assert detection_files(directory) == {"model.onnx"}
    assert detection_files(ModelDirectory("gone", tmp_path / "gone")) == frozenset()
