"""A repository in a local folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from core.errors import RepositoryUnavailable
from core.repository.sources.local import LocalSource
from core.repository.sources.source import Source


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    version = tmp_path / "simple" / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(b"graph")
    (tmp_path / "simple" / "config.pbtxt").write_bytes(b"")
    return tmp_path


def paths(source: LocalSource, model: str = "simple") -> list[str]:
    files = source.files(model)
    assert files is not None
    return [file.path for file in files]


def test_models_and_files(repository: Path) -> None:
    source: Source = LocalSource(repository)
    assert source.location == str(repository)
    assert source.models() == ["simple"]
    files = source.files("simple")
    assert files is not None
    assert [(file.path, file.size) for file in files] == [("1/model.onnx", 5), ("config.pbtxt", 0)]
    assert source.scan() == {"simple": files}
    fetched = source.fetch("simple", files, 1)
    assert fetched.directory.path == repository / "simple"
    fetched.release()
    assert (repository / "simple" / "1" / "model.onnx").read_bytes() == b"graph"


def test_a_file_that_is_replaced_has_another_tag(repository: Path) -> None:
    """Also by one as old and as large, as `mv` and links of mounted volumes do it."""
    model = repository / "simple" / "1" / "model.onnx"
    before = LocalSource(repository).files("simple")
    other = repository / "simple" / "new"
    other.write_bytes(b"other")
    os.utime(other, ns=(model.stat().st_atime_ns, model.stat().st_mtime_ns))
    other.replace(model)
    assert LocalSource(repository).files("simple") != before


def test_an_empty_version_counts(repository: Path) -> None:
    (repository / "simple" / "2").mkdir()
    assert paths(LocalSource(repository)) == ["1/model.onnx", "2/", "config.pbtxt"]


def test_links_are_followed_once(repository: Path) -> None:
    model = repository / "simple"
    (model / "again").symlink_to(model, target_is_directory=True)
    (model / "dangling").symlink_to(model / "nothing")
    (model / "link.txt").symlink_to(model / "1" / "model.onnx")
    assert paths(LocalSource(repository)) == ["1/model.onnx", "config.pbtxt", "link.txt"]


def test_versions_that_are_one_folder_have_its_files_each(repository: Path) -> None:
    model = repository / "simple"
    (model / "2").symlink_to("1")
    (model / "1" / "again").symlink_to(".")
    assert paths(LocalSource(repository)) == ["1/model.onnx", "2/model.onnx", "config.pbtxt"]


@pytest.mark.parametrize("name", ["none", "", ".", "..", "simple/1", "a\0b", "x" * 300])
def test_no_such_model(repository: Path, name: str) -> None:
    assert LocalSource(repository).files(name) is None


def test_no_such_repository(repository: Path) -> None:
    with pytest.raises(RepositoryUnavailable):
        LocalSource(repository / "none").models()
    with pytest.raises(RepositoryUnavailable):
        LocalSource(repository / "none").files("simple")
