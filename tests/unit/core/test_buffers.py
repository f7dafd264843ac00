"""Memory that is kept for the next large body or input, and bodies that are received into it."""

from __future__ import annotations

import mmap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from trident.core.buffers import ALIGNMENT, FIRST_STEP, BufferPool, RequestBody, allocate_body, release_buffers

SIZE = 1 << 17


def use(buffers: BufferPool, size: int, mark: int) -> int:
    """Take memory, mark it and give it back. Returns the mark that it had: 0 for new memory."""
    view = buffers.take(size)
    found = view[0]
    view[0] = mark
    return found


def test_unused_memory_is_reused() -> None:
    buffers = BufferPool()
    view = buffers.take(SIZE - 3)
    assert len(view) == SIZE - 3
    view[0] = 7
    array = np.ndarray((2, 8), np.float32, view)[1:]
    del view
    assert use(buffers, SIZE, 8) == 0  # an array of the first one is left
    assert use(buffers, SIZE, 8) == 8
    held = buffers.take(SIZE)
    del array
    assert use(buffers, SIZE, 1) == 7
    del held


def test_recently_used_sizes_are_kept() -> None:
    buffers = BufferPool(3 * SIZE)
    held = [buffers.take(SIZE) for _ in range(3)]
    for view in held:
        view[0] = 7
    del held, view
    assert use(buffers, 2 * SIZE, 9) == 0
    assert use(buffers, 2 * SIZE, 9) == 9
    # Two of the three had to go.
    held = [buffers.take(SIZE) for _ in range(3)]
    assert sorted(view[0] for view in held) == [0, 0, 7]
    del held
    assert use(buffers, 4 * SIZE, 9) == 0
    assert use(buffers, 4 * SIZE, 9) == 0  # too large to be kept


def test_memory_beyond_the_limit_is_freed_immediately() -> None:
    def resident() -> int:
        return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE

    size = 64 << 20
    buffers = BufferPool(size)
    held = [buffers.take(size) for _ in range(4)]
    for view in held:
        view[:: mmap.PAGESIZE] = bytes(len(view) // mmap.PAGESIZE)
    before = resident()
    del held, view
    assert before - resident() > 2 * size


def test_dropped_memory_is_not_reused() -> None:
    buffers = BufferPool()
    held = buffers.take(SIZE)
    held[0] = 5
    use(buffers, SIZE, 7)
    buffers.drop()
    assert use(buffers, SIZE, 0) == 0
    buffers.drop()
    del held
    assert use(buffers, SIZE, 0) == 5  # it came back later


def test_impossible_allocation_is_an_error() -> None:
    with pytest.raises(MemoryError, match=r"^there is no memory for 4611686018427387904 bytes$"):
        BufferPool().take(1 << 62)


def test_sizes_that_differ_a_little_share_their_memory() -> None:
    memory = BufferPool()
    view = memory.take(1_000_000)
    view[0] = 7
    del view
    assert use(memory, 1_000_100, 0) == 7


class SharedMemory:
    """Allocates arrays as the memory shared with the engine does, and counts them."""

    def __init__(self) -> None:
        self.allocated: list[Any] = []

    def __call__(self, size: int) -> Any:
        self.allocated.append(np.empty(size, np.uint8))
        return self.allocated[-1]

    def holds(self, memory: memoryview) -> bool:
        array = np.frombuffer(memory, np.uint8)
        return any(np.shares_memory(array, each) for each in self.allocated)


@pytest.mark.parametrize("offset", [0, 1, 63, 64, 1000])
@pytest.mark.parametrize("size", [1, 100, 70_000])
def test_the_offset_lies_on_a_cache_line(size: int, offset: int) -> None:
    body = allocate_body(size, offset)
    assert len(body) == size
    assert (np.frombuffer(body, np.uint8).ctypes.data + offset) % ALIGNMENT == 0


def test_long_body_is_allocated_after_the_first_chunk() -> None:
    body = RequestBody(3 * FIRST_STEP, b"first", 0, None)
    assert len(body.memory) == FIRST_STEP
    body.got = FIRST_STEP
    body.room()[:4] = b"next"
    assert len(body.memory) == 3 * FIRST_STEP
    assert bytes(body.memory[:5]) == b"first"
    assert bytes(body.memory[FIRST_STEP : FIRST_STEP + 4]) == b"next"


def test_body_copied_out_of_shared_memory_keeps_its_bytes() -> None:
    shared = SharedMemory()
    body = RequestBody(70_000, b"first", 0, shared)
    assert shared.holds(body.memory)
    body.leave_shared()
    assert not shared.holds(body.memory)
    assert bytes(body.memory[:5]) == b"first"
    body.leave_shared()
    assert len(shared.allocated) == 1


def test_memory_of_a_large_body_is_reused_until_released() -> None:
    def mark(value: int) -> int:
        body = allocate_body(1_234_567, 0)
        found, body[0] = body[0], value
        return found

    release_buffers()
    mark(7)
    assert mark(8) == 7
    release_buffers()
    assert mark(9) == 0
