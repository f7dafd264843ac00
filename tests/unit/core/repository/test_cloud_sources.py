"""A model repository in an object store."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.core.repository.memory_store import MemoryStore, downloader
from trident.core.errors import RepositoryUnavailable
from trident.core.repository.cloud_sources import ObjectStoreSource
from trident.core.repository.repository import detection_files, version_directories
from trident.core.repository.sources import Fetched, Source, SourceFile
from trident.core.repository.stores.object_store import TransientError

CONTENTS = {
    "readme.txt": b"at the top",
    "simple/config.pbtxt": b"config",
    "simple/labels.txt": b"cat",
    "simple/golden/one.json": b"{}",
    "simple/1/model.onnx": b"one",
    "simple/2/model.onnx": b"two",
    "simple/2/data/weights": b"heavy",
    "simple/old/model.onnx": b"no version",
    "other/1/model.onnx": b"other",
    "simpler/1/model.onnx": b"not simple",
}


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(CONTENTS)


@pytest.fixture
def source(store: MemoryStore, tmp_path: Path) -> ObjectStoreSource:
    return ObjectStoreSource(store, downloader(tmp_path / "cache"))


def fetch(source: Source, model: str, version: int | None) -> Fetched:
    files = source.files(model)
    assert files is not None
    return source.fetch(model, files, version)


def on_disk(fetched: Fetched) -> list[str]:
    path = fetched.directory.path
    return sorted(str(file.relative_to(path)) for file in path.rglob("*") if file.is_file())


def test_scan_takes_one_listing(source: ObjectStoreSource, store: MemoryStore) -> None:
    found = source.scan()
    assert store.listings == [""]
    assert {model: len(files) for model, files in found.items()} == {"simple": 7, "other": 1, "simpler": 1}
    assert found["other"] == (SourceFile("1/model.onnx", 5, "1"),)
    assert source.models() == ["other", "simple", "simpler"]
    assert source.files("simple") == found["simple"]
    assert source.files("none") is None


@pytest.mark.parametrize("name", ["", ".", "..", "simple/1", "a\0b"])
def test_impossible_name_has_no_files(source: ObjectStoreSource, store: MemoryStore, name: str) -> None:
    assert source.files(name) is None
    assert store.listings == []


def test_directory_lists_undownloaded_versions(source: ObjectStoreSource) -> None:
    directory = fetch(source, "simple", None).directory
    assert version_directories(directory) == [1, 2]
    assert detection_files(directory) == {"model.onnx"}
    assert directory.names_in("2") == {"model.onnx", "data"}
    assert directory.path.name == directory.name == "simple"


def test_released_model_can_be_evicted(store: MemoryStore, tmp_path: Path) -> None:
    over = downloader(tmp_path, max_bytes=1)
    fetched = fetch(ObjectStoreSource(store, over), "other", 1)
    over.cache.trim()
    assert on_disk(fetched) == ["1/model.onnx"]
    fetched.release()
    fetched.release()
    over.cache.trim()
    assert not fetched.directory.path.exists()


def test_fetch_of_a_changed_file_is_refused(source: ObjectStoreSource, store: MemoryStore) -> None:
    files = source.files("other")
    assert files is not None
    store.put("other/1/model.onnx", b"newer")
    assert source.scan()["other"] != files
    with pytest.raises(RepositoryUnavailable, match="has changed since it was listed") as refused:
        source.fetch("other", files, 1)
    assert refused.value.hint == "list the repository again"


def test_folder_markers_are_skipped_except_for_empty_folders(store: MemoryStore, source: ObjectStoreSource) -> None:
    """A folder marker is an empty object whose name ends with a slash."""
    for key in ("marked/", "marked/1/", "marked/2/", "marked/2/model.onnx", "empty/"):
        store.put(key, b"x" if key.endswith("x") else b"")
    found = source.scan()
    assert [file.path for file in found["marked"]] == ["1/", "2/model.onnx"]
    assert found["empty"] == source.files("empty") == ()
    fetched = source.fetch("marked", found["marked"], 1)
    assert (fetched.directory.path / "1").is_dir()
    assert version_directories(fetched.directory) == [1, 2]
    assert on_disk(source.fetch("empty", (), None)) == []


@pytest.mark.parametrize(
    "path", ["../../escaped", "/escaped", "1//model.onnx", "1/./x", "x" * 256, "a\0b", "config.pbtxt/x", "1/"]
)
def test_bad_file_name_fails_only_its_model(
    source: ObjectStoreSource, store: MemoryStore, tmp_path: Path, path: str
) -> None:
    store.put("simple/1", b"both a file and a folder")
    store.put(f"simple/{path}", b"")
    files = source.scan()["simple"]
    with pytest.raises(RepositoryUnavailable, match="model 'simple' in memory://bucket cannot be stored: '"):
        source.fetch("simple", files, 1)
    assert on_disk(fetch(source, "other", 1)) == ["1/model.onnx"]
    assert not list(tmp_path.rglob("escaped"))
    assert store.reads == [("other/1/model.onnx", 0, 5)]


def test_bad_model_name_is_skipped_and_logged_once(
    source: ObjectStoreSource, store: MemoryStore, caplog: pytest.LogCaptureFixture
) -> None:
    for name in ("..", ".", "", "x" * 256):
        store.put(f"{name}/1/model.onnx", b"bad")
    assert sorted(source.scan()) == ["other", "simple", "simpler"]
    assert len(caplog.messages) == 4
    assert source.models() == ["other", "simple", "simpler"]
    assert len(caplog.messages) == 4
    with pytest.raises(RepositoryUnavailable, match="cannot be stored"):
        source.fetch("..", (SourceFile("1/model.onnx", 3, "1"),), 1)


def test_listing_is_retried(source: ObjectStoreSource, store: MemoryStore) -> None:
    store.listing_faults.extend([TransientError("503")] * 2)
    assert "simple" in source.scan()
    store.listing_faults.extend([TransientError("503")] * 3)
    with pytest.raises(RepositoryUnavailable, match="failed to list memory://bucket in 3 attempts: 503"):
        source.files("simple")
    store.listing_faults.append(RepositoryUnavailable("access refused"))
    with pytest.raises(RepositoryUnavailable, match="access refused"):
        source.models()


HUB = ("config.json", "tokenizer.json", "1_Pooling/config.json", "onnx/model.onnx", "onnx/model.onnx_data")
UNUSED = ("pytorch_model.bin", "model-00001-of-00002.safetensors", "onnx/model_quantized.onnx", "openvino/a.xml")


@pytest.mark.parametrize("more", [(), ("config.pbtxt",), ("model.py",)], ids=["as it is", "configured", "in Python"])
def test_unused_files_of_a_hub_folder_are_not_downloaded(tmp_path: Path, more: tuple[str, ...]) -> None:
    store = MemoryStore({f"hub/{name}": name.encode() for name in (*HUB, *UNUSED, *more)})
    found = on_disk(fetch(ObjectStoreSource(store, downloader(tmp_path)), "hub", 1))
    assert found == sorted((*HUB, *more, *(UNUSED if more else ())))
