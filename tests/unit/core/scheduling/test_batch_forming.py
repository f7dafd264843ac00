"""How batches are formed: complete tables of decisions, what is taken from the queue, and who waits."""

from __future__ import annotations

import sys

import pytest

from tests.unit.core.scheduling.scheduler_bench import model_spec
from tests.unit.pending_requests import pending_request
from trident.core.config.spec import BatchingSpec
from trident.core.errors import RequestCancelled
from trident.core.inference.pending_request import CancelCause, PendingRequest
from trident.core.inference.request import DEADLINE, DELAY, FULL, PREFERRED, PRIORITY, SHAPE, Caller, CloseReason
from trident.core.inference.request import IDLE as NO_WAIT
from trident.core.scheduling.batch_forming import (
    SETTLED_DELAYS,
    SETTLED_NS,
    UNBATCHED,
    BatchLimits,
    Callers,
    Run,
    Wait,
    Work,
    form_batch,
    limits_of,
    may_end,
    take_work,
)
from trident.core.scheduling.instance import ShortExecutions
from trident.core.scheduling.queue import RequestQueue

S = 1_000_000_000
DELAYED = BatchLimits(8, frozenset((2, 6)), 6, 10 * S)
IMMEDIATE = BatchLimits(8, frozenset((4, 6)), 6, 0)
NONE_PREFERRED = BatchLimits(8, frozenset((8,)), 8, 0)


def requests(*sizes: int, enqueue_ns: int = S) -> list[PendingRequest]:
    return [pending_request(batch_size=size, enqueue_ns=enqueue_ns) for size in sizes]


@pytest.mark.parametrize(
    ("sizes", "decision"),
    [
        ([], None),
        # preferred sizes run at once; others wait for the next preferred size
        ([2], Run(1, PREFERRED)),
        ([6], Run(1, PREFERRED)),
        ([1, 1], Run(2, PREFERRED)),
        ([1], Wait(11 * S, 2, None, S)),
        ([3], Wait(11 * S, 6, None, S)),
        ([3, 2], Wait(11 * S, 6, None, S)),
        ([2, 1], Run(1, PREFERRED)),
        # a first request above every preferred size runs at once
        ([7], Run(1, PREFERRED)),
        ([8], Run(1, FULL)),
        ([7, 1], Run(1, PREFERRED)),
        # requests that would exceed the largest preferred size stay queued
        ([3, 4], Run(1, PREFERRED)),
        ([4], Wait(11 * S, 6, None, S)),
        ([3, 6], Run(1, PREFERRED)),
        ([5, 4], Run(1, PREFERRED)),
        # the largest preferred size that can be reached
        ([1] * 6, Run(6, PREFERRED)),
        ([1] * 5, Run(2, PREFERRED)),
        ([1] * 7, Run(6, PREFERRED)),
        ([1] * 8, Run(6, PREFERRED)),
        ([1, 1, 4, 1], Run(3, PREFERRED)),
        ([1, 2, 3], Run(3, PREFERRED)),
        # a batch dimension of zero counts as one item
        ([0, 0], Run(2, PREFERRED)),
    ],
)
def test_preferred_two_and_six_with_a_delay(sizes: list[int], decision: object) -> None:
    assert form_batch(requests(*sizes), DELAYED, 2 * S) == decision


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


def test_a_request_that_arrived_before_those_that_wait_ends_the_wait() -> None:
    wait = Wait(11 * S, 6, None, S)
    (pending,) = requests(1, enqueue_ns=3 * S)
    assert not may_end(wait, pending, 3)
    pending.request.arrived_ns = S + 1
    assert not may_end(wait, pending, 3)
    pending.request.arrived_ns = S - 1
    assert may_end(wait, pending, 3)


@pytest.mark.parametrize(("limits", "count"), [(IMMEDIATE, 6), (DELAYED, 6), (NONE_PREFERRED, 8)])
def test_a_batch_of_requests_that_overtook_another_is_closed_by_priority(limits: BatchLimits, count: int) -> None:
    queue = requests(*[1] * (count - 1), enqueue_ns=S + 2) + requests(1, enqueue_ns=S + 1) + requests(1, enqueue_ns=S)
    assert form_batch(queue, limits, 2 * S) == Run(count, PRIORITY)
    queue[-1].enqueue_ns = S + 1
    assert form_batch(queue, limits, 2 * S) != Run(count, PRIORITY)


def test_with_a_margin_a_batch_is_closed_before_one_of_its_requests_expires() -> None:
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


@pytest.mark.parametrize(
    ("max_batch_size", "batching", "limits"),
    [
        (8, None, UNBATCHED),
        (8, BatchingSpec(preferred_batch_sizes=()), BatchLimits(8, frozenset((8,)), 8, 0)),
        (0, BatchingSpec(preferred_batch_sizes=()), BatchLimits(1, frozenset((1,)), 1, 0)),
        (8, BatchingSpec(preferred_batch_sizes=(2, 6), max_queue_delay_ns=10 * S), DELAYED),
    ],
)
def test_limits_follow_the_configuration(
    max_batch_size: int, batching: BatchingSpec | None, limits: BatchLimits
) -> None:
    assert limits_of(model_spec(max_batch_size, batching)) == limits


BATCHES = BatchLimits(4, frozenset((4,)), 4, 0)
DELAYED_FOUR = BATCHES._replace(delay_ns=100)
SPEC = model_spec(4)


def queue_with(*ids: str, delay_until: int = 0) -> RequestQueue:
    queue = RequestQueue(BatchingSpec(preferred_batch_sizes=()), delay_until)
    for id in ids:
        queue.push(pending_request(id))
    return queue


def ids_of(batch: list[PendingRequest]) -> list[str]:
    return [pending.request.id for pending in batch]


def test_a_queue_that_is_empty_or_below_delay_until_gives_no_work() -> None:
    assert take_work(queue_with(), BATCHES, 1) is None
    assert take_work(queue_with("a", delay_until=2), BATCHES, 1) is None


def test_a_batch_leaves_the_queue_unless_it_may_grow_or_be_long() -> None:
    queue = queue_with(*"abcde")
    work = take_work(queue, BATCHES, 1)
    assert isinstance(work, Work)
    assert ids_of(work.batch) == list("abcd")
    assert (work.rejections, work.reason, queue.size) == ([], CloseReason.FULL, 1)
    queue = queue_with("a")
    assert isinstance(take_work(queue, DELAYED_FOUR, 1), Wait)
    assert queue.size == 1
    queue = queue_with("a")
    assert take_work(queue, UNBATCHED, 1, is_short=ShortExecutions(SPEC).expected) is None
    assert queue.size == 1


def test_a_full_batch_that_left_an_older_request_of_a_lower_level_is_closed_by_priority() -> None:
    levels = BatchingSpec(preferred_batch_sizes=(), priority_levels=2, default_priority_level=2)
    queue = RequestQueue(levels)
    for number, priority in enumerate((2, 1, 1, 1, 1)):
        pending = pending_request(str(number), enqueue_ns=number)
        pending.request.priority = priority
        queue.push(pending)
    work = take_work(queue, BATCHES, 5)
    assert isinstance(work, Work)
    assert (ids_of(work.batch), work.reason) == (list("1234"), CloseReason.PRIORITY)


def test_rejections_are_work_while_a_batch_waits() -> None:
    queue = queue_with()
    cancelled = pending_request("a")
    cancelled.cancelled = CancelCause.CLIENT
    queue.push(cancelled)
    queue.push(pending_request("b"))
    work = take_work(queue, DELAYED_FOUR, 1)
    assert isinstance(work, Work)
    assert work.batch == []
    assert [(rejection.pending, type(rejection.error)) for rejection in work.rejections] == [
        (cancelled, RequestCancelled)
    ]


DELAY_NS = 1000
LATER_NS = SETTLED_NS + 1


def request_of(caller: Caller | None) -> PendingRequest:
    pending = pending_request()
    pending.request.caller = caller
    return pending


def noted(*callers: Caller | None, delay_ns: int = DELAY_NS) -> tuple[Callers, list[PendingRequest]]:
    """Callers that have sent a request at 1, and these requests."""
    found = Callers(delay_ns)
    requests = [request_of(caller) for caller in callers]
    for request in requests:
        found.note(request, 1)
    return found, requests


def all_wait(callers: Callers, requests: list[PendingRequest], now_ns: int) -> bool:
    answer = callers.all_wait(requests, now_ns)
    assert callers.may_all_wait(len(requests), now_ns) or not answer
    return answer


def test_callers_are_known_to_wait_when_none_is_new_for_long_enough() -> None:
    callers, requests = noted(Caller(), Caller(), Caller())
    assert all_wait(callers, requests, LATER_NS)
    assert not all_wait(callers, requests[:2], LATER_NS)
    assert not all_wait(callers, [requests[0], requests[1], requests[1]], LATER_NS)
    callers, requests = noted(Caller(), Caller())
    assert not all_wait(callers, requests, LATER_NS - 1)
    requests.append(request_of(Caller()))
    callers.note(requests[-1], LATER_NS)
    assert not all_wait(callers, requests, LATER_NS)
    assert all_wait(callers, requests, LATER_NS + SETTLED_NS)
    callers, requests = noted(Caller(), delay_ns=SETTLED_NS)
    assert not all_wait(callers, requests, SETTLED_DELAYS * SETTLED_NS)
    assert all_wait(callers, requests, SETTLED_DELAYS * SETTLED_NS + 1)


def test_callers_that_are_unknown_or_gone_are_not_waited_for() -> None:
    callers, requests = noted(Caller())
    other = request_of(None)
    callers.note(other, LATER_NS)
    assert not all_wait(callers, [*requests, other], LATER_NS)
    assert not all_wait(callers, requests, LATER_NS + SETTLED_NS - 1)
    assert all_wait(callers, requests, LATER_NS + SETTLED_NS)
    gone = Caller()
    callers, requests = noted(Caller(), gone)
    assert not all_wait(callers, requests[:1], LATER_NS)
    gone.is_open = False
    assert not all_wait(callers, requests[:1], LATER_NS + SETTLED_NS - 1)
    assert all_wait(callers, requests[:1], LATER_NS + SETTLED_NS)


def test_callers_that_ask_once_and_go_are_not_kept() -> None:
    callers, requests = noted(Caller())
    first = Caller()
    for caller in (first, *(Caller() for _ in range(1000))):
        callers.note(request_of(caller), LATER_NS)
        caller.is_open = False
    assert sys.getrefcount(first) == 2  # the name and the argument
    assert all_wait(callers, requests, LATER_NS + SETTLED_NS)
