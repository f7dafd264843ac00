from __future__ import annotations

from concurrent.futures import ThreadPoolExecutor

import pytest

from trident.core.errors import ModelLoadFailed
from trident.core.lifecycle.loader import LoadSlots


def test_a_load_that_waits_for_another_lends_its_slot() -> None:
    slots = LoadSlots(1)
    with slots.taken("asker"), ThreadPoolExecutor(2) as threads:

        def ask(name: str) -> str:
            with slots.lent("asker", name), slots.taken(name):
                return name

        assert sorted(threads.map(ask, ["one", "two"])) == ["one", "two"]
    with slots.taken("next"):
        pass


def test_the_slot_is_taken_back_after_the_wait() -> None:
    slots = LoadSlots(1)
    with slots.taken("asker"):
        with slots.lent("asker", "asked"), slots.taken("asked"):
            pass
        assert not slots._slots.acquire(blocking=False)
    assert slots._slots.acquire(blocking=False)


def test_a_model_cannot_wait_for_its_own_load() -> None:
    slots = LoadSlots(2)
    with slots.taken("a"), slots.taken("b"), slots.lent("a", "b"):
        for asker, asked in (("a", "a"), ("b", "a")):
            with (
                pytest.raises(ModelLoadFailed, match=f"model '{asker}' cannot ask for '{asked}'"),
                slots.lent(asker, asked),
            ):
                pass
        with slots.lent("b", "c"), pytest.raises(ModelLoadFailed), slots.taken("c"), slots.lent("c", "a"):
            pass


def test_a_model_that_serves_has_nothing_to_lend() -> None:
    slots = LoadSlots(1)
    with slots.lent("a", "a"), slots.taken("a"):
        pass
