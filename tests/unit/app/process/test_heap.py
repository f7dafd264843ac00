from __future__ import annotations

import gc
import platform
import sys
import weakref
from collections.abc import Callable, Iterator

import pytest

from trident.app.process.heap import (
    IdleTrim,
    collect_rarely,
    keep_freed_memory,
    keep_memory_shared,
    settle_collector,
    share_interpreter_lock,
    use_one_heap,
)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    # Restore the frozen objects of the test session, without the garbage of this test.
    gc.unfreeze()
    gc.collect()
    gc.freeze()


class Cycle:
    def __init__(self) -> None:
        self.itself = self


def _allocate_until_collected(times: int) -> list[list[int]]:
    """Objects that have triggered so many collections."""
    return [[] for _ in range(times * (gc.get_threshold()[0] + 1))]


@pytest.mark.parametrize("exempt", [settle_collector, keep_memory_shared])
def test_present_objects_are_exempt_from_collection(exempt: Callable[[], None]) -> None:
    kept = Cycle()
    exempt()
    assert all(each is not kept for each in gc.get_objects())


def test_present_garbage_is_collected_first_also_if_it_was_exempt() -> None:
    gone = weakref.ref(Cycle())
    gc.freeze()
    settle_collector()
    assert gone() is None


def test_later_cycles_are_collected() -> None:
    settle_collector()
    used = Cycle()
    unused, gone = weakref.ref(Cycle()), weakref.ref(used)
    kept = _allocate_until_collected(1)
    del used
    assert unused() is None
    assert gone() is not None
    kept += _allocate_until_collected(1)
    assert gone() is None


def test_a_starting_server_collects_rarely() -> None:
    collect_rarely()
    assert gc.get_threshold()[0] >= 10_000


def test_glibc_accepts_the_options() -> None:
    assert keep_freed_memory() is (platform.libc_ver()[0] == "glibc")
    assert use_one_heap() is (platform.libc_ver()[0] == "glibc")


def test_memory_is_returned_once_after_each_idle_time() -> None:
    calls: list[str] = []
    idle = IdleTrim(lambda: calls.append("release"), lambda: calls.append("trim"), 5, lambda: calls.append("collect"))
    idle.tick(10.0, 0.0)
    assert calls == []  # no work yet, so nothing to return
    idle.tick(11.0, 11.0)
    idle.tick(15.0, 14.0)
    idle.tick(19.0, 14.0)
    assert calls == []
    idle.tick(19.5, 14.0)
    idle.tick(60.0, 14.0)
    assert calls == ["release", "collect", "trim"]
    idle.tick(61.0, 60.5)
    idle.tick(70.0, 60.5)
    assert calls == ["release", "collect", "trim"] * 2


def test_threads_take_turns_in_steps_of_half_a_millisecond() -> None:
    before = sys.getswitchinterval()
    try:
        share_interpreter_lock()
        assert round(sys.getswitchinterval(), 6) == 0.0005
    finally:
        sys.setswitchinterval(before)
