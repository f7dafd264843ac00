"""The rate limiter: turns, limits, reservations."""

from __future__ import annotations

import threading
from collections import Counter

import pytest

from tests.unit.core.scheduling.scheduler_bench import Stub, limit, placed
from trident.core.config.placement import InstanceLimit
from trident.core.errors import ConfigInvalid
from trident.core.options import ResourceLimit
from trident.core.scheduling.rate_limiter import (
    HELD,
    IDLE,
    LOAD_EXECUTIONS,
    WAITING,
    Bid,
    InstanceReservations,
    RateLimiter,
    Reservation,
    Resource,
    admitted,
)

R, S = Resource("r", 0), Resource("s", None)


@pytest.mark.parametrize(
    ("bids", "free", "expected"),
    [
        ([], {R: 1}, []),
        ([Bid(0, 1, {R: 1})], {R: 1}, [0]),
        ([Bid(0, 1, {R: 1})], {R: 0}, []),
        ([Bid(0, 1, {R: 1})], {}, []),
        # The smallest turn is first; of equal turns the earliest.
        ([Bid(5, 1, {R: 1}), Bid(4, 2, {R: 1})], {R: 1}, [1]),
        ([Bid(5, 2, {R: 1}), Bid(5, 1, {R: 1})], {R: 1}, [1]),
        ([Bid(5, 2, {R: 1}), Bid(5, 1, {R: 1})], {R: 2}, [1, 0]),
        # All that is needed, or nothing.
        ([Bid(0, 1, {R: 1, S: 1})], {R: 1, S: 0}, []),
        ([Bid(0, 1, {R: 1, S: 1})], {R: 1, S: 1}, [0]),
        # One that cannot run yet is not overtaken by one that needs less of the same,
        ([Bid(0, 1, {R: 3}), Bid(1, 2, {R: 1})], {R: 2}, []),
        ([Bid(0, 1, {R: 1, S: 1}), Bid(1, 2, {S: 1})], {R: 0, S: 1}, []),
        # unless there is enough for both,
        ([Bid(0, 1, {R: 1, S: 1}), Bid(1, 2, {S: 1})], {R: 0, S: 2}, [1]),
        # and it does not hold up others that need something else.
        ([Bid(0, 1, {R: 1}), Bid(1, 2, {S: 1})], {R: 0, S: 1}, [1]),
        # A limit sank below what is held.
        ([Bid(0, 1, {R: 1})], {R: -1}, []),
    ],
)
def test_admission_follows_position_priority_and_resources(
    bids: list[Bid], free: dict[Resource, int], expected: list[int]
) -> None:
    assert admitted(bids, free) == expected


def entered(limiter: RateLimiter, name: str, of: InstanceLimit, gpu: int | None = None) -> Reservation:
    reservation = limiter.add(placed(name, of, gpu), name)
    assert reservation is not None
    return reservation


def busy(*reservations: Reservation) -> None:
    """All of `reservations` have work from now on, without end."""
    for reservation in reservations:
        reservation.has_more = lambda: True
        reservation.request()


def run(turns: int, *reservations: Reservation) -> Counter[str]:
    """How often each of `reservations` runs, if one that runs ends before another begins."""
    ran: Counter[str] = Counter()
    for _ in range(turns):
        running = next(reservation for reservation in reservations if reservation.state is HELD)
        ran[running.name] += 1
        running.end()
    return ran


def test_instances_sharing_a_resource_run_one_at_a_time() -> None:
    limiter = RateLimiter()
    one, other = entered(limiter, "a", limit(r=1)), entered(limiter, "b", limit(r=1))
    assert one.request()
    assert one.request()
    assert not other.request()
    assert not other.try_take()
    assert other.state is WAITING
    one.end()
    assert (one.state, other.state) == (IDLE, HELD)
    assert other.wait()


@pytest.mark.parametrize(("priority", "expected"), [(1, (60, 60)), (2, (80, 40)), (5, (101, 19)), (0, (60, 60))])
def test_busy_instance_of_priority_n_gets_an_nth_of_the_executions(priority: int, expected: tuple[int, int]) -> None:
    limiter = RateLimiter()
    one, other = entered(limiter, "a", limit(r=1)), entered(limiter, "b", limit(max(1, priority), r=1))
    busy(one, other)
    ran = run(120, one, other)
    assert (ran["a"], ran["b"]) == expected


def test_implied_limits_change_with_the_instances() -> None:
    limiter = RateLimiter()
    small = [entered(limiter, f"s{number}", limit(r=1)) for number in range(3)]
    assert [reservation.request() for reservation in small] == [True, False, False]
    large = entered(limiter, "large", limit(r=2))
    assert [reservation.state for reservation in small] == [HELD, HELD, WAITING]
    limiter.remove(large)
    small[0].end()
    assert [reservation.state for reservation in small] == [IDLE, HELD, WAITING]
    small[1].end()
    assert small[2].state is HELD


def test_refused_instance_changes_no_limits() -> None:
    limiter = RateLimiter([ResourceLimit("r", 1)])
    entered(limiter, "a", limit(r=1))
    before = limiter.metrics()
    with pytest.raises(ConfigInvalid):
        limiter.add(placed("b", limit(s=1, r=2)), "b")
    assert limiter.metrics() == before


def test_withdrawn_reservation_frees_its_resources_uncounted() -> None:
    limiter = RateLimiter()
    one, other, third = (entered(limiter, name, limit(r=1)) for name in "abc")
    one.request()
    other.request()
    third.request()
    other.withdraw()
    one.withdraw()
    assert [reservation.state for reservation in (one, other, third)] == [IDLE, IDLE, HELD]
    assert (one.position, other.position) == (LOAD_EXECUTIONS, LOAD_EXECUTIONS)


def test_executions_of_a_load_leave_the_position() -> None:
    reservations = InstanceReservations(RateLimiter())
    instance = Stub(limit=limit(2, r=1))
    reservations.add(instance, "a")
    reservation = reservations.of(instance)
    assert reservation is not None
    with reservations.held(instance):
        assert reservation.state is HELD
    assert (reservation.state, reservation.position) == (IDLE, 2 * LOAD_EXECUTIONS)


def test_a_wait_can_be_interrupted() -> None:
    limiter = RateLimiter()
    one, other = entered(limiter, "a", limit(r=1)), entered(limiter, "b", limit(r=1))
    one.request()
    other.request()
    outcomes: list[bool] = []
    waiter = threading.Thread(target=lambda: outcomes.append(other.wait()))
    waiter.start()
    other.interrupt()
    waiter.join(60)
    one.interrupt()  # what it holds stays
    assert (outcomes, one.state, other.state) == ([False], HELD, IDLE)
