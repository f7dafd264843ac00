from __future__ import annotations

from tests.unit.pending_requests import pending_request
from trident.core.config.spec import BatchingSpec, ModelSpec
from trident.core.errors import RequestCancelled
from trident.core.inference.pending_request import CancelCause, PendingRequest
from trident.core.inference.request import CloseReason
from trident.core.scheduling.execution import ShortExecutions
from trident.core.scheduling.instance import Work, take_work
from trident.core.scheduling.limits import UNBATCHED, BatchLimits, Wait
from trident.core.scheduling.queue import RequestQueue

BATCHES = BatchLimits(4, frozenset((4,)), 4, 0)
DELAYED = BATCHES._replace(delay_ns=100)
SPEC = ModelSpec(name="m", version=1, platform="", backend="stub", max_batch_size=4, inputs={}, outputs={})


def queue_of(*ids: str, delay_until: int = 0) -> RequestQueue:
    queue = RequestQueue(BatchingSpec(preferred_batch_sizes=()), delay_until)
    for id in ids:
        queue.push(pending_request(id))
    return queue


def ids_of(batch: list[PendingRequest]) -> list[str]:
    return [pending.request.id for pending in batch]


def test_an_empty_queue_gives_no_work() -> None:
    assert take_work(queue_of(), BATCHES, 1) is None


def test_a_queue_below_delay_until_gives_no_work() -> None:
    assert take_work(queue_of("a", delay_until=2), BATCHES, 1) is None


def test_a_batch_leaves_the_queue() -> None:
    queue = queue_of(*"abcde")
    work = take_work(queue, BATCHES, 1)
    assert isinstance(work, Work)
    assert ids_of(work.batch) == list("abcd")
    assert (work.rejections, work.reason, queue.size) == ([], CloseReason.FULL, 1)


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


def test_a_batch_that_may_grow_stays_queued() -> None:
    queue = queue_of("a")
    assert isinstance(take_work(queue, DELAYED, 1), Wait)
    assert queue.size == 1


def test_rejections_are_work_while_a_batch_waits() -> None:
    queue = queue_of()
    cancelled = pending_request("a")
    cancelled.cancelled = CancelCause.CLIENT
    queue.push(cancelled)
    queue.push(pending_request("b"))
    work = take_work(queue, DELAYED, 1)
    assert isinstance(work, Work)
    assert work.batch == []
    assert [(rejection.pending, type(rejection.error)) for rejection in work.rejections] == [
        (cancelled, RequestCancelled)
    ]


def test_a_batch_that_may_be_long_stays_queued_for_an_instance_thread() -> None:
    queue = queue_of("a")
    assert take_work(queue, UNBATCHED, 1, ShortExecutions(SPEC)) is None
    assert queue.size == 1
