"""The work that a thread takes from the queue at once."""

from __future__ import annotations

from typing import NamedTuple

from core.inference.pending_request import PendingRequest
from core.scheduling.policy import BatchLimits, Run, Wait, form_batch
from core.scheduling.queue import RequestQueue
from core.scheduling.rejection import Rejection
from core.scheduling.short_executions import ShortExecutions


class Work(NamedTuple):
    """A batch to execute, perhaps empty, and the requests to answer with an error."""

    batch: list[PendingRequest]
    rejections: list[Rejection]


def take_work(
    queue: RequestQueue, limits: BatchLimits, now_ns: int, short: ShortExecutions | None = None
) -> Work | Wait | None:
    """Take from `queue` the work that is due. Under the scheduler's lock.

    Returns Wait if a batch should grow first, and None if there is nothing to do. With `short`, a batch is taken only
    if its execution is expected to be short.
    """
    if not queue.size or queue.delay_until:
        return None
    candidates, rejections = queue.candidates(limits.max_batch_size, now_ns)
    decision = form_batch(candidates, limits, now_ns)
    if isinstance(decision, Run) and (short is None or short.expected(candidates[: decision.requests])):
        return Work(queue.take(decision.requests), rejections)
    if rejections:
        return Work([], rejections)
    return decision if isinstance(decision, Wait) else None
