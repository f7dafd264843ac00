"""How batches are formed: complete tables of decisions, and the order and timeouts of the queue."""

from __future__ import annotations

import sys

import pytest

from tests.unit.pending_requests import pending_request
from tests.unit.pending_requests import pending_request as request
from trident.core.config.spec import BatchingSpec, QueuePolicy
from trident.core.errors import QueueFull
from trident.core.inference.pending_request import CancelCause, PendingRequest
from trident.core.inference.request import DEADLINE, DELAY, FULL, SHAPE
from trident.core.inference.request import IDLE as NO_WAIT
from trident.core.scheduling.batch_forming import BatchLimits, Run, Wait, form_batch, may_end
from trident.core.scheduling.queue import RequestQueue

S = 1_000_000_000
DELAYED = BatchLimits(8, frozenset((2, 6)), 6, 10 * S)
NONE_PREFERRED = BatchLimits(8, frozenset((8,)), 8, 0)


def requests(*sizes: int, enqueue_ns: int = S) -> list[PendingRequest]:
    return [pending_request(batch_size=size, enqueue_ns=enqueue_ns) for size in sizes]


@pytest.mark.parametrize(
    ("sizes", "runs"),
    [
        ([1], [Run(1, NO_WAIT)]),
        ([1] * 8, [Run(8, FULL)]),
        ([1] * 20, [Run(8, FULL), Run(8, FULL), Run(4, NO_WAIT)]),
        ([5, 4], [Run(1, FULL), Run(1, NO_WAIT)]),
        ([5, 3, 1], [Run(2, FULL), Run(1, NO_WAIT)]),
        ([8], [Run(1, FULL)]),
    ],
)
def test_without_a_preferred_size_all_queued_requests_run(sizes: list[int], runs: list[Run]) -> None:
    assert run_all(requests(*sizes), NONE_PREFERRED) == runs


def run_all(queue: list[PendingRequest], limits: BatchLimits) -> list[Run]:
    """The executions until the queue is empty. Each decision sees as much of it as in the scheduler."""
    runs = []
    while queue:
        decision = form_batch(queue[: limits.max_batch_size], limits, 2 * S)
        assert isinstance(decision, Run)
        runs.append(decision)
        del queue[: decision.requests]
    return runs


def test_another_batch_key_ends_the_batch() -> None:
    queue = requests(1, 1, 1)
    queue[0].batch_key = queue[1].batch_key = ("a",)
    queue[2].batch_key = ("b",)
    assert form_batch(queue, NONE_PREFERRED, 2 * S) == Run(2, SHAPE)
    assert form_batch(queue[1:], DELAYED, 2 * S) == Run(1, SHAPE)
    assert form_batch(queue[1:], DELAYED, 11 * S) == Run(1, SHAPE)
    assert form_batch(queue[2:], DELAYED, 2 * S) == Wait(11 * S, 2, ("b",), S)


def test_the_delay_ends_after_the_oldest_arrival_or_before_a_timeout() -> None:
    queue = requests(1) + requests(2, enqueue_ns=S // 2)
    assert form_batch(queue, DELAYED, 2 * S) == Wait(10 * S + S // 2, 6, None, S // 2)
    queue = requests(1, 2)
    queue[1].request.arrived_ns = S // 4
    assert form_batch(queue, DELAYED, 2 * S) == Wait(10 * S + S // 4, 6, None, S // 4)
    assert form_batch(queue, DELAYED, 10 * S + S // 4) == Run(2, DELAY)
    queue = requests(1, 2)
    queue[1].expires_ns = 5 * S
    assert form_batch(queue, DELAYED, 2 * S) == Wait(5 * S, 6, None, S)


def test_batch_is_closed_a_margin_before_a_request_expires() -> None:
    limits = DELAYED._replace(before_timeout_ns=S)
    queue = requests(1, 2)
    queue[1].expires_ns = 5 * S
    assert form_batch(queue, limits, 2 * S) == Wait(4 * S, 6, None, S, S)
    assert form_batch(queue, limits, 4 * S) == Run(2, DEADLINE)
    assert form_batch(queue, limits, 11 * S) == Run(2, DELAY)
    (pending,) = requests(1)
    pending.expires_ns = 5 * S
    assert not may_end(Wait(4 * S, 6, None, S, S), pending, 4)
    pending.expires_ns = 5 * S - 1
    assert may_end(Wait(4 * S, 6, None, S, S), pending, 4)


# --- the request queue: the order of its levels, their policies, and the answers to removed requests


NONE = QueuePolicy()


def queue_of(policy: QueuePolicy = NONE, levels: int = 0, default: int = 0, **of: QueuePolicy) -> RequestQueue:
    """`of` are the policies of levels: `of_2` for that of level 2."""
    return RequestQueue(
        BatchingSpec(
            preferred_batch_sizes=(8,),
            priority_levels=levels,
            default_priority_level=default,
            default_policy=policy,
            level_policies={int(name.removeprefix("of_")): each for name, each in of.items()},
        )
    )


def ids(requests: list[PendingRequest]) -> str:
    return "".join(request.request.id for request in requests)


@pytest.mark.parametrize(
    ("default_ns", "override", "timeout_us", "expires_ns"),
    [
        (0, True, 5, 0),
        (0, False, 5, 0),
        (9_000, True, 5, 5_001),
        (9_000, False, 5, 9_001),
        (9_000, True, 0, 9_001),
        (9_000, True, 9, 9_001),
        (9_000, True, 10, 9_001),
    ],
)
def test_a_request_may_only_shorten_the_default_timeout(
    default_ns: int, override: bool, timeout_us: int, expires_ns: int
) -> None:
    queue = queue_of(QueuePolicy(default_timeout_ns=default_ns, allow_timeout_override=override))
    queue.push(made := request("a", timeout_us=timeout_us, enqueue_ns=1))
    assert made.expires_ns == expires_ns


def test_waiting_requests_expire_and_delayed_ones_do_not() -> None:
    delayed, rejected = QueuePolicy(default_timeout_ns=10, delay_on_timeout=True), QueuePolicy(default_timeout_ns=100)
    queue = queue_of(delayed, levels=9, default=9, of_3=rejected)
    assert queue.may_expire
    for number, id in enumerate("abcd"):
        queue.push(request(id, enqueue_ns=number, priority=3))
        queue.push(request(id.upper(), enqueue_ns=number))
    assert queue.expire(99) == ([], 100)
    queue.push(gone := request("gone", enqueue_ns=50, priority=3))
    gone.cancelled = CancelCause.CLIENT
    assert [rejection.pending for rejection in queue.expire(99)[0]] == [gone]
    rejections, next_ns = queue.expire(101)
    assert (ids([rejection.pending for rejection in rejections]), next_ns, queue.size) == ("ab", 102, 6)
    assert queue.expire(1000)[1] == sys.maxsize
    assert ids(queue.clear()) == "ABCD"


def test_levels_without_requests_are_forgotten() -> None:
    """Clients may name 2**64 levels."""
    queue = queue_of(levels=2**64 - 1, default=1)
    for priority in range(1, 10_000):
        queue.push(request("x", priority=priority * 1_000_000_007))
        queue.take(1)
    assert len(queue._levels) < 200
    for id, priority in [("c", 2**64 - 1), ("a", 0), ("b", 5)]:
        queue.push(request(id, priority=priority))
    assert ids(queue.candidates(8, 0)[0]) == "abc"


def test_only_a_full_level_refuses() -> None:
    policy = QueuePolicy(max_queue_size=2, default_timeout_ns=100, delay_on_timeout=True)
    queue = queue_of(of_1=policy, levels=2, default=1)
    queue.push(request("a"))
    queue.candidates(8, 100)
    queue.push(request("b", enqueue_ns=100))
    with pytest.raises(QueueFull) as caught:
        queue.push(request("c"))
    assert caught.value.message == "[request id: c] Exceeds maximum queue size"
    queue.push(request("d", priority=2))
    assert queue.size == 3
    assert ids(queue.take(1)) == "b"  # "a" is delayed
    queue.push(request("e"))
    assert queue.size == 3
