from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from app.process.garbage_collector import collect_rarely, keep_memory_shared, settle_collector


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


def test_present_objects_are_exempt_from_collection() -> None:
    kept = Cycle()
    settle_collector()
    assert gc.get_freeze_count() > 0
    assert all(each is not kept for each in gc.get_objects())


def test_present_garbage_is_collected_first() -> None:
    gone = weakref.ref(Cycle())
    settle_collector()
    assert gone() is None


def test_later_cycles_are_still_collected() -> None:
    settle_collector()
    assert gc.isenabled()
    gone = weakref.ref(Cycle())
    kept: list[list[int]] = [[] for _ in range(gc.get_threshold()[0] + 1)]  # enough to trigger a collection
    assert gone() is None
    assert kept


def test_objects_from_before_a_fork_are_exempt_from_collection() -> None:
    kept = Cycle()
    keep_memory_shared()
    assert all(each is not kept for each in gc.get_objects())


def test_a_starting_server_collects_rarely() -> None:
    collect_rarely()
    assert gc.get_threshold()[0] >= 10_000
