from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from trident.app.process.heap import (
    collect_exempt,
    collect_rarely,
    is_much_exempt,
    keep_memory_shared,
    settle_collector,
)


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    callbacks = list(gc.callbacks)
    yield
    gc.set_threshold(*thresholds)
    gc.callbacks[:] = callbacks
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


def _allocate_until_collected(times: int) -> list[list[int]]:
    """Objects that have triggered so many collections."""
    return [[] for _ in range(times * (gc.get_threshold()[0] + 1))]


def test_later_cycles_are_still_collected() -> None:
    settle_collector()
    assert gc.isenabled()
    gone = weakref.ref(Cycle())
    kept = _allocate_until_collected(1)
    assert gone() is None
    assert kept


def test_objects_from_before_a_fork_are_exempt_from_collection() -> None:
    kept = Cycle()
    keep_memory_shared()
    assert all(each is not kept for each in gc.get_objects())


def test_a_starting_server_collects_rarely() -> None:
    collect_rarely()
    assert gc.get_threshold()[0] >= 10_000


def test_a_cycle_that_was_in_use_during_one_collection_is_collected_by_the_next() -> None:
    settle_collector()
    used = Cycle()
    gone = weakref.ref(used)
    kept = _allocate_until_collected(1)
    del used
    assert gone() is not None
    kept += _allocate_until_collected(1)
    assert gone() is None


def test_what_survives_two_collections_is_exempt_so_that_none_traverses_many_objects() -> None:
    settle_collector()
    seen: list[tuple[int, int]] = []

    def note(phase: str, found: dict[str, int]) -> None:
        if phase == "start":
            seen.append((found["generation"], len(gc.get_objects())))

    gc.callbacks.append(note)
    kept = _allocate_until_collected(100)
    gc.callbacks.remove(note)
    limit = gc.get_threshold()[0]
    assert len(seen) > 90
    assert max(generation for generation, _ in seen) == 1
    assert max(objects for _, objects in seen) < 3 * limit
    assert len(kept) > 90 * limit


def test_it_may_be_settled_twice() -> None:
    settle_collector()
    count = len(gc.callbacks)
    settle_collector()
    assert len(gc.callbacks) == count


@pytest.mark.slow
def test_exempt_garbage_goes_when_there_is_time_and_the_rest_stays_exempt() -> None:
    settle_collector()
    used = Cycle()
    gone = weakref.ref(used)
    kept = _allocate_until_collected(3)
    del used
    kept += _allocate_until_collected(3)
    assert gone() is not None
    collect_exempt()
    assert gone() is None
    assert all(each is not kept for each in gc.get_objects())


@pytest.mark.slow
def test_it_is_time_to_collect_when_there_are_many_more_exempt_objects_than_before() -> None:
    settle_collector()
    before = gc.get_freeze_count()
    kept: list[list[list[int]]] = []
    while not is_much_exempt():
        assert len(kept) < 1_000, "it is never time"
        kept.append(_allocate_until_collected(8))
    assert gc.get_freeze_count() > 1.5 * before + 50_000
    assert not is_much_exempt(), "the next time is after as many collections"
    collect_exempt()
    for _ in range(150):
        _allocate_until_collected(4)
    assert not is_much_exempt(), "there are as many as the last full collection left"
