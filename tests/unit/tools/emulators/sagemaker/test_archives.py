"""The archives of SageMaker's models: unpacked, stored, and put in place for the container."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest

from tests.changing_files import found_below
from tests.unit.core.repository.memory_store import MemoryOpener, MemoryStore
from tests.waiting import until
from trident.core.errors import ConfigInvalid, RepositoryUnavailable, ServerError
from trident.tools.emulators.sagemaker.archives import (
    ArchiveStorage,
    CloudArchives,
    LocalArchives,
    ModelArchives,
    unpack,
)
from trident.tools.emulators.sagemaker.emulator import Emulator, EmulatorOptions
from trident.tools.emulators.sagemaker.invocation import ApiError

PLENTY = 1 << 30
Write = Callable[[tarfile.TarFile], None]


def file(name: str, content: bytes = b"x") -> Write:
    def write(tar: tarfile.TarFile) -> None:
        member = tarfile.TarInfo(name)
        member.size = len(content)
        member.mode = 0o6777
        tar.addfile(member, io.BytesIO(content))

    return write


def special(name: str, kind: bytes, target: str = "") -> Write:
    def write(tar: tarfile.TarFile) -> None:
        member = tarfile.TarInfo(name)
        member.type = kind
        member.linkname = target
        tar.addfile(member)

    return write


def symlink(name: str, target: str) -> Write:
    return special(name, tarfile.SYMTYPE, target)


def archived(folder: Path, *members: Write) -> Path:
    path = folder / "model.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for write in members:
            write(tar)
    return path


@pytest.fixture
def target(tmp_path: Path) -> Path:
    folder = tmp_path / "outer" / "target"
    folder.mkdir(parents=True)
    return folder


def everything_around(target: Path) -> list[str]:
    """The files and folders beside the target."""
    return [path.name for path in target.parent.iterdir() if path != target]


def test_folders_files_and_inner_links_are_unpacked_read_only(tmp_path: Path, target: Path) -> None:
    made = archived(
        tmp_path,
        special("./", tarfile.DIRTYPE),
        file("./model/1/model.onnx", b"weights"),
        file("./model/config.pbtxt", b"config"),
        special("./model/empty", tarfile.DIRTYPE),
        symlink("./model/2", "1"),
        symlink("./model/3/model.onnx", "../1/model.onnx"),
        special("./copy.onnx", tarfile.LNKTYPE, "./model/1/model.onnx"),
    )
    unpack(made, target, PLENTY)
    for path in ("model/1/model.onnx", "model/2/model.onnx", "model/3/model.onnx", "copy.onnx"):
        assert (target / path).read_bytes() == b"weights"
    assert (target / "model" / "empty").is_dir()
    assert not [path for path in [target, *target.rglob("*")] if not path.is_symlink() and path.stat().st_mode & 0o7222]


@pytest.mark.parametrize(
    ("members", "text"),
    [
        ([file("../beside")], "'../beside' would be extracted"),
        ([file("a/../../beside")], "outside the destination"),
        ([symlink("a", "/etc")], "'a' is a link to an absolute path"),
        ([symlink("a", "../..")], "outside the destination"),
        ([symlink("a", ".."), file("a/beside")], "outside the destination"),
        ([special("a", tarfile.LNKTYPE, "../../model.tar.gz")], "outside the destination"),
        ([special("pipe", tarfile.FIFOTYPE)], "'pipe' is a special file"),
        ([special("disk", tarfile.BLKTYPE)], "'disk' is a special file"),
        ([file("a\nb/../../c")], r"a\nb/../../c"),
    ],
)
def test_archive_members_outside_the_folder_are_refused(
    tmp_path: Path, target: Path, members: list[Write], text: str
) -> None:
    with pytest.raises(ConfigInvalid) as refusal:
        unpack(archived(tmp_path, *members), target, PLENTY)
    assert text in refusal.value.message
    assert everything_around(target) == []
    assert not os.path.exists("/etc/trident-was-here")


@pytest.mark.parametrize(
    "members",
    [
        [symlink("d/e/s", ".."), symlink("b", "d/e/s/../..")],
        [symlink("b", "s/.."), symlink("s", "."), file("b/beside")],
    ],
)
def test_chained_links_do_not_escape_the_folder(tmp_path: Path, target: Path, members: list[Write]) -> None:
    """They are refused or, by newer Pythons, shortened to the target of each one by itself."""
    try:
        unpack(archived(tmp_path, *members), target, PLENTY)
    except ConfigInvalid:
        pass
    else:
        assert all(path.resolve().is_relative_to(target.resolve()) for path in target.rglob("*"))
    assert everything_around(target) == []


@pytest.mark.parametrize(
    ("most_bytes", "most_members", "text"),
    [(100, 9, "unpacks to more than 100 bytes"), (PLENTY, 1, "more than 1 members")],
)
def test_larger_archives_are_refused_before_they_are_written(
    tmp_path: Path, target: Path, most_bytes: int, most_members: int, text: str
) -> None:
    with pytest.raises(ConfigInvalid, match=text):
        unpack(archived(tmp_path, file("a", bytes(60)), file("b", bytes(41))), target, most_bytes, most_members)
    assert sum(path.stat().st_size for path in target.iterdir()) <= 100


def test_the_size_in_the_header_refuses_a_bomb(tmp_path: Path, target: Path) -> None:
    member = tarfile.TarInfo("zeros")
    member.size = 1 << 40
    (tmp_path / "model.tar.gz").write_bytes(gzip.compress(member.tobuf()))
    with pytest.raises(ConfigInvalid, match="unpacks to more than"):
        unpack(tmp_path / "model.tar.gz", target, PLENTY)


CUT_OFF = gzip.compress(os.urandom(100_000), mtime=0)[:50_000]


@pytest.mark.parametrize(
    "content",
    [b"", b"no archive", gzip.compress(b"no archive either" * 100, mtime=0), CUT_OFF],
    ids=["empty", "text", "not tar", "cut off"],
)
def test_other_files_are_refused(tmp_path: Path, target: Path, content: bytes) -> None:
    (tmp_path / "model.tar.gz").write_bytes(content)
    with pytest.raises(ConfigInvalid) as refusal:
        unpack(tmp_path / "model.tar.gz", target, PLENTY)
    assert "model.tar.gz" in refusal.value.message
    assert "tar -czf" in (refusal.value.hint or "")


CONTENTS = {"a.tar.gz": b"one", "a.tar.gz.md5": b"sum", "sub/b.tar.gz": b"two", "notes.txt": b"text"}
NO_KEYS = (
    "nothing.tar.gz",
    "sub",
    "../outside.tar.gz",
    "sub/../a.tar.gz",
    "./a.tar.gz",
    "/etc/passwd",
    "sub//b.tar.gz",
    "a.tar.gz/",
    "a\0b",
    "a" * 1000,
    "link.tar.gz",
)


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore(CONTENTS, location="memory://bucket/archives")


@pytest.fixture(params=["local", "cloud"])
def storage(request: pytest.FixtureRequest, store: MemoryStore, tmp_path: Path) -> ArchiveStorage:
    if request.param == "cloud":
        return CloudArchives(MemoryOpener(tmp_path / "cache", store), "s3://bucket/archives", threading.Event())
    for key, content in CONTENTS.items():
        path = tmp_path / "archives" / key
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content)
    (tmp_path / "outside.tar.gz").write_bytes(b"not of this endpoint")
    (tmp_path / "archives" / "link.tar.gz").symlink_to("../outside.tar.gz")
    return LocalArchives(tmp_path / "archives")


@pytest.mark.parametrize("key", ["a.tar.gz", "sub/b.tar.gz"])
def test_an_archive_is_on_the_disk_while_it_is_used(storage: ArchiveStorage, key: str) -> None:
    with storage.archive(key) as path:
        assert path.read_bytes() == CONTENTS[key]


@pytest.mark.parametrize("key", NO_KEYS)
def test_an_invalid_key_is_the_callers_error(storage: ArchiveStorage, key: str) -> None:
    with pytest.raises(ApiError) as refusal, storage.archive(key):
        pass
    assert (refusal.value.status, refusal.value.kind) == (400, "ValidationError")


def test_a_prefix_without_archives_is_refused(tmp_path: Path) -> None:
    def refused(contents: dict[str, bytes]) -> ServerError:
        opener = MemoryOpener(tmp_path, MemoryStore(contents, location="memory://bucket/archvies"))
        with pytest.raises(ServerError) as refusal:
            CloudArchives(opener, "s3://bucket/archvies", threading.Event())
        return refusal.value

    assert refused({}).message == "there is nothing in memory://bucket/archvies"
    assert refused({"notes.txt": b""}).message == "there is no .tar.gz archive in memory://bucket/archvies"


def test_failed_fetch_is_a_callers_error_until_the_endpoint_ends(tmp_path: Path, store: MemoryStore) -> None:
    archives = CloudArchives(MemoryOpener(tmp_path, store), "s3://bucket/archives", threading.Event())
    store.listing_faults.append(RepositoryUnavailable("no access"))
    with pytest.raises(ApiError, match="Failed to download model data: no access"), archives.archive("a.tar.gz"):
        pass
    archives.close()
    with pytest.raises(ApiError, match="being deleted"), archives.archive("a.tar.gz"):
        pass


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """With an archive, and a file of another kind."""
    folder = tmp_path / "archives"
    folder.mkdir()
    archived(tmp_path, file("config.pbtxt")).rename(folder / "a.tar.gz")
    (folder / "text.tar.gz").write_text("no archive")
    return folder


@pytest.fixture
def archives(folder: Path, tmp_path: Path) -> ModelArchives:
    (tmp_path / "models").mkdir()
    return ModelArchives(LocalArchives(folder), tmp_path / "models", PLENTY)


@pytest.mark.parametrize(
    ("key", "text"),
    [("b.tar.gz", "there is no archive 'b.tar.gz' in the folder of this"), ("text.tar.gz", "Failed to unpack model")],
)
def test_failed_download_leaves_no_files(archives: ModelArchives, tmp_path: Path, key: str, text: str) -> None:
    with pytest.raises(ApiError, match=text):
        archives.put(key)
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


def test_folder_of_archives_without_multi_model_hints_at_the_option(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / f"{name}.tar.gz").touch()
    emulator = Emulator(EmulatorOptions(model=str(tmp_path), command=(), environment={}), io.StringIO())
    with pytest.raises(ConfigInvalid, match="has archives, and no model") as raised:
        emulator.run(threading.Event())
    assert raised.value.hint == "--multi-model serves each of them"
