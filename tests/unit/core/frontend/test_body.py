from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trident.core.frontend.body import ALIGNMENT, FIRST_STEP, RequestBody, allocate_body, release_buffers


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


def test_a_body_is_not_shared_when_shared_memory_is_exhausted() -> None:
    assert len(allocate_body(70_000, 0, lambda size: None)) == 70_000


def test_a_long_body_gets_its_memory_after_the_first_step() -> None:
    body = RequestBody(3 * FIRST_STEP, b"first", 0, None)
    assert len(body.memory) == FIRST_STEP
    body.got = FIRST_STEP
    body.room()[:4] = b"next"
    assert len(body.memory) == 3 * FIRST_STEP
    assert bytes(body.memory[:5]) == b"first"
    assert bytes(body.memory[FIRST_STEP : FIRST_STEP + 4]) == b"next"


def test_a_body_that_leaves_shared_memory_keeps_its_bytes() -> None:
    shared = SharedMemory()
    body = RequestBody(70_000, b"first", 0, shared)
    assert shared.holds(body.memory)
    body.leave_shared()
    assert not shared.holds(body.memory)
    assert bytes(body.memory[:5]) == b"first"
    body.leave_shared()
    assert len(shared.allocated) == 1


def test_the_memory_of_a_large_body_is_used_again_until_it_is_released() -> None:
    def mark(value: int) -> int:
        body = allocate_body(1_234_567, 0)
        found, body[0] = body[0], value
        return found

    release_buffers()
    mark(7)
    assert mark(8) == 7
    release_buffers()
    assert mark(9) == 0


def test_a_view_of_a_large_body_keeps_its_memory() -> None:
    release_buffers()
    body = allocate_body(1_234_567, 0)
    body[8:12] = b"kept"
    tensor = np.ndarray((4,), np.uint8, body[8:12])
    del body
    other = allocate_body(1_234_567, 0)
    other[8:12] = b"lost"
    assert bytes(tensor) == b"kept"
