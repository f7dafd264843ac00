"""Slots for reads: shared ones, and one for each fetch."""

from __future__ import annotations

import threading
from contextlib import ExitStack

import pytest

from trident.core.repository.download import FetchSlots, GivenUp, RequestSlots


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
    slots = RequestSlots(2)
    stop = threading.Event()
    first, second = slots.of_fetch(threading.Event()), slots.of_fetch(stop)
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
    with pytest.raises(GivenUp), RequestSlots(1).of_fetch(stop).one():
        pass
