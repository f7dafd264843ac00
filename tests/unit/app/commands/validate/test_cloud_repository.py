"""The models of a cloud repository on the local disk, from a store in memory."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.core.repository.memory_store import MemoryStore, downloader
from trident.app.commands.validate import CloudRepository, examine
from trident.core.config.problem import Problem
from trident.core.errors import RepositoryUnavailable
from trident.core.repository.cloud_sources import ObjectStoreSource
from trident.core.repository.repository import ModelDirectory, version_directories
from trident.core.repository.sources import Source, SourceOpener, SourceOptions

ALL = b"version_policy { all {} }"
CONTENTS = {
    "both/config.pbtxt": ALL,
    "both/labels.txt": b"cat",
    "both/1/model.onnx": b"one",
    "both/2/model.onnx": b"two",
    "last/1/model.onnx": b"one",
    "last/2/model.onnx": b"two",
    "wrong/config.pbtxt": b"{",
    "wrong/1/model.onnx": b"one",
}


class MemoryOpener(SourceOpener):
    """Opens `store`, whatever the location."""

    def __init__(self, folder: Path, store: MemoryStore) -> None:
        super().__init__(SourceOptions(cache_directory=folder, cache_bytes=0))
        self._source = ObjectStoreSource(store, downloader(folder))

    def open(self, text: str, *, any_layout: bool = False, single_model: str = "") -> Source:
        return self._source


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(CONTENTS)


@pytest.fixture
def repository(tmp_path: Path, store: MemoryStore) -> CloudRepository:
    return CloudRepository(MemoryOpener(tmp_path / "cache", store), "s3://bucket", "")


@pytest.mark.parametrize(("model", "fetched"), [("last", ["last/2/model.onnx"]), ("wrong", [])])
def test_version_that_is_not_selected_is_not_downloaded(
    repository: CloudRepository, store: MemoryStore, model: str, fetched: list[str]
) -> None:
    with repository.directory(model) as directory:
        assert version_directories(directory) == ([1, 2] if model == "last" else [1])
    assert [key for key, _, _ in store.reads if key.endswith(".onnx")] == fetched


def test_problem_is_shown_with_its_path_in_the_storage(repository: CloudRepository, store: MemoryStore) -> None:
    def check(directory: ModelDirectory) -> list[Problem]:
        return [Problem(f"{directory.path}/1", f"cannot read {directory.path}/1/model.onnx", "mend it")]

    store.put("last/2/model.onnx/x", b"a file and a folder")
    report = examine(["s3://bucket/"], check, open_repository=lambda text: repository)
    assert report.models == 3
    assert [(each.path, each.message) for each in report.findings if each.model == "both"] == [
        ("s3://bucket/both/1", "cannot read s3://bucket/both/1/model.onnx")
    ]
    (failed,) = [each for each in report.findings if each.model == "last"]
    assert failed.path == "s3://bucket/last"
    assert failed.message.startswith("model 'last' in memory://bucket cannot be stored")


def test_missing_prefix_is_a_problem_of_the_repository(tmp_path: Path) -> None:
    opener = MemoryOpener(tmp_path, MemoryStore({}, location="s3://bucket/modles"))
    with pytest.raises(RepositoryUnavailable, match=r"^there is nothing in s3://bucket/modles$"):
        CloudRepository(opener, "s3://bucket/modles", "").models()
