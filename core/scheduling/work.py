"""The work that a thread takes from the queue at once."""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

from core.inference.close_reason import CALLERS, IDLE, CloseReason
from core.inference.pending_request import PendingRequest
from core.scheduling.policy import BatchLimits, Run, Wait, form_batch
from core.scheduling.queue import RequestQueue
from core.scheduling.rejection import Rejection
from core.scheduling.short_executions import ShortExecutions


class Work(NamedTuple):
    """A batch to execute, perhaps empty, the requests to answer with an error, and why the batch was closed."""

    batch: list[PendingRequest]
    rejections: list[Rejection]
    reason: CloseReason = IDLE


def take_work(
    queue: RequestQueue,
    limits: BatchLimits,
    now_ns: int,
    short: ShortExecutions | None = None,
    may_run: Callable[[], bool] | None = None,
) -> Work | Wait | Run | None:
    """Take from `queue` the work that is due. Under the scheduler's lock.

    Returns Wait if a batch should grow first, and None if there is nothing to do. With `short`, a batch is taken only
    if its execution is expected to be short. With `may_run`, it is asked when a batch is due; if the batch may not run
    yet, it stays in the queue, where it can grow, and Run is returned.
    """
    if not queue.size or queue.delay_until:
        return None
    # Where requests go ahead of others, one more than a batch can have shows which were overtaken.
    limit = limits.max_batch_size if queue.is_in_order else limits.max_batch_size + 1
    candidates, rejections = queue.candidates(limit, now_ns)
    decision = form_batch(candidates, limits, now_ns)
    callers = queue.callers
    if callers is not None and isinstance(decision, Wait) and callers.all_wait(candidates, now_ns):
        decision = Run(len(candidates), CALLERS)
    if isinstance(decision, Run) and (short is None or short.expected(candidates[: decision.requests])):
        if may_run is None or may_run():
            return Work(queue.take(decision.requests), rejections, decision.reason)
        return Work([], rejections) if rejections else decision
    if rejections:
        return Work([], rejections)
    return decision if isinstance(decision, Wait) else None
