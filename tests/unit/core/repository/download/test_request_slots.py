"""Slots for reads: shared ones, and one for each fetch."""

from __future__ import annotations

import threading
from contextlib import ExitStack

import pytest

from trident.core.repository.download import FetchSlots, GivenUp


def refused(slots: FetchSlots, stop: threading.Event) -> bool:
    """Whether no slot is free: another thread stops the wait for one."""
    timer = threading.Timer(0.05, stop.set)
    timer.start()
    try:
        with slots.one():
            return False
    except GivenUp:
        return True
    finally:
        timer.join()


def test_each_fetch_has_its_own_slot() -> None:
    shared, stop = threading.BoundedSemaphore(2), threading.Event()
    first, second = FetchSlots(shared, threading.Event()), FetchSlots(shared, stop)
    with ExitStack() as held:
        for _ in range(3):
            held.enter_context(first.one())
        with second.one():
            assert refused(second, stop)
    stop.clear()
    with second.one(), second.one(), second.one():
        pass


def test_stopped_fetch_gets_no_slot() -> None:
    stop = threading.Event()
    stop.set()
    with pytest.raises(GivenUp), FetchSlots(threading.BoundedSemaphore(1), stop).one():
        pass
