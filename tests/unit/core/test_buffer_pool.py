"""Memory that is kept for the next large body or input."""

from __future__ import annotations

import numpy as np
import pytest

from trident.core.buffer_pool import BufferPool

SIZE = 1 << 17


def use(buffers: BufferPool, size: int, mark: int) -> int:
    """Take memory, mark it and give it back. Returns the mark that it had: 0 for new memory."""
    view = buffers.take(size)
    found = view[0]
    view[0] = mark
    return found


def test_memory_that_is_no_longer_used_is_used_again() -> None:
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


def test_the_sizes_that_were_used_last_are_kept() -> None:
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


def test_dropped_memory_is_not_used_again() -> None:
    buffers = BufferPool()
    held = buffers.take(SIZE)
    held[0] = 5
    use(buffers, SIZE, 7)
    buffers.drop()
    assert use(buffers, SIZE, 0) == 0
    buffers.drop()
    del held
    assert use(buffers, SIZE, 0) == 5  # it came back later


def test_more_memory_than_there_is_is_an_error() -> None:
    with pytest.raises(MemoryError, match=r"^there is no memory for 4611686018427387904 bytes$"):
        BufferPool().take(1 << 62)


def test_sizes_that_differ_a_little_share_their_memory() -> None:
    memory = BufferPool()
    view = memory.take(1_000_000)
    view[0] = 7
    del view
    assert use(memory, 1_000_100, 0) == 7
