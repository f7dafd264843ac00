"""What there is at the start is left alone by the collector; what requests make it still finds."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator

import pytest

from app.worker.garbage_collector import settle_collector


@pytest.fixture(autouse=True)
def _as_before() -> Iterator[None]:
    thresholds = gc.get_threshold()
    yield
    gc.set_threshold(*thresholds)
    # What was frozen at the start of all tests is so again, and what this one left is collected first.
    gc.unfreeze()
    gc.collect()
    gc.freeze()


class Cycle:
    def __init__(self) -> None:
        self.itself = self


def test_what_is_there_is_not_looked_at_again() -> None:
    kept = Cycle()
    settle_collector()
    assert gc.get_freeze_count() > 0
    assert all(each is not kept for each in gc.get_objects())


def test_what_is_garbage_already_goes_first() -> None:
    gone = weakref.ref(Cycle())
    settle_collector()
    assert gone() is None


def test_the_cycles_of_requests_are_still_collected() -> None:
    settle_collector()
    assert gc.isenabled()
    gone = weakref.ref(Cycle())
    kept: list[list[int]] = [[] for _ in range(gc.get_threshold()[0] + 1)]  # enough for the collector to come by itself
    assert gone() is None
    assert kept
