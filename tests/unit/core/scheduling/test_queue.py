"""The request queue: the order of its levels, their policies, and the answers to requests that leave it."""

from __future__ import annotations

import sys

import pytest

from tests.unit.pending_requests import pending_request as request
from trident.core.config.spec import BatchingSpec, QueuePolicy
from trident.core.errors import DeadlineExceeded, QueueFull, RequestCancelled, ServerError, ServerStopping
from trident.core.inference.pending_request import CancelCause, PendingRequest
from trident.core.inference.response import InferenceResponse
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.observability.statistics import FailureReason
from trident.core.scheduling.queue import Rejection, RequestQueue, deliver, flush_callers, reject

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


def test_items_count_batch_sizes_and_zero_as_one() -> None:
    queue = RequestQueue()
    for size in (0, 3):
        made = request("x")
        made.batch_size = size
        queue.push(made)
    assert queue.items == 4
    queue.take(1)
    assert queue.items == 3


def test_unknown_priorities_go_to_the_default_level() -> None:
    queue = queue_of(levels=3, default=2)
    for id, priority in [("a", 3), ("b", 0), ("c", 1), ("d", 4), ("e", 2), ("f", 1)]:
        queue.push(request(id, priority=priority))
    assert ids(queue.candidates(8, 0)[0]) == "cfbdea"
    assert ids(queue.candidates(3, 0)[0]) == "cfb"
    assert ids(queue.take(4)) == "cfbd"
    assert ids(queue.candidates(8, 0)[0]) == "ea"


def test_requests_behind_the_limit_replace_rejected_ones() -> None:
    queue = queue_of()
    requests = [request(id) for id in "abcd"]
    for made in requests:
        queue.push(made)
    requests[0].cancelled = requests[3].cancelled = CancelCause.CLIENT
    live, rejections = queue.candidates(2, 0)
    assert ids(live) == "bc"
    assert ids([rejection.pending for rejection in rejections]) == "a"
    assert queue.size == 3


def test_the_reject_action_rejects_at_the_timeout() -> None:
    queue = queue_of(QueuePolicy(default_timeout_ns=100))
    queue.push(request("a", enqueue_ns=10))
    queue.push(request("b", enqueue_ns=20))
    assert ids(queue.candidates(8, 109)[0]) == "ab"
    live, ((rejected, error),) = queue.candidates(8, 110)
    assert ids(live) == "b"
    assert rejected.request.id == "a"
    assert isinstance(error, DeadlineExceeded)
    assert error.message == "Request timeout expired"


def test_the_delay_action_moves_a_request_to_the_end_without_a_timeout() -> None:
    policy = QueuePolicy(default_timeout_ns=100, delay_on_timeout=True)
    queue = queue_of(of_1=policy, levels=2, default=1)
    queue.push(request("z", priority=2))
    queue.push(request("a", enqueue_ns=0))
    queue.push(request("b", enqueue_ns=50))
    assert ids(queue.candidates(8, 100)[0]) == "baz"
    queue.push(request("c", enqueue_ns=120))
    assert ids(queue.candidates(8, 120)[0]) == "bcaz"
    live, rejections = queue.candidates(8, 10_000)
    assert (ids(live), rejections) == ("abcz", [])
    assert queue.size == 4
    assert ids(queue.take(4)) == "abcz"


def test_a_delayed_request_can_be_cancelled() -> None:
    queue = queue_of(QueuePolicy(default_timeout_ns=100, delay_on_timeout=True))
    queue.push(made := request("a"))
    assert ids(queue.candidates(8, 100)[0]) == "a"
    made.cancelled = CancelCause.CLIENT
    live, rejections = queue.candidates(8, 101)
    assert (live, len(rejections)) == ([], 1)
    assert queue.size == 0


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


def test_whatever_waits_expires_but_not_what_is_only_delayed() -> None:
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
    queue.take(1)
    queue.push(request("e"))
    assert queue.size == 3


def test_a_request_of_a_higher_level_is_not_last() -> None:
    queue = queue_of(levels=3, default=2)
    assert not queue.is_in_order
    for priority, is_last in [(2, True), (2, True), (1, False), (3, True), (2, False)]:
        made = request("x", priority=priority)
        queue.push(made)
        assert queue.is_last(made) is is_last


def test_a_request_goes_ahead_of_delayed_ones() -> None:
    queue = queue_of(QueuePolicy(default_timeout_ns=10, delay_on_timeout=True))
    assert not queue.is_in_order
    queue.push(request("a"))
    queue.candidates(8, 100)
    late = request("b", enqueue_ns=100)
    queue.push(late)
    assert not queue.is_last(late)


@pytest.mark.parametrize("policy", [QueuePolicy(), QueuePolicy(default_timeout_ns=10, max_queue_size=4)])
def test_a_single_level_without_the_delay_action_is_in_order(policy: QueuePolicy) -> None:
    assert queue_of(policy).is_in_order
    assert RequestQueue().is_in_order


@pytest.mark.parametrize(
    ("error", "reason"),
    [
        (RequestCancelled(""), FailureReason.CANCELED),
        (DeadlineExceeded("too late"), FailureReason.REJECTED),
        (ServerStopping("stopping"), FailureReason.OTHER),
    ],
)
def test_a_rejected_request_is_counted_by_its_error_and_answered(error: ServerError, reason: FailureReason) -> None:
    responses: list[InferenceResponse] = []
    flushes: list[int] = []
    pending = request("a", on_response=responses.append)
    pending.flush = lambda: flushes.append(len(responses))
    statistics = ModelStatistics()
    reject(Rejection(pending, error), statistics, deliver, 1)
    assert [(response.id, response.error, response.final) for response in responses] == [("a", error, True)]
    assert flushes == [1]
    failures = statistics.snapshot().request_failures
    assert {counted: number for counted, number in failures.items() if number} == {reason: 1}


def test_a_failing_callback_is_only_logged(caplog: pytest.LogCaptureFixture) -> None:
    def on_response(response: InferenceResponse) -> None:
        raise RuntimeError("the socket is gone")

    deliver(request(on_response=on_response), InferenceResponse("m", 1, []))
    assert "the socket is gone" in caplog.text


class FrontEnd:
    """A caller that counts its flushes."""

    def __init__(self) -> None:
        self.flushes = 0

    def flush(self) -> None:
        self.flushes += 1


def test_flush_calls_each_caller_of_a_batch_once() -> None:
    requests = [request() for _ in range(9)]
    first, second = FrontEnd(), FrontEnd()
    tell_first, tell_second = first.flush, second.flush
    for number, each in enumerate(requests):
        each.flush = (tell_first, tell_second, None)[number % 3]
    flush_callers(requests)
    assert (first.flushes, second.flushes) == (1, 1)
    flush_callers([request()])
    flush_callers([])
