"""Shared memory between processes: its bounds, its seals, when borrowed memory is given back."""

from __future__ import annotations

import fcntl
import gc
import mmap
import os
import resource
import subprocess
import sys
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from core.errors import OutOfMemory
from core.remote.memory.page_allocator import PAGE
from core.remote.memory.shared_memory_block import SharedMemoryBlock
from tests.project import ROOT

SIZE = 16 * PAGE
NAME = "memfd:trident-arena"


@pytest.fixture
def arena() -> Iterator[SharedMemoryBlock]:
    arena = SharedMemoryBlock.create(SIZE)
    yield arena
    arena.close()


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def descriptors() -> int:
    """How many of this process are arenas; a mapping has one too."""
    links = []
    for path in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the one that lists them, and those of other threads
            links.append(os.readlink(path))
    return sum(NAME in link for link in links)


def memfd(size: int, seals: int = fcntl.F_SEAL_SHRINK) -> int:
    descriptor = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


# --- its life


def test_another_process_sees_the_same_bytes(arena: SharedMemoryBlock) -> None:
    arena.view(PAGE, 4)[:] = [1, 2, 3, 4]
    program = """
import sys
from core.remote.memory.shared_memory_block import SharedMemoryBlock
arena = SharedMemoryBlock.attach(int(sys.argv[1]))
arena.view(8192, 4)[:] = arena.view(4096, 4)[::-1]
"""
    command = [sys.executable, "-c", program, str(arena.descriptor)]
    subprocess.run(command, cwd=ROOT, pass_fds=[arena.descriptor], check=True, timeout=60)
    assert arena.view(2 * PAGE, 4).tolist() == [4, 3, 2, 1]


def test_both_ends_see_the_same_bytes_and_close_by_themselves(arena: SharedMemoryBlock) -> None:
    descriptor = os.dup(arena.descriptor)
    other = SharedMemoryBlock.attach(descriptor, SIZE)
    assert (other.size, other.descriptor) == (SIZE, descriptor)
    arena.view(0, 3)[:] = 7
    assert other.view(0, 4).tolist() == [7, 7, 7, 0]
    other.close()
    assert not is_open(descriptor)
    assert arena.view(0, 3).tolist() == [7, 7, 7]


def test_the_size_is_an_even_number_of_pages_and_never_more_than_asked_for() -> None:
    for size, given in ((2 * PAGE, 2 * PAGE), (4 * PAGE - 1, 2 * PAGE), (5 * PAGE, 4 * PAGE)):
        arena = SharedMemoryBlock.create(size)
        assert arena.size == os.fstat(arena.descriptor).st_size == given
        arena.close()


def test_nobody_can_make_it_shorter_or_longer(arena: SharedMemoryBlock) -> None:
    for size in (0, SIZE - PAGE, SIZE + PAGE):
        with pytest.raises(PermissionError):
            os.ftruncate(arena.descriptor, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(arena.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_no_program_that_is_started_inherits_it(arena: SharedMemoryBlock) -> None:
    assert not os.get_inheritable(arena.descriptor)


def test_memory_is_given_back_with_the_last_view() -> None:
    def mappings() -> int:
        return Path("/proc/self/maps").read_text().count(NAME)

    gc.collect()
    before = mappings(), descriptors()
    arena = SharedMemoryBlock.create(SIZE)
    view = arena.view(0, 4)
    view[:] = 9
    arena.close()
    arena.close()
    assert arena.descriptor == -1
    assert mappings() == before[0] + 1
    assert view.tolist() == [9, 9, 9, 9]
    del view
    assert (mappings(), descriptors()) == before


def test_a_closed_arena_has_no_memory(arena: SharedMemoryBlock) -> None:
    view = arena.view(0, 4)
    arena.close()
    assert arena.offset_of(view) is None
    with pytest.raises(ValueError, match="4 bytes at 0 of an arena that is closed"):
        arena.view(0, 4)
    with pytest.raises(ValueError, match="is closed"):
        arena.borrow(0, 4, lambda: None)


@pytest.mark.parametrize("size", [-1, 0, 2 * PAGE - 1, 1 << 62, 1 << 70])
def test_a_size_that_cannot_be_names_the_option(size: int) -> None:
    with pytest.raises(OutOfMemory, match="--http-worker-memory-bytes"):
        SharedMemoryBlock.create(size)


def test_memory_that_the_system_refuses_names_the_option_and_leaves_nothing() -> None:
    gc.collect()
    before = descriptors()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, limits[1]))
    try:
        with pytest.raises(OutOfMemory, match=r"File too large .*--http-worker-memory-bytes"):
            SharedMemoryBlock.create(2 << 30)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert descriptors() == before


# --- what is refused


def refused(descriptor: int, match: str, maximum: int = 1 << 20) -> None:
    """Checks that it is refused, and closed."""
    with pytest.raises(ValueError, match=match):
        SharedMemoryBlock.attach(descriptor, maximum)
    assert not is_open(descriptor)


def test_what_can_shrink_is_refused() -> None:
    refused(memfd(SIZE, 0), "sealed against shrinking")
    refused(memfd(SIZE, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL), "sealed against shrinking")
    refused(os.memfd_create("test"), "sealed against shrinking")


def test_what_is_no_memory_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes(bytes(SIZE))
    refused(os.open(path, os.O_RDWR), "must be a memfd|sealed against shrinking")
    refused(os.open(tmp_path, os.O_RDONLY), "must be a memfd|sealed against shrinking")
    refused(os.open("/dev/null", os.O_RDWR), "must be a memfd")
    reading, writing = os.pipe()
    refused(reading, "must be a memfd")
    os.close(writing)
    refused(reading, "must be a memfd: Bad file descriptor")


@pytest.mark.parametrize("size", [0, 1, PAGE, 3 * PAGE, SIZE - 1, SIZE + 2 * PAGE])
def test_other_sizes_are_refused(size: int) -> None:
    refused(memfd(size), f"memory to share of {size} bytes", maximum=SIZE)


def test_memory_that_cannot_be_written_is_refused() -> None:
    refused(memfd(SIZE, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE), "cannot be mapped")
    descriptor = memfd(SIZE)
    read_only = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY)
    os.close(descriptor)
    refused(read_only, "cannot be mapped")


# --- views


def test_a_view_is_writable_and_lies_where_it_was_asked_for(arena: SharedMemoryBlock) -> None:
    arena.view(0, SIZE)[:] = np.arange(SIZE) % 251
    assert arena.view(PAGE + 3, 4).tolist() == [(PAGE + 3 + n) % 251 for n in range(4)]
    assert arena.borrow(PAGE + 3, 4, lambda: None).tolist() == [(PAGE + 3 + n) % 251 for n in range(4)]
    arena.borrow(0, 1, lambda: None)[0] = 200
    assert arena.view(0, 1)[0] == 200
    for offset in (0, SIZE):
        assert arena.view(offset, 0).size == 0
        assert arena.borrow(offset, 0, lambda: None).size == 0


@pytest.mark.parametrize(
    ("offset", "size"), [(-1, 1), (-PAGE, PAGE), (0, -1), (0, SIZE + 1), (SIZE, 1), (1, SIZE), (1 << 70, 1), (8, -4)]
)
def test_nothing_outside_is_shown(arena: SharedMemoryBlock, offset: int, size: int) -> None:
    def never() -> None:
        raise AssertionError

    for ask in (lambda: arena.view(offset, size), lambda: arena.borrow(offset, size, never)):
        with pytest.raises(ValueError, match=f"{size} bytes at {offset} of an arena that has {SIZE}"):
            ask()


def shapes_of(array: Any) -> list[Any]:
    """What people make of a borrowed array, and what goes on using its memory."""
    return [
        array,
        array[3:9],
        array.view(np.float32).reshape(2, -1)[1],
        array[::2],
        memoryview(array)[4:],
        np.frombuffer(array, np.int64, 2),
        np.frombuffer(memoryview(array)[8:], np.int16),
        array.view(np.int32).reshape(4, 4).T,
    ]


@pytest.mark.parametrize("which", range(8))
def test_borrowed_memory_is_given_back_with_the_last_view_of_it(arena: SharedMemoryBlock, which: int) -> None:
    ended: list[int] = []
    array = arena.borrow(PAGE, 64, lambda: ended.append(PAGE))
    kept = shapes_of(array)[which]
    del array
    gc.collect()
    assert ended == []
    inner = memoryview(kept)[:1]
    del kept
    assert ended == []
    del inner
    assert ended == [PAGE]


def test_each_borrowing_ends_by_itself(arena: SharedMemoryBlock) -> None:
    ended: list[str] = []
    first = arena.borrow(0, 64, lambda: ended.append("first"))
    second = arena.borrow(0, 64, lambda: ended.append("second"))
    other = arena.view(0, 64)
    arena.close()
    del first
    assert ended == ["first"]
    assert other.tolist() == second.tolist()
    del second
    assert ended == ["first", "second"]


def test_borrowed_memory_in_a_cycle_is_given_back_by_the_garbage_collector(arena: SharedMemoryBlock) -> None:
    ended: list[int] = []
    cycle: list[Any] = [arena.borrow(0, 64, lambda: ended.append(0))]
    cycle.append(cycle)
    gc.collect()
    assert ended == []
    del cycle
    gc.collect()
    assert ended == [0]


# --- offsets


def test_the_offset_of_what_lies_in_it(arena: SharedMemoryBlock) -> None:
    whole = arena.view(0, SIZE)
    read_only = arena.view(PAGE, 64)
    read_only.flags.writeable = False
    for buffer, offset in (
        (whole, 0),
        (whole[-1:], SIZE - 1),
        (arena.view(PAGE, 64).view(np.float32).reshape(2, 8), PAGE),
        (arena.view(PAGE, 64).view(np.float16)[5:], PAGE + 10),
        (arena.view(PAGE, 64).view(np.bool_), PAGE),
        (arena.borrow(PAGE, 64, lambda: None)[8:], PAGE + 8),
        (memoryview(whole)[PAGE + 1 :], PAGE + 1),
        (memoryview(whole)[PAGE + 1 :].toreadonly(), PAGE + 1),
        (arena.view(PAGE, 64).view(np.int32).data, PAGE),
        (read_only, PAGE),
        (read_only.view(np.int32).reshape(4, 4), PAGE),
    ):
        assert arena.offset_of(buffer) == offset


def test_what_lies_elsewhere_is_empty_or_has_gaps_has_no_offset(arena: SharedMemoryBlock) -> None:
    another = SharedMemoryBlock.create(SIZE)
    before_and_behind = mmap.mmap(-1, PAGE)
    matrix = arena.view(0, 64).view(np.int32).reshape(4, 4)
    read_only = matrix.view()
    read_only.flags.writeable = False
    for buffer in (
        b"",
        b"bytes",
        bytearray(b"bytes"),
        bytearray(),
        memoryview(b"bytes"),
        memoryview(before_and_behind),
        np.zeros(4, np.float32),
        np.array([b"a", b"b"], np.object_),
        another.view(0, SIZE),
        arena.view(PAGE, 0),
        matrix.T,
        matrix[:, :2],
        read_only.T,
        memoryview(arena.view(0, 64))[::2],
        memoryview(arena.view(0, 64))[::2].toreadonly(),
        np.broadcast_to(arena.view(0, 1), (4,)),
    ):
        assert arena.offset_of(buffer) is None
    another.close()
