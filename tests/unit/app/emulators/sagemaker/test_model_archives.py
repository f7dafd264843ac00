from __future__ import annotations

import gzip
import os
import tarfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.changing_files import found_below
from tests.waiting import until
from trident.app.emulators.sagemaker.archives import LocalArchives, ModelArchives, name_of
from trident.app.emulators.sagemaker.errors import ApiError

PLENTY = 1 << 30


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """`a.tar.gz` and `sub/b.tar.gz`, each with one file that has its name as content, and a file of another kind."""
    folder = tmp_path / "archives"
    (folder / "sub").mkdir(parents=True)
    for key in ("a.tar.gz", "sub/b.tar.gz"):
        content = tmp_path / "config.pbtxt"
        content.write_text(key)
        with tarfile.open(folder / key, "w:gz") as tar:
            tar.add(content, "config.pbtxt")
    (folder / "text.tar.gz").write_text("no archive")
    (tmp_path / "outside.tar.gz").write_bytes((folder / "a.tar.gz").read_bytes())
    return folder


@pytest.fixture
def archives(folder: Path, tmp_path: Path) -> ModelArchives:
    (tmp_path / "models").mkdir()
    return ModelArchives(LocalArchives(folder), tmp_path / "models", PLENTY)


@pytest.mark.parametrize("key", ["a.tar.gz", "sub/b.tar.gz"])
def test_an_archive_is_unpacked_where_the_container_looks_and_removed(
    archives: ModelArchives, tmp_path: Path, key: str
) -> None:
    url = archives.put(key)
    assert url == str(tmp_path / "models" / name_of(key) / "model") == archives.url(key)
    assert Path(url, "config.pbtxt").read_text() == key
    assert key not in url
    archives.remove(key)
    assert os.listdir(tmp_path / "models") == []


def test_a_missing_archive_leaves_nothing(archives: ModelArchives, tmp_path: Path) -> None:
    with pytest.raises(ApiError, match=r"there is no archive 'b.tar.gz' in the folder of this endpoint"):
        archives.put("b.tar.gz")
    assert os.listdir(tmp_path / "models") == []


def test_a_failed_unpacking_leaves_nothing(archives: ModelArchives, tmp_path: Path) -> None:
    with pytest.raises(ApiError, match="Failed to unpack model data"):
        archives.put("text.tar.gz")
    assert os.listdir(tmp_path / "models") == []


def test_closing_stops_an_unpacking_and_removes_its_files(
    archives: ModelArchives, folder: Path, tmp_path: Path
) -> None:
    large = tarfile.TarInfo("model.onnx")
    large.size = 1000 << 20
    zeros = gzip.compress(bytes(1 << 20))
    (folder / "large.tar.gz").write_bytes(gzip.compress(large.tobuf()) + zeros * 1001)
    with ThreadPoolExecutor(1) as pool:
        running = pool.submit(archives.put, "large.tar.gz")
        until(lambda: found_below(tmp_path / "models", "model/model.onnx") or running.done())
        assert not running.done()
        archives.close()
        assert os.listdir(tmp_path / "models") == []
        with pytest.raises(ApiError, match="being deleted"):
            running.result(30)
    with pytest.raises(ApiError, match="being deleted"):
        archives.put("a.tar.gz")
    assert os.listdir(tmp_path / "models") == []
