"""A repository in a local folder."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from trident.core.errors import RepositoryUnavailable
from trident.core.repository.sources import LocalSource, Source


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


def test_source_lists_and_fetches_models(repository: Path) -> None:
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


def test_replaced_file_has_another_tag(repository: Path) -> None:
    """Even if the new file has the same size and time: `mv` and the links of mounted volumes replace files this way."""
    model = repository / "simple" / "1" / "model.onnx"
    before = LocalSource(repository).files("simple")
    other = repository / "simple" / "new"
    other.write_bytes(b"other")
    os.utime(other, ns=(model.stat().st_atime_ns, model.stat().st_mtime_ns))
    other.replace(model)
    assert LocalSource(repository).files("simple") != before


def test_empty_version_is_listed(repository: Path) -> None:
    (repository / "simple" / "2").mkdir()
    assert paths(LocalSource(repository)) == ["1/model.onnx", "2/", "config.pbtxt"]


def test_what_python_compiles_beside_a_model_is_not_of_it(repository: Path) -> None:
    before = paths(LocalSource(repository))
    compiled = repository / "simple" / "1" / "__pycache__"
    compiled.mkdir()
    (compiled / "model.cpython-311.pyc").write_bytes(b"code")
    assert paths(LocalSource(repository)) == before


def test_cycle_of_links_ends(repository: Path) -> None:
    model = repository / "simple"
    (model / "again").symlink_to(model, target_is_directory=True)
    (model / "dangling").symlink_to(model / "nothing")
    (model / "link.txt").symlink_to(model / "1" / "model.onnx")
    assert paths(LocalSource(repository)) == ["1/model.onnx", "config.pbtxt", "link.txt"]


def test_versions_linked_to_one_folder_each_list_its_files(repository: Path) -> None:
    model = repository / "simple"
    (model / "2").symlink_to("1")
    (model / "1" / "again").symlink_to(".")
    assert paths(LocalSource(repository)) == ["1/model.onnx", "2/model.onnx", "config.pbtxt"]


@pytest.mark.parametrize("name", ["none", "", ".", "..", "simple/1", "a\0b", "x" * 300])
def test_unknown_model_has_no_files(repository: Path, name: str) -> None:
    assert LocalSource(repository).files(name) is None


def test_missing_repository_is_unavailable(repository: Path) -> None:
    with pytest.raises(RepositoryUnavailable):
        LocalSource(repository / "none").models()
    with pytest.raises(RepositoryUnavailable):
        LocalSource(repository / "none").files("simple")
