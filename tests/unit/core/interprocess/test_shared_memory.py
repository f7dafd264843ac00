"""Shared memory between processes: its bounds and seals, sharing and releasing, and its pages."""

from __future__ import annotations

import fcntl
import gc
import mmap
import os
import resource
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import suppress
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trident.core.interprocess.frames import BadFrame, FrameReader
from trident.core.interprocess.shared_memory import PAGE, PageAllocator, SharedMemory

SIZE = 16 * PAGE
NAME = "memfd:trident-shared-memory"


@pytest.fixture
def memory() -> Iterator[SharedMemory]:
    memory = SharedMemory.create(SIZE)
    yield memory
    memory.close()


def is_open(descriptor: int) -> bool:
    try:
        os.fstat(descriptor)
    except OSError:
        return False
    return True


def descriptors() -> int:
    """The number of this process's descriptors and mappings of shared memory."""
    links = []
    for path in Path("/proc/self/fd").iterdir():
        with suppress(FileNotFoundError):  # the descriptor of the listing itself, and those of other threads
            links.append(os.readlink(path))
    return sum(NAME in link for link in links)


def memfd(size: int, seals: int = fcntl.F_SEAL_SHRINK) -> int:
    descriptor = os.memfd_create("test", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    os.ftruncate(descriptor, size)
    fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    return descriptor


# --- life


def test_the_seals_forbid_every_change_of_size(memory: SharedMemory) -> None:
    for size in (0, SIZE - PAGE, SIZE + PAGE):
        with pytest.raises(PermissionError):
            os.ftruncate(memory.descriptor, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(memory.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_the_memory_is_unmapped_with_its_last_view() -> None:
    def mappings() -> int:
        return Path("/proc/self/maps").read_text().count(NAME)

    gc.collect()
    before = mappings(), descriptors()
    memory = SharedMemory.create(SIZE)
    view = memory.view(0, 4)
    view[:] = 9
    memory.close()
    memory.close()
    assert memory.descriptor == -1
    assert mappings() == before[0] + 1
    assert view.tolist() == [9, 9, 9, 9]
    del view
    assert (mappings(), descriptors()) == before


def test_failed_creation_reports_the_error_of_the_system() -> None:
    gc.collect()
    before = descriptors()
    limits = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (1 << 30, limits[1]))
    try:
        with pytest.raises(MemoryError, match="File too large"):
            SharedMemory.create(2 << 30)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, limits)
    assert descriptors() == before


# --- refusals


def refused(descriptor: int, match: str, maximum: int = 1 << 20) -> None:
    """Assert that `attach` refuses and closes it."""
    with pytest.raises(ValueError, match=match):
        SharedMemory.attach(descriptor, maximum)
    assert not is_open(descriptor)


def test_attach_refuses_memory_that_can_shrink_or_not_be_written() -> None:
    refused(memfd(SIZE, 0), "sealed against shrinking")
    refused(memfd(SIZE, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL), "sealed against shrinking")
    refused(os.memfd_create("test"), "sealed against shrinking")
    refused(memfd(SIZE, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE), "cannot be mapped")
    descriptor = memfd(SIZE)
    read_only = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY)
    os.close(descriptor)
    refused(read_only, "cannot be mapped")


def test_attach_refuses_other_files(tmp_path: Path) -> None:
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
def test_attach_refuses_other_sizes(size: int) -> None:
    refused(memfd(size), f"shared memory of {size} bytes", maximum=SIZE)


# --- views


@pytest.mark.parametrize(
    ("offset", "size"), [(-1, 1), (-PAGE, PAGE), (0, -1), (0, SIZE + 1), (SIZE, 1), (1, SIZE), (1 << 70, 1), (8, -4)]
)
def test_a_view_outside_the_block_is_refused(memory: SharedMemory, offset: int, size: int) -> None:
    def never() -> None:
        raise AssertionError

    for ask in (lambda: memory.view(offset, size), lambda: memory.borrow(offset, size, never)):
        with pytest.raises(
            ValueError, match=f"{size} bytes at {offset} are outside the shared memory, which has {SIZE} bytes"
        ):
            ask()


VIEWS: dict[str, Callable[[Any], Any]] = {
    "itself": lambda array: array,
    "a row of another type": lambda array: array.view(np.float32).reshape(2, -1)[1],
    "every other byte": lambda array: array[::2],
    "a buffer": lambda array: memoryview(array)[4:],
    "an array of a buffer": lambda array: np.frombuffer(memoryview(array)[8:], np.int16),
}


@pytest.mark.parametrize("view", VIEWS)
def test_a_borrow_ends_with_the_last_view_of_it(memory: SharedMemory, view: str) -> None:
    ended: list[int] = []
    array = memory.borrow(PAGE, 64, lambda: ended.append(PAGE))
    kept = VIEWS[view](array)
    del array
    gc.collect()
    assert ended == []
    inner = memoryview(kept)[:1]
    del kept
    assert ended == []
    del inner
    assert ended == [PAGE]


# --- offsets


def test_offset_of_is_none_for_foreign_buffers(memory: SharedMemory) -> None:
    another = SharedMemory.create(SIZE)
    before_and_behind = mmap.mmap(-1, PAGE)
    matrix = memory.view(0, 64).view(np.int32).reshape(4, 4)
    read_only = matrix.view()
    read_only.flags.writeable = False
    for buffer in (
        b"bytes",
        bytearray(),
        memoryview(before_and_behind),
        np.array([b"a", b"b"], np.object_),
        another.view(0, SIZE),
        memory.view(PAGE, 0),
        matrix.T,
        read_only.T,
        memoryview(memory.view(0, 64))[::2].toreadonly(),
        np.broadcast_to(memory.view(0, 1), (4,)),
    ):
        assert memory.offset_of(buffer) is None
    another.close()


def test_released_pages_take_no_memory_until_they_are_used_again(memory: SharedMemory) -> None:
    memory.view(0, SIZE)[:] = 7
    whole = os.fstat(memory.descriptor).st_blocks
    for _ in range(2):
        memory.pages.allocate(4 * PAGE)
    memory.pages.free(4 * PAGE)
    memory.reclaim()
    assert os.fstat(memory.descriptor).st_blocks == whole * 3 // 4
    assert np.count_nonzero(memory.view(0, SIZE)) == 12 * PAGE
    memory.view(4 * PAGE, PAGE)[:] = 9
    assert memory.view(4 * PAGE, 2 * PAGE).tobytes() == bytes([9]) * PAGE + bytes(PAGE)
    memory.close()
    memory.reclaim()


# --- memory shared by one end and released by the other


def test_shared_tensor_is_read_in_place_and_released(memory: SharedMemory) -> None:
    other = SharedMemory.attach(os.dup(memory.descriptor))
    unused: list[None] = []
    other.on_unused = partial(unused.append, None)
    for sender, receiver, first in ((memory, other, 0), (other, memory, SIZE // 2)):
        assert sender.share(bytes(SIZE)) is None
        assert sender.share(b"some") == first
        content = receiver.received(first, 4)
        assert (bytes(content), receiver.release(7)) == (b"some", b"")
        del content
        ((kind, _, _, count, offsets),) = FrameReader(frozenset({7}), "peer").feed(receiver.release(7))
        assert (kind, count, receiver.release(7)) == (7, 1, b"")
        sender.released(offsets, count)
        assert sender.pages.used == 0
        with pytest.raises(BadFrame, match=f"nothing is allocated at {first}"):
            sender.released(offsets, count)
        with pytest.raises(BadFrame, match="shorter than it says"):
            sender.released(offsets, 3)
        with pytest.raises(BadFrame, match="outside the shared memory"):
            receiver.received(SIZE, 1)
    assert len(unused) == 1
    content = other.received(0, 4)
    other.close()
    del content
    assert (len(unused), other.release(7)) == (1, b"")


def test_allocated_memory_is_freed_with_its_last_view(memory: SharedMemory) -> None:
    array = memory.allocate(SIZE // 2)
    assert array is not None
    assert memory.allocate(1) is None
    view = memoryview(array)
    del array
    assert memory.allocate(1) is None
    del view
    assert memory.allocate(1) is not None
    memory.close()
    assert memory.allocate(1) is None


# --- pages


START, END = 4 * PAGE, 20 * PAGE
LIMIT = 60.0


def test_reclaim_releases_the_free_pages_that_were_in_use() -> None:
    pages = PageAllocator(START, END)
    released: list[tuple[int, int]] = []

    def reclaim() -> list[tuple[int, int]]:
        released.clear()
        pages.reclaim(lambda offset, size: released.append((offset, size)))
        return released

    assert reclaim() == []
    a, b, c = (pages.allocate(2 * PAGE) for _ in range(3))
    assert reclaim() == []
    pages.free(a)
    pages.free(c)
    assert reclaim() == [(a, 2 * PAGE), (c, 2 * PAGE)]
    assert (c, 2 * PAGE) not in reclaim()
    pages.free(b)
    assert sum(size for _, size in reclaim()) == 4 * PAGE
    assert reclaim() == []
    assert pages.allocate(END - START) == START


def test_threads_get_different_bytes() -> None:
    pages = PageAllocator(0, 24 * PAGE)
    memory = np.zeros(24 * PAGE, np.uint8)
    faults: list[str] = []

    def work(mark: int) -> None:
        sizes = np.random.default_rng(mark).integers(1, 5 * PAGE, 300)
        for size in sizes:
            offset = pages.allocate(int(size))
            if offset is None:
                continue
            mine = memory[offset : offset + int(size)]
            mine[:] = mark
            if not (mine == mark).all():
                faults.append(f"{size} bytes at {offset} of {mark}")
            pages.free(offset)

    threads = [threading.Thread(target=work, args=(mark,)) for mark in range(1, 7)]
    before = sys.getswitchinterval()
    sys.setswitchinterval(1e-6)
    try:
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        sys.setswitchinterval(before)
    assert faults == []
    assert pages.used == 0
    assert pages.allocate(24 * PAGE) == 0


def test_free_is_reentrant() -> None:
    """The garbage collector may call it on a thread that has the lock."""
    pages = PageAllocator(0, 8 * PAGE)
    for _ in range(3):
        pages.allocate(PAGE)
    pages.free(PAGE)
    garbage = [2 * PAGE]

    def release(offset: int, size: int) -> None:
        while garbage:
            pages.free(garbage.pop())

    thread = threading.Thread(target=pages.reclaim, args=(release,), daemon=True)
    thread.start()
    thread.join(LIMIT)
    assert not thread.is_alive(), "it waits for a lock that its own thread has"
    assert (pages.used, pages.holds(0), pages.holds(2 * PAGE)) == (PAGE, True, False)
    pages.free(0)
    assert pages.allocate(8 * PAGE) == 0
