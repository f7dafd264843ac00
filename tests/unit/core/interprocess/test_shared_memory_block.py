"""Shared memory between processes: its bounds, its seals, and the end of borrows."""

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

from tests.project import ROOT
from trident.core.errors import OutOfMemory
from trident.core.interprocess.page_allocator import PAGE
from trident.core.interprocess.shared_memory_block import SharedMemoryBlock

SIZE = 16 * PAGE
NAME = "memfd:trident-shared-memory"


@pytest.fixture
def block() -> Iterator[SharedMemoryBlock]:
    block = SharedMemoryBlock.create(SIZE)
    yield block
    block.close()


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


def test_another_process_sees_the_same_bytes(block: SharedMemoryBlock) -> None:
    block.view(PAGE, 4)[:] = [1, 2, 3, 4]
    program = """
import sys
from trident.core.interprocess.shared_memory_block import SharedMemoryBlock
block = SharedMemoryBlock.attach(int(sys.argv[1]))
block.view(8192, 4)[:] = block.view(4096, 4)[::-1]
"""
    command = [sys.executable, "-c", program, str(block.descriptor)]
    subprocess.run(command, cwd=ROOT, pass_fds=[block.descriptor], check=True, timeout=60)
    assert block.view(2 * PAGE, 4).tolist() == [4, 3, 2, 1]


def test_both_ends_see_the_same_bytes_and_close_independently(block: SharedMemoryBlock) -> None:
    descriptor = os.dup(block.descriptor)
    other = SharedMemoryBlock.attach(descriptor, SIZE)
    assert (other.size, other.descriptor) == (SIZE, descriptor)
    block.view(0, 3)[:] = 7
    assert other.view(0, 4).tolist() == [7, 7, 7, 0]
    other.close()
    assert not is_open(descriptor)
    assert block.view(0, 3).tolist() == [7, 7, 7]


def test_the_size_is_rounded_down_to_an_even_number_of_pages() -> None:
    for size, given in ((2 * PAGE, 2 * PAGE), (4 * PAGE - 1, 2 * PAGE), (5 * PAGE, 4 * PAGE)):
        block = SharedMemoryBlock.create(size)
        assert block.size == os.fstat(block.descriptor).st_size == given
        block.close()


def test_the_seals_forbid_every_change_of_size(block: SharedMemoryBlock) -> None:
    for size in (0, SIZE - PAGE, SIZE + PAGE):
        with pytest.raises(PermissionError):
            os.ftruncate(block.descriptor, size)
    with pytest.raises(PermissionError):
        fcntl.fcntl(block.descriptor, fcntl.F_ADD_SEALS, fcntl.F_SEAL_WRITE)


def test_a_started_program_does_not_inherit_the_descriptor(block: SharedMemoryBlock) -> None:
    assert not os.get_inheritable(block.descriptor)


def test_the_memory_is_unmapped_with_its_last_view() -> None:
    def mappings() -> int:
        return Path("/proc/self/maps").read_text().count(NAME)

    gc.collect()
    before = mappings(), descriptors()
    block = SharedMemoryBlock.create(SIZE)
    view = block.view(0, 4)
    view[:] = 9
    block.close()
    block.close()
    assert block.descriptor == -1
    assert mappings() == before[0] + 1
    assert view.tolist() == [9, 9, 9, 9]
    del view
    assert (mappings(), descriptors()) == before


def test_a_closed_block_gives_no_memory(block: SharedMemoryBlock) -> None:
    view = block.view(0, 4)
    block.close()
    assert block.offset_of(view) is None
    with pytest.raises(ValueError, match="4 bytes at 0 are outside the shared memory, which is closed"):
        block.view(0, 4)
    with pytest.raises(ValueError, match="is closed"):
        block.borrow(0, 4, lambda: None)


@pytest.mark.parametrize("size", [-1, 0, 2 * PAGE - 1, 1 << 62, 1 << 70])
def test_create_refuses_an_invalid_size_and_names_the_option(size: int) -> None:
    with pytest.raises(OutOfMemory, match="--http-worker-memory-bytes"):
        SharedMemoryBlock.create(size)


def test_create_names_the_option_when_the_system_refuses() -> None:
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


# --- refusals


def refused(descriptor: int, match: str, maximum: int = 1 << 20) -> None:
    """Assert that `attach` refuses and closes it."""
    with pytest.raises(ValueError, match=match):
        SharedMemoryBlock.attach(descriptor, maximum)
    assert not is_open(descriptor)


def test_attach_refuses_memory_that_can_shrink() -> None:
    refused(memfd(SIZE, 0), "sealed against shrinking")
    refused(memfd(SIZE, fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL), "sealed against shrinking")
    refused(os.memfd_create("test"), "sealed against shrinking")


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


def test_attach_refuses_read_only_memory() -> None:
    refused(memfd(SIZE, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_WRITE), "cannot be mapped")
    descriptor = memfd(SIZE)
    read_only = os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY)
    os.close(descriptor)
    refused(read_only, "cannot be mapped")


# --- views


def test_a_view_is_writable_and_begins_at_its_offset(block: SharedMemoryBlock) -> None:
    block.view(0, SIZE)[:] = np.arange(SIZE) % 251
    assert block.view(PAGE + 3, 4).tolist() == [(PAGE + 3 + n) % 251 for n in range(4)]
    assert block.borrow(PAGE + 3, 4, lambda: None).tolist() == [(PAGE + 3 + n) % 251 for n in range(4)]
    block.borrow(0, 1, lambda: None)[0] = 200
    assert block.view(0, 1)[0] == 200
    for offset in (0, SIZE):
        assert block.view(offset, 0).size == 0
        assert block.borrow(offset, 0, lambda: None).size == 0


@pytest.mark.parametrize(
    ("offset", "size"), [(-1, 1), (-PAGE, PAGE), (0, -1), (0, SIZE + 1), (SIZE, 1), (1, SIZE), (1 << 70, 1), (8, -4)]
)
def test_a_view_outside_the_block_is_refused(block: SharedMemoryBlock, offset: int, size: int) -> None:
    def never() -> None:
        raise AssertionError

    for ask in (lambda: block.view(offset, size), lambda: block.borrow(offset, size, never)):
        with pytest.raises(
            ValueError, match=f"{size} bytes at {offset} are outside the shared memory, which has {SIZE} bytes"
        ):
            ask()


def shapes_of(array: Any) -> list[Any]:
    """A view that was made of a borrowed array and still uses its memory."""
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


@pytest.mark.slow
@pytest.mark.parametrize("which", range(8))
def test_a_borrow_ends_with_the_last_view_of_it(block: SharedMemoryBlock, which: int) -> None:
    ended: list[int] = []
    array = block.borrow(PAGE, 64, lambda: ended.append(PAGE))
    kept = shapes_of(array)[which]
    del array
    gc.collect()
    assert ended == []
    inner = memoryview(kept)[:1]
    del kept
    assert ended == []
    del inner
    assert ended == [PAGE]


def test_each_borrow_ends_independently(block: SharedMemoryBlock) -> None:
    ended: list[str] = []
    first = block.borrow(0, 64, lambda: ended.append("first"))
    second = block.borrow(0, 64, lambda: ended.append("second"))
    other = block.view(0, 64)
    block.close()
    del first
    assert ended == ["first"]
    assert other.tolist() == second.tolist()
    del second
    assert ended == ["first", "second"]


def test_the_garbage_collector_ends_a_borrow_in_a_cycle(block: SharedMemoryBlock) -> None:
    ended: list[int] = []
    cycle: list[Any] = [block.borrow(0, 64, lambda: ended.append(0))]
    cycle.append(cycle)
    gc.collect()
    assert ended == []
    del cycle
    gc.collect()
    assert ended == [0]


# --- offsets


def test_offset_of_finds_buffers_in_the_block(block: SharedMemoryBlock) -> None:
    whole = block.view(0, SIZE)
    read_only = block.view(PAGE, 64)
    read_only.flags.writeable = False
    for buffer, offset in (
        (whole, 0),
        (whole[-1:], SIZE - 1),
        (block.view(PAGE, 64).view(np.float32).reshape(2, 8), PAGE),
        (block.view(PAGE, 64).view(np.float16)[5:], PAGE + 10),
        (block.view(PAGE, 64).view(np.bool_), PAGE),
        (block.borrow(PAGE, 64, lambda: None)[8:], PAGE + 8),
        (memoryview(whole)[PAGE + 1 :], PAGE + 1),
        (memoryview(whole)[PAGE + 1 :].toreadonly(), PAGE + 1),
        (block.view(PAGE, 64).view(np.int32).data, PAGE),
        (read_only, PAGE),
        (read_only.view(np.int32).reshape(4, 4), PAGE),
    ):
        assert block.offset_of(buffer) == offset


def test_offset_of_is_none_for_all_other_buffers(block: SharedMemoryBlock) -> None:
    another = SharedMemoryBlock.create(SIZE)
    before_and_behind = mmap.mmap(-1, PAGE)
    matrix = block.view(0, 64).view(np.int32).reshape(4, 4)
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
        block.view(PAGE, 0),
        matrix.T,
        matrix[:, :2],
        read_only.T,
        memoryview(block.view(0, 64))[::2],
        memoryview(block.view(0, 64))[::2].toreadonly(),
        np.broadcast_to(block.view(0, 1), (4,)),
    ):
        assert block.offset_of(buffer) is None
    another.close()


def test_released_pages_take_no_memory_until_they_are_used_again(block: SharedMemoryBlock) -> None:
    block.view(0, SIZE)[:] = 7
    whole = os.fstat(block.descriptor).st_blocks
    block.release(4 * PAGE, 8 * PAGE)
    assert os.fstat(block.descriptor).st_blocks == whole // 2
    assert np.count_nonzero(block.view(0, SIZE)) == 8 * PAGE
    block.view(4 * PAGE, PAGE)[:] = 9
    assert block.view(4 * PAGE, 2 * PAGE).tobytes() == bytes([9]) * PAGE + bytes(PAGE)
    block.close()
    block.release(0, SIZE)
