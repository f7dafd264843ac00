"""When to run which of the queued requests: pure functions of the queue's head, the limits and the time.

An idle instance asks `form_batch` what to do with the requests at the head of the queue. Nobody forms batches ahead of
a free instance, so a batch that waits at an instance and may still grow (rule (e) of the source) does not exist here:
what has queued up when an instance becomes free is the batch.
Source: docs/spec/schedulers.md section 3.2, "Batch forming".
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

from core.config.model_spec import ModelSpec
from core.inference.pending_request import PendingRequest


class BatchLimits(NamedTuple):
    """What bounds a batch. Sizes count items; `preferred` is not empty, and none of it exceeds `max_batch_size`."""

    max_batch_size: int
    preferred: frozenset[int]
    largest_preferred: int
    delay_ns: int


class Run(NamedTuple):
    """Execute the first `requests` candidates now."""

    requests: int


class Wait(NamedTuple):
    """Execute nothing yet: ask again at `until_ns` (monotonic), or earlier if one of these arrives:

    a request that makes the items queued at least `grow_to`, one with another batch key than `key`, or one that goes
    ahead of another: the sizes on the way to `grow_to` are then others.
    """

    until_ns: int
    grow_to: int
    key: tuple[object, ...] | None


class Idle(NamedTuple):
    """There is nothing to execute."""


Decision = Run | Wait | Idle
IDLE = Idle()

UNBATCHED = BatchLimits(1, frozenset((1,)), 1, 0)
"""The default scheduler's limits: every request is an execution of its own, whatever its batch size."""


def limits_of(spec: ModelSpec) -> BatchLimits:
    """The limits that a model's configuration sets. No preferred size means the maximum is the preferred one."""
    if spec.batching is None:
        return UNBATCHED
    largest = max(1, spec.max_batch_size)
    preferred = frozenset(spec.batching.preferred_batch_sizes) or frozenset((largest,))
    return BatchLimits(largest, preferred, max(preferred), spec.batching.max_queue_delay_ns)


def form_batch(candidates: Sequence[PendingRequest], limits: BatchLimits, now_ns: int) -> Decision:
    """What to do with `candidates`, the live requests at the head of the queue in the order in which they may run.

    The first `max_batch_size` of the queue are enough, for each weighs at least one item. A first request larger than
    every preferred size is accepted as it is: steps 2 to 4 of the source concern a batch that has begun.
    """
    max_batch_size, preferred, largest_preferred, delay_ns = limits
    count = total = cut_off = 0
    key: tuple[object, ...] | None = None
    must_send = False
    for pending in candidates:
        grown = total + (pending.batch_size or 1)
        if count:
            if grown > largest_preferred:
                cut_off = cut_off or count
                if grown > max_batch_size:
                    must_send = True
                    break
            if pending.batch_key != key:
                must_send = True
                break
        else:
            key = pending.batch_key
        total = grown
        count += 1
        if total in preferred:
            cut_off = count
    if not count:
        return IDLE
    if not delay_ns:
        return Run(cut_off or count)
    oldest_ns = min(pending.enqueue_ns for pending in candidates[:count])
    if now_ns - oldest_ns >= delay_ns:
        return Run(count)
    if cut_off:
        return Run(cut_off)
    if must_send or total >= largest_preferred:
        return Run(count)
    return _wait(candidates, limits, total, oldest_ns + delay_ns)


def may_end(wait: Wait, pending: PendingRequest, items: int) -> bool:
    """Whether forming the batch again, now that `pending` came last and makes it `items`, could end other than so."""
    return items >= wait.grow_to or pending.batch_key != wait.key or 0 < pending.expires_ns < wait.until_ns


def _wait(candidates: Sequence[PendingRequest], limits: BatchLimits, total: int, until_ns: int) -> Wait:
    """Wait out the delay or the nearest queue timeout. Every candidate fits here, and `total` is below a preferred."""
    timeouts = [pending.expires_ns for pending in candidates if pending.expires_ns]
    grow_to = min(size for size in limits.preferred if size > total)
    return Wait(min([until_ns, *timeouts]), grow_to, candidates[0].batch_key)
