"""An object of POSIX shared memory."""

from __future__ import annotations

import gc
import os
from pathlib import Path

import pytest

from tests.unit.shared_memory_object import path_of, shared_memory_object
from trident.core.errors import InvalidRequest, RegionFailed
from trident.core.shared_memory.regions import DIRECTORY, SystemMemory, open_object


def content_of(memory: SystemMemory, offset: int, size: int) -> bytes:
    content = bytearray(size)
    memory.read(offset, memoryview(content))
    return bytes(content)


def open_files() -> int:
    gc.collect()  # errors of other tests may still hold some
    return len(os.listdir("/proc/self/fd"))


def test_bytes_are_read_and_written_where_they_lie() -> None:
    with shared_memory_object(100, b"abcdef") as key:
        memory = open_object(key)
        assert content_of(memory, 2, 3) == b"cde"
        memory.write(98, b"yz")
        memory.write(3, memoryview(bytearray(b"XY")))
        memory.write(5, b"")
        assert path_of(key).read_bytes() == b"abcXYf" + bytes(92) + b"yz"
        path_of(key).unlink()  # its client may, at any time
        assert content_of(memory, 98, 2) == b"yz"
        assert memory.view(98, 2) == b"yz"


def test_a_view_is_the_memory_itself() -> None:
    with shared_memory_object(8192, b"abc") as key:
        memory = open_object(key)
        view = memory.view(1, 2)
        path_of(key).write_bytes(b"ABC" + bytes(9000))
        assert view == b"BC"
        view[:] = b"yz"
        assert path_of(key).read_bytes()[:3] == b"Ayz"
        last = memory.view(9002, 1)  # it has grown
        del memory
        gc.collect()
        assert bytes(last) == bytes(1)
        assert view == b"yz"


@pytest.mark.parametrize("key", ["/{}", "{}", "///{}"])
def test_slashes_before_a_key_do_not_matter(key: str) -> None:
    with shared_memory_object(8) as found:
        assert open_object(key.format(found.lstrip("/"))).size == 8


def test_a_shrunken_object_is_an_error_and_does_not_grow_again() -> None:
    with shared_memory_object(100) as key:
        memory = open_object(key)
        os.truncate(path_of(key), 10)
        with pytest.raises(InvalidRequest, match=r"^8 bytes at 4 of .* cannot be read, it has only 10 bytes$"):
            content_of(memory, 4, 8)
        with pytest.raises(InvalidRequest, match=r"^8 bytes at 4 of .* cannot be written, it has only 10 bytes$"):
            memory.write(4, bytes(8))
        with pytest.raises(InvalidRequest, match=r"^8 bytes at 4 of .* cannot be used, it has only 10 bytes$"):
            memory.view(4, 8)
        assert path_of(key).stat().st_size == 10


@pytest.mark.slow
def test_the_descriptor_is_closed_with_the_last_reference() -> None:
    before = open_files()
    with shared_memory_object(8) as key:
        memory = open_object(key)
        read = memory.read
        del memory
        assert open_files() == before + 1
        read(0, memoryview(bytearray(8)))
        del read
        assert open_files() == before


@pytest.mark.slow
@pytest.mark.parametrize(
    "key",
    [
        "/no such object",
        "/../../etc/passwd",
        "/a/b",
        "/proc/self/mem",
        "..",
        ".",
        "/a\0b",
        "/" + "x" * 256,
        "/" + "ä" * 128,
        "/\udcff\ud800",
    ],
)
def test_what_is_no_object_is_refused(key: str) -> None:
    before = open_files()
    with pytest.raises(RegionFailed) as refusal:
        open_object(key)
    assert refusal.value.message == f"Unable to open shared memory region: '{key}'"
    assert refusal.value.hint
    assert open_files() == before


def test_links_folders_and_pipes_are_refused(tmp_path: Path) -> None:
    (tmp_path / "secret").write_bytes(b"x")
    (tmp_path / "link").symlink_to(tmp_path / "secret")
    (tmp_path / "folder").mkdir()
    os.mkfifo(tmp_path / "pipe")
    before = open_files()
    for name in ("link", "folder", "pipe"):
        with pytest.raises(RegionFailed, match=r"^Unable to open shared memory region"):
            open_object(name, str(tmp_path))
    assert open_files() == before
    assert open_object("secret", str(tmp_path)).size == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="only the superuser can open what belongs to others")
def test_the_superuser_opens_no_object_of_another_user(tmp_path: Path) -> None:
    with shared_memory_object(8) as key:
        os.chown(path_of(key), 12345, 12345)
        path_of(key).chmod(0o644)
        with pytest.raises(RegionFailed) as refusal:
            open_object(key)
        assert "belongs to user 12345" in (refusal.value.hint or "")
        path_of(key).chmod(0o666)
        assert open_object(key).size == 8


def test_no_room_is_an_error(monkeypatch: pytest.MonkeyPatch) -> None:
    # A file system without room, which every Linux has: each write fails with ENOSPC.
    full = os.open("/dev/full", os.O_RDWR)
    memory = SystemMemory(full, "/full", (0, 0))
    monkeypatch.setattr(SystemMemory, "size", 100)
    with pytest.raises(RegionFailed, match=r"^unable to write 8 bytes at 0 of .*: No space left on device$") as refusal:
        memory.write(0, bytes(8))
    assert DIRECTORY in (refusal.value.hint or "")
