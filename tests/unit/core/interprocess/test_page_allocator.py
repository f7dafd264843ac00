"""Pages of a memory block: their offsets, that they never overlap, and that all are freed."""

from __future__ import annotations

import sys
import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from types import FrameType
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.project import pure_python_only
from trident.core.interprocess import page_allocator
from trident.core.interprocess.page_allocator import PAGE, PageAllocator

START, END = 4 * PAGE, 20 * PAGE
LIMIT = 60.0


class Model:
    """The offsets that first fit must return, found by looking at every page."""

    def __init__(self) -> None:
        self.in_use: dict[int, int] = {}

    def first_fit(self, size: int) -> int | None:
        wanted = max(-(-size // PAGE), 1) * PAGE
        taken = {page for offset, length in self.in_use.items() for page in range(offset, offset + length, PAGE)}
        for offset in range(START, END - wanted + 1, PAGE):
            if taken.isdisjoint(range(offset, offset + wanted, PAGE)):
                self.in_use[offset] = wanted
                return offset
        return None


# Sizes to allocate; a negative number frees one of the allocations instead.
steps = st.lists(st.integers(-8, -1) | st.integers(0, 7 * PAGE) | st.sampled_from([END - START, END]), max_size=60)


@given(steps)
def test_allocate_returns_the_lowest_offset_that_fits(numbers: list[int]) -> None:
    pages, model = PageAllocator(START, END), Model()
    for number in numbers:
        if number >= 0:
            assert pages.allocate(number) == model.first_fit(number)
        elif model.in_use:
            offset = sorted(model.in_use)[number % len(model.in_use)]
            del model.in_use[offset]
            pages.free(offset)
        assert pages.used == sum(model.in_use.values())
        assert all(pages.holds(page) == (page in model.in_use) for page in range(0, END + PAGE, PAGE))
    for offset in model.in_use:
        pages.free(offset)
    assert pages.used == 0
    assert pages.allocate(pages.capacity) == START


@pytest.mark.parametrize("order", [(0, 1, 2), (2, 1, 0), (0, 2, 1), (1, 0, 2), (1, 2, 0), (2, 0, 1)])
def test_free_neighbours_merge_in_any_order(order: tuple[int, ...]) -> None:
    pages = PageAllocator(0, 3 * PAGE)
    offsets = [pages.allocate(PAGE) for _ in range(3)]
    assert offsets == [0, PAGE, 2 * PAGE]
    assert pages.allocate(1) is None
    for index in order:
        pages.free(index * PAGE)
    assert pages.allocate(3 * PAGE) == 0


def test_free_refuses_an_offset_that_is_not_allocated() -> None:
    pages = PageAllocator(0, 4 * PAGE)
    pages.allocate(2 * PAGE)
    for offset in (-PAGE, 1, PAGE, 2 * PAGE, 4 * PAGE, 1 << 70):
        with pytest.raises(ValueError, match="nothing is allocated"):
            pages.free(offset)
    pages.free(0)
    with pytest.raises(ValueError, match="nothing is allocated at 0"):
        pages.free(0)
    assert pages.used == 0
    assert pages.allocate(4 * PAGE) == 0


def test_allocate_uses_whole_pages_only() -> None:
    pages = PageAllocator(1, 3 * PAGE - 1)
    assert pages.capacity == PAGE
    assert pages.allocate(0) == PAGE
    assert pages.used == PAGE
    assert pages.allocate(0) is None


@pytest.mark.parametrize("bounds", [(0, 0), (PAGE, PAGE), (1, 2), (1, PAGE + 1)])
def test_bounds_without_a_whole_page_have_no_room(bounds: tuple[int, int]) -> None:
    pages = PageAllocator(*bounds)
    assert pages.capacity == 0
    assert pages.allocate(0) is None


def test_negative_sizes_and_bounds_are_refused() -> None:
    assert PageAllocator(0, PAGE).allocate(1 << 70) is None
    with pytest.raises(ValueError, match="cannot allocate -1 bytes"):
        PageAllocator(0, PAGE).allocate(-1)
    for bounds in ((-PAGE, PAGE), (2 * PAGE, PAGE)):
        with pytest.raises(ValueError, match="no pages can lie"):
            PageAllocator(*bounds)


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


def test_threads_never_get_the_same_bytes() -> None:
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


class Interrupted:
    """Calls `what` before line number `at` of the allocator, as the garbage collector may do on that thread."""

    def __init__(self, at: int, what: Callable[[], None]) -> None:
        self.at, self.what = at, what
        self.lines = 0

    def __call__(self, call: Callable[[], int | None]) -> int | None:
        before = sys.gettrace()
        sys.settrace(self._trace)
        try:
            return call()
        finally:
            sys.settrace(before)

    def _trace(self, frame: FrameType, event: str, argument: object) -> Any:
        if frame.f_code.co_filename != page_allocator.__file__:
            return None
        if event == "line":
            if self.lines == self.at:
                self.what()
            self.lines += 1
        return self._trace


def free_at_every_line(act: Callable[[PageAllocator], int | None]) -> int:
    """Run `act` on an allocator of 8 pages with 0, 1, 2 and 4 in use, and free 1 at each of its lines in turn.

    Returns the number of lines.
    """
    at = 0
    while True:
        pages = PageAllocator(0, 8 * PAGE)
        for _ in range(5):
            pages.allocate(PAGE)
        pages.free(3 * PAGE)
        interrupted = Interrupted(at, partial(pages.free, PAGE))
        given = interrupted(partial(act, pages))
        if interrupted.lines <= at:
            return at
        in_use = [offset for offset in range(0, 8 * PAGE, PAGE) if pages.holds(offset)]
        assert in_use == ([0, 4 * PAGE] if given is None else sorted([0, 2 * PAGE, 4 * PAGE, given]))
        assert pages.used == len(in_use) * PAGE
        for offset in in_use:
            pages.free(offset)
        assert pages.used == 0
        assert pages.allocate(8 * PAGE) == 0
        at += 1


def free_one(pages: PageAllocator) -> None:
    pages.free(2 * PAGE)


def reclaim_all(pages: PageAllocator) -> None:
    free_one(pages)
    pages.reclaim(lambda offset, size: None)


@pure_python_only  # It stops between the lines of the allocator.
@pytest.mark.parametrize(
    "act", [lambda pages: pages.allocate(PAGE), free_one, reclaim_all], ids=["allocate", "free", "reclaim"]
)
def test_free_works_in_the_middle_of_any_other_call(act: Callable[[PageAllocator], int | None]) -> None:
    lines: Future[int] = Future()

    def work() -> None:
        try:
            lines.set_result(free_at_every_line(act))
        except BaseException as error:
            lines.set_exception(error)

    # A deadlock must fail this test and not stop it.
    threading.Thread(target=work, daemon=True).start()
    assert lines.result(LIMIT) > 5
