"""How a batch is formed: which queued requests to run, when, and why the batch is closed.

A free instance, or a submitting thread that executes itself, calls `take_work`. No batch is formed before an instance
is free, so there is no batch that waits for its instance and may still grow (rule (e) of the source): the requests that
are queued when an instance becomes free are the batch. `form_batch` decides, as a pure function of the head of the
queue, the limits and the time.
The queue delay of a request begins when it arrived at a front end, if that is known: requests that come together are
read one after the other while the delay of the first already runs.
With a latency target the limits change while the model serves (`latency_target.py`).
Source: docs/spec/schedulers.md section 3.2, "Batch forming" and "Why a batch was closed".
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from trident.core.config.spec import ModelSpec
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import (
    DEADLINE,
    DELAY,
    FULL,
    PREFERRED,
    PRIORITY,
    SHAPE,
    CloseReason,
)
from trident.core.inference.request import IDLE as NO_WAIT
from trident.core.scheduling.queue import Rejection, RequestQueue


class BatchLimits(NamedTuple):
    """The limits of a batch. Sizes count items. The sizes of `preferred` are at most `max_batch_size`; with a delay it
    is not empty.

    With `before_timeout_ns` a batch waits no longer than until so long before a queue timeout; with 0 the request with
    the timeout expires, as in Triton.
    """

    max_batch_size: int
    preferred: frozenset[int]
    largest_preferred: int
    delay_ns: int
    before_timeout_ns: int = 0


UNBATCHED: Final = BatchLimits(1, frozenset(), 1, 0)
"""The limits without dynamic batching: each request is one execution, whatever its batch size."""


def limits_of(spec: ModelSpec) -> BatchLimits:
    """The limits that a model's configuration sets. Without preferred sizes the maximum is the preferred size."""
    if spec.batching is None:
        return UNBATCHED
    largest = max(1, spec.max_batch_size)
    preferred = frozenset(spec.batching.preferred_batch_sizes) or frozenset((largest,))
    return BatchLimits(largest, preferred, max(preferred), spec.batching.max_queue_delay_ns)


class Run(NamedTuple):
    """Execute the first `requests` candidates now, because of `reason`."""

    requests: int
    reason: CloseReason


class Wait(NamedTuple):
    """Execute nothing yet, and ask again at `until_ns` (monotonic).

    Ask again earlier if a request arrives that makes the queued items at least `grow_to`, that has another batch key
    than `key`, that came in before `oldest_ns` although it was queued later, or that goes ahead of others, because then
    the batch would grow through other sizes.
    """

    until_ns: int
    grow_to: int
    key: tuple[object, ...] | None
    oldest_ns: int
    before_timeout_ns: int = 0


class Work:
    """A batch to execute, perhaps empty, the requests to answer with an error, and why the batch was closed."""

    __slots__ = ("batch", "reason", "rejections")

    def __init__(self, batch: list[PendingRequest], rejections: list[Rejection], reason: CloseReason = NO_WAIT) -> None:
        self.batch = batch
        self.rejections = rejections
        self.reason = reason


def take_work(
    queue: RequestQueue,
    limits: BatchLimits,
    now_ns: int,
    *,
    is_short: Callable[[Sequence[PendingRequest]], bool] | None = None,
    may_run: Callable[[], bool] | None = None,
) -> Work | Wait | Run | None:
    """Take from `queue` the work that is due. Under the scheduler's lock.

    Returns Wait if a batch should grow first, and None if there is nothing to do. With `is_short`, a batch is taken
    only if that is true of it. With `may_run`, it is asked when a batch is due; if the batch may not run yet, it stays
    in the queue, where it can grow, and Run is returned.
    """
    if not queue.size or queue.delay_until:
        return None
    # Where requests go ahead of others, one more than a batch can have shows which were overtaken.
    limit = limits.max_batch_size if queue.is_in_order else limits.max_batch_size + 1
    candidates, rejections = queue.candidates(limit, now_ns)
    try:
        decision = form_batch(candidates, limits, now_ns)
        if isinstance(decision, Run) and (is_short is None or is_short(candidates[: decision.requests])):
            if may_run is None or may_run():
                return Work(queue.take(decision.requests), rejections, decision.reason)
            return Work([], rejections) if rejections else decision
    except Exception:
        if not rejections:
            raise
        # These have left the queue. The next call meets the exception again.
    if rejections:
        return Work([], rejections)
    return decision if isinstance(decision, Wait) else None


def form_batch(candidates: Sequence[PendingRequest], limits: BatchLimits, now_ns: int) -> Run | Wait | None:
    """Decide what to do with `candidates`, the live requests at the head of the queue in the order of execution.

    Returns None without candidates.
    The first `max_batch_size` requests are enough, because each has at least one item; one more shows whether it was
    overtaken. A first request that is larger than every preferred size is accepted: steps 2 to 4 of the source apply to
    a batch that is not empty.
    """
    max_batch_size, preferred, largest_preferred, delay_ns, before_timeout_ns = limits
    count = total = cut_off = 0
    key: tuple[object, ...] | None = None
    reason = cut_reason = NO_WAIT
    for pending in candidates:
        grown = total + (pending.batch_size or 1)
        if count:
            if grown > largest_preferred:
                if not cut_off:
                    cut_off, cut_reason = count, FULL if largest_preferred == max_batch_size else PREFERRED
                if grown > max_batch_size:
                    reason = FULL
                    break
            if pending.batch_key != key:
                reason = SHAPE
                break
        else:
            key = pending.batch_key
        total = grown
        count += 1
        if total in preferred:
            cut_off, cut_reason = count, FULL if total == max_batch_size else PREFERRED
    if not count:
        return None
    if not delay_ns:
        return _sized(candidates, cut_off, cut_reason) if cut_off else Run(count, reason)
    if reason is NO_WAIT and total >= largest_preferred:
        reason = FULL if total >= max_batch_size else PREFERRED
    oldest_ns = min([pending.request.arrived_ns or pending.enqueue_ns for pending in candidates[:count]])
    if now_ns - oldest_ns >= delay_ns:
        return _sized(candidates, count, DELAY if reason is NO_WAIT or reason is PREFERRED else reason)
    if cut_off:
        return _sized(candidates, cut_off, cut_reason)
    if reason is not NO_WAIT:
        return _sized(candidates, count, reason)
    # Wait for the end of the delay or for a queue timeout. All candidates fit; `total` is below a preferred size.
    before_ns = limits.before_timeout_ns
    timeouts = [pending.expires_ns - before_ns for pending in candidates if pending.expires_ns]
    until_ns = min([oldest_ns + limits.delay_ns, *timeouts])
    grow_to = min(size for size in limits.preferred if size > total)
    wait = Wait(until_ns, grow_to, candidates[0].batch_key, oldest_ns, before_ns)
    if before_timeout_ns and wait.until_ns <= now_ns:
        return Run(count, DEADLINE)
    return wait


def may_end(wait: Wait, pending: PendingRequest, items: int) -> bool:
    """Return True if the decision can change, now that `pending` arrived and `items` are queued."""
    return (
        items >= wait.grow_to
        or pending.batch_key != wait.key
        or 0 < pending.expires_ns < wait.until_ns + wait.before_timeout_ns
        or 0 < pending.request.arrived_ns < wait.oldest_ns
    )


def _sized(candidates: Sequence[PendingRequest], count: int, reason: CloseReason) -> Run:
    """Run `count` candidates because of `reason`, or of priority if the last one has overtaken one that waits on."""
    is_cut = (reason is FULL or reason is PREFERRED) and count < len(candidates)
    if is_cut and candidates[count].enqueue_ns < candidates[count - 1].enqueue_ns:
        reason = PRIORITY
    return Run(count, reason)
