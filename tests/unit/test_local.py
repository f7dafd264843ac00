"""A repository in a local folder."""

from __future__ import annotations

from pathlib import Path

import pytest

from core.errors import RepositoryUnavailable
from core.repository.local import LocalSource
from core.repository.source import Source


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    version = tmp_path / "simple" / "1"
    version.mkdir(parents=True)
    (version / "model.onnx").write_bytes(b"graph")
    (tmp_path / "simple" / "config.pbtxt").write_bytes(b"")
    return tmp_path


def test_models_files_and_contents(repository: Path) -> None:
    source: Source = LocalSource(repository)
    assert source.location == str(repository)
    assert source.models() == ["simple"]
    files = source.files("simple")
    assert [(file.path, file.size) for file in files] == [("1/model.onnx", 5), ("config.pbtxt", 0)]
    assert files[0].modified_ns == (repository / "simple" / "1" / "model.onnx").stat().st_mtime_ns
    assert source.read("simple", "1/model.onnx") == b"graph"
    assert source.local_directory("simple").path == repository / "simple"


def test_links_are_followed_once(repository: Path) -> None:
    model = repository / "simple"
    (model / "again").symlink_to(model, target_is_directory=True)
    (model / "dangling").symlink_to(model / "nothing")
    (model / "link.txt").symlink_to(model / "1" / "model.onnx")
    paths = [file.path for file in LocalSource(repository).files("simple")]
    assert paths == ["1/model.onnx", "config.pbtxt", "link.txt"]


def test_what_is_not_there(repository: Path) -> None:
    assert LocalSource(repository).files("none") == []
    with pytest.raises(RepositoryUnavailable, match="No such file or directory"):
        LocalSource(repository).read("simple", "2/model.onnx")
    with pytest.raises(RepositoryUnavailable):
        LocalSource(repository / "none").models()
