from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from tests.waiting import until
from trident.core.response_cache.redis_cache import LookUps
from trident.core.response_cache.response_cache import CachedResponse

Ends = list[tuple[str, CachedResponse | None]]


class Bench:
    def __init__(self, budget_s: float) -> None:
        self.ends: Ends = []
        self.late: list[int] = []
        self.look_ups = LookUps(budget_s, self.late.append)

    def add(self, name: str) -> None:
        self.look_ups.add(name.encode(), lambda found: self.ends.append((name, found)))


@pytest.fixture
def patient() -> Iterator[Bench]:
    bench = Bench(60)
    yield bench
    bench.look_ups.close()


@pytest.fixture
def hasty() -> Iterator[Bench]:
    bench = Bench(0.02)
    yield bench
    bench.look_ups.close()


def test_the_oldest_are_taken_first_and_once(patient: Bench) -> None:
    for name in "abc":
        patient.add(name)
    assert [each.key for each in patient.look_ups.take(2)] == [b"a", b"b"]
    assert [each.key for each in patient.look_ups.take(2)] == [b"c"]
    assert not patient.look_ups.waits


def test_each_ends_once(patient: Bench) -> None:
    patient.add("a")
    (look_up,) = patient.look_ups.take(1)
    found = CachedResponse.__new__(CachedResponse)
    assert look_up.end(found)
    assert not look_up.end(None)
    look_up.give_up()
    assert patient.ends == [("a", found)]


def test_what_was_given_up_is_not_taken(patient: Bench) -> None:
    patient.look_ups.add(b"a", lambda found: patient.ends.append(("a", found))).give_up()
    assert patient.look_ups.take(1) == []
    assert patient.ends == [("a", None)]


def test_a_spent_budget_ends_it_taken_or_not(hasty: Bench) -> None:
    began_s = time.monotonic()
    hasty.add("a")
    taken = hasty.look_ups.take(1)
    hasty.add("b")
    until(lambda: len(hasty.ends) == 2)
    assert time.monotonic() - began_s >= 0.02
    assert hasty.ends == [("a", None), ("b", None)]
    assert sum(hasty.late) == 2
    assert hasty.look_ups.take(1) == []
    assert not taken[0].end(None)


def test_those_after_an_idle_time_have_their_budget_too(hasty: Bench) -> None:
    for count in (1, 2):
        hasty.add("a")
        until(lambda count=count: len(hasty.ends) == count)  # type: ignore[misc]


def test_an_exception_of_one_does_not_hurt_the_others(hasty: Bench) -> None:
    def fail(found: CachedResponse | None) -> None:
        raise RuntimeError("no reader")

    hasty.look_ups.add(b"a", fail)
    hasty.add("b")
    until(lambda: hasty.ends == [("b", None)])


def test_the_end_of_the_cache_ends_all(patient: Bench) -> None:
    patient.add("a")
    patient.look_ups.close()
    assert patient.ends == [("a", None)]
    assert patient.late == []
