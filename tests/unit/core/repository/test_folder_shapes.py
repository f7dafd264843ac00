"""Folders of any shape, told apart by their files."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import pytest

from tests.unit.core.repository.memory_store import MemoryStore, downloader
from trident.core.errors import RepositoryUnavailable
from trident.core.repository.cloud_sources import ObjectStoreSource
from trident.core.repository.sources import (
    AnyLayoutSource,
    FolderShape,
    LocalSource,
    SourceOpener,
    SourceOptions,
    folder_shape,
)


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


def local(root: Path) -> AnyLayoutSource:
    return AnyLayoutSource(LocalSource(root.parent), root.name, LocalSource(root))


def write(root: Path, files: dict[str, str]) -> Path:
    for path, text in files.items():
        (root / path).parent.mkdir(parents=True, exist_ok=True)
        (root / path).write_text(text)
    return root


@pytest.mark.parametrize(
    ("text", "name"),
    [("", "model"), ('name: "cat"', "cat"), ('name: "../cat"', "model"), ("name: 17 }", "model")],
)
def test_single_model_takes_the_name_of_its_configuration(tmp_path: Path, text: str, name: str) -> None:
    root = write(tmp_path / "root", {"config.pbtxt": text, "1/model.onnx": "graph", "2/model.onnx": "graph"})
    source = local(root)
    assert source.models() == [name]
    files = source.files(name)
    assert files is not None
    assert [file.path for file in files] == ["1/model.onnx", "2/model.onnx", "config.pbtxt"]
    fetched = source.fetch(name, files, 2)
    assert (fetched.directory.name, fetched.directory.path) == (name, root)


def test_bare_files_become_version_1_except_those_of_the_model(tmp_path: Path) -> None:
    listed = {"model.onnx": "graph", "model.onnx.data": "weights", "labels.txt": "a", "golden/1.json": "{}"}
    root = write(tmp_path / "root", {**listed, "config.pbtxt": ""})
    source = local(root)
    files = source.files("model")
    assert files is not None
    assert [file.path for file in files] == [
        "1/model.onnx",
        "1/model.onnx.data",
        "config.pbtxt",
        "golden/1.json",
        "labels.txt",
    ]
    fetched = source.fetch("model", files, 1)
    around = fetched.directory.path
    assert all((around / file.path).is_file() for file in files)
    fetched.release()
    assert not around.exists()
    assert {path.name for path in root.iterdir()} == {"config.pbtxt", *(name.partition("/")[0] for name in listed)}


def test_folders_that_cannot_be_models_are_ignored(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = write(
        tmp_path / "root", {"cat/1/model.onnx": "", "code/inference.py": "", ".git/HEAD": "", "__MACOSX/._1": ""}
    )
    (root / "empty").mkdir()
    source = local(root)
    caplog.set_level("INFO", "trident.repository")
    for _ in range(2):
        assert list(source.scan()) == ["cat"]
    said = [record.getMessage().split("'")[1] for record in caplog.records]
    assert said == [".git", "__MACOSX", "code", "empty"]


def test_required_folder_without_a_model_is_an_error(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    assert local(root).scan() == {}
    source = AnyLayoutSource(LocalSource(root.parent), root.name, LocalSource(root), required=True)
    with pytest.raises(RepositoryUnavailable, match=rf"^there is no model in {root}: it is empty$") as empty:
        source.scan()
    assert empty.value.hint == "a model repository, the folder of one model, or a file model.onnx"
    write(root, {"readme.md": "", "notes.txt": ""})
    with pytest.raises(RepositoryUnavailable, match=r": it holds 'notes\.txt', 'readme\.md'$"):
        source.scan()
    write(root, {f"{n:02}": "" for n in range(10)})
    with pytest.raises(RepositoryUnavailable, match=r": it holds '00', .*, '09' …$"):
        source.scan()
    write(root, {"model.onnx": ""})
    assert list(local(root).scan()) == ["model"]


def test_shape_is_decided_once_the_folder_has_content(tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    source = local(root)
    assert source.models() == []
    write(root, {"model.onnx": ""})
    assert source.models() == ["model"]
    write(root, {"cat/1/model.onnx": ""})
    assert source.models() == ["model"]


def test_prefix_in_an_object_store_can_be_one_model(tmp_path: Path) -> None:
    contents = {"root/config.pbtxt": b'name: "cat"', "root/1/model.onnx": b"old", "root/2/model.onnx": b"new"}
    store = MemoryStore(contents, location="memory://bucket/deep")
    fetching = downloader(tmp_path / "cache")
    itself = ObjectStoreSource(MemoryStore({}, location="memory://bucket/deep/root"), fetching)
    source = AnyLayoutSource(ObjectStoreSource(store, fetching), "root", itself)
    assert source.location == "memory://bucket/deep/root"
    assert source.models() == ["cat"]
    files = source.files("cat")
    assert files is not None
    fetched = source.fetch("cat", files, 2)
    assert fetched.directory.name == "cat"
    assert (fetched.directory.path / "2" / "model.onnx").read_bytes() == b"new"
    assert not (fetched.directory.path / "1").exists()
    fetched.release()


def test_opener_detects_a_single_model_from_its_parent_folder(tmp_path: Path) -> None:
    opener = SourceOpener(SourceOptions(cache_directory=tmp_path / "cache", cache_bytes=0))
    write(tmp_path / "root", {"model.onnx": ""})
    assert opener.open(str(tmp_path / "root")).models() == []
    assert opener.open(f"{tmp_path / 'root'}/", any_layout=True).models() == ["model"]
    assert isinstance(opener.open("/", any_layout=True), LocalSource)
    assert isinstance(opener.open("gs://bucket", any_layout=True), ObjectStoreSource)
    placed = opener.open("gs://bucket/deep/root", any_layout=True)
    assert isinstance(placed, AnyLayoutSource)
    assert placed.location == "gs://bucket/deep/root"
