"""The request queue of a model: priority levels, each with its queue policy.

Not thread-safe: the scheduler's lock guards it.
Source: docs/spec/schedulers.md sections 3.2 ("Queue policy") and 3.3.
"""

from __future__ import annotations

import logging
import sys
import threading
from bisect import insort
from collections import deque
from collections.abc import Callable, Iterable
from itertools import islice
from operator import attrgetter
from typing import Final, NamedTuple

from trident.core.borders import guarded
from trident.core.config.spec import BatchingSpec, QueuePolicy
from trident.core.errors import DeadlineExceeded, QueueFull, RequestCancelled, ServerError, ServerStopping
from trident.core.inference.pending_request import PendingRequest, flush
from trident.core.inference.response import InferenceResponse, Origin
from trident.core.observability.statistics import FailureReason
from trident.core.scheduling.context import Respond, SchedulingContext

_log = logging.getLogger("trident.scheduling")

_FULL: Final = "ask again later; max_queue_size in config.pbtxt is the limit, and more instances serve more requests"
COUNTING: Final = "counting requests"
"""The subject of an exception of the statistics: it fails no request."""


def flush_callers(requests: Iterable[PendingRequest]) -> None:
    """Have the callers of answered requests send the responses that they collected: one call for each caller."""
    calls = dict.fromkeys([pending.flush for pending in requests if pending.flush is not None])
    if calls:
        flush(calls)


def reason_of(origin: Origin) -> FailureReason:
    return FailureReason.CANCELED if origin is Origin.CANCELLED else FailureReason.BACKEND


class Rejection(NamedTuple):
    """A request that was accepted and is not executed, and the error that answers it."""

    pending: PendingRequest
    error: ServerError
    origin: Origin = Origin.REJECTED

    @classmethod
    def of_cancelled(cls, pending: PendingRequest) -> Rejection:
        """Return the rejection of a request that its caller cancelled. The error has no text, as in Triton."""
        return cls(pending, RequestCancelled("", model=pending.request.model_name), Origin.CANCELLED)

    @property
    def reason(self) -> FailureReason:
        if self.origin is Origin.CANCELLED:
            return FailureReason.CANCELED
        return FailureReason.REJECTED if isinstance(self.error, DeadlineExceeded) else FailureReason.OTHER


def reject(rejection: Rejection, context: SchedulingContext, respond: Respond | None = None) -> None:
    """Count the rejection and answer its request, on the calling thread. Never raises."""
    pending, error, origin = rejection
    guarded(
        lambda: context.statistics.record_failure(pending, rejection.reason, context.clock(), error.message), COUNTING
    )
    (respond or context.refuse)(pending, InferenceResponse.failed(pending.request, error, origin))
    flush_callers((pending,))


def stopping(pending: PendingRequest, model: str, because: str = "") -> ServerStopping:
    """The error for a request that a stopped scheduler does not execute."""
    reason = because or "Server is stopping, scheduler for model has stopped accepting new inference requests"
    return ServerStopping(f"{pending.request.log_prefix}{reason}", model=model)


# From this number of priority levels on, those without requests are dropped before another one is made.
_MANY_CANCELLED: Final = 64
_priority: Final = attrgetter("priority")


class RequestQueue:
    """Requests in the order in which they may run: by priority level; within a level in order of arrival, delayed last.

    `size` counts requests, `items` their batch sizes. A model without `dynamic_batching` has one level and no policy.
    `is_in_order` tells whether no request ever goes ahead of one that arrived earlier. `delay_until` is the size below
    which the scheduler takes nothing yet, 0 for none. `is_limited` tells whether a request may keep others out, because
    the size of a level is limited: one that is cancelled should be discarded. `may_expire`: requests may be rejected
    because of their timeout.
    """

    __slots__ = (
        "_batching",
        "_by_priority",
        "_levels",
        "_prunes_at",
        "_single",
        "delay_until",
        "is_in_order",
        "is_limited",
        "items",
        "may_expire",
        "size",
    )

    def __init__(self, batching: BatchingSpec | None = None, delay_until: int = 0) -> None:
        batching = batching or BatchingSpec(preferred_batch_sizes=())
        self._batching = batching
        self._by_priority: dict[int, _Level] = {}
        # The levels that have had requests, by priority. There may be 2**64 others.
        self._levels: list[_Level] = []
        self._prunes_at = _MANY_CANCELLED
        self._single = self._level(1) if batching.priority_levels <= 1 else None
        self.is_limited = any(policy.max_queue_size for policy in batching.policies)
        self.may_expire = batching.may_expire
        self.is_in_order = self._single is not None and not self._single.policy.delay_on_timeout
        self.delay_until = delay_until
        self.size = 0
        self.items = 0

    def push(self, pending: PendingRequest) -> None:
        """Queue a request whose `enqueue_ns` is set, and set `expires_ns`. Raises QueueFull if its level is full."""
        level = self._single
        if level is None:
            priority = pending.request.priority
            if not 1 <= priority <= self._batching.priority_levels:
                priority = self._batching.default_priority_level
            level = self._by_priority.get(priority) or self._level(priority)
        if not level.is_plain:
            level.admit(pending)
        level.waiting.append(pending)
        self.size += 1
        self.items += pending.batch_size or 1

    def _level(self, priority: int) -> _Level:
        """A level that has had no requests yet, or none for a while."""
        if len(self._levels) >= self._prunes_at:
            self._levels = [level for level in self._levels if level.waiting or level.delayed]
            self._by_priority = {level.priority: level for level in self._levels}
            self._prunes_at = _MANY_CANCELLED + 2 * len(self._levels)
        level = _Level(priority, self._batching.level_policies.get(priority, self._batching.default_policy))
        insort(self._levels, level, key=_priority)
        self._by_priority[priority] = level
        return level

    def is_last(self, pending: PendingRequest) -> bool:
        """Return True if `pending`, the request pushed last, would run last of all queued requests."""
        for level in reversed(self._levels):
            if level.delayed:
                return False
            if level.waiting:
                return level.waiting[-1] is pending
        return False

    def candidates(self, limit: int, now_ns: int) -> tuple[list[PendingRequest], list[Rejection]]:
        """The first `limit` requests that may run, and the cancelled and expired ones that were among them.

        The latter have left the queue. Requests behind the candidates are not examined.
        """
        live: list[PendingRequest] = []
        rejections: list[Rejection] = []
        for level in self._levels:
            live += level.head(limit - len(live), now_ns, rejections)
            if len(live) == limit:
                break
        if rejections:
            self._count_off([rejection.pending for rejection in rejections])
        return live, rejections

    def expire(self, now_ns: int) -> tuple[list[Rejection], int]:
        """Remove the requests whose timeout has passed and the cancelled ones, wherever they wait.

        Also returns when the next timeout passes; `sys.maxsize` for never.
        """
        rejections: list[Rejection] = []
        next_ns = sys.maxsize
        for level in self._levels:
            if level.rejects:
                next_ns = min(next_ns, level.expire(now_ns, rejections))
        self._count_off([rejection.pending for rejection in rejections])
        return rejections, next_ns

    def take(self, count: int) -> list[PendingRequest]:
        """Remove and return the first `count` requests, which `candidates` has just returned."""
        taken: list[PendingRequest] = []
        for level in self._levels:
            for line in (level.waiting, level.delayed):
                while line and len(taken) < count:
                    taken.append(line.popleft())
        self._count_off(taken)
        return taken

    def discard(self, pending: PendingRequest) -> bool:
        for level in self._levels:
            for line in (level.waiting, level.delayed):
                if pending in line:
                    line.remove(pending)
                    self._count_off([pending])
                    return True
        return False

    def clear(self) -> list[PendingRequest]:
        return self.take(self.size)

    def _count_off(self, requests: list[PendingRequest]) -> None:
        self.size -= len(requests)
        self.items -= sum([pending.batch_size or 1 for pending in requests])


class _Level:
    """One priority level. `delayed` holds the requests that outlived their timeout under the DELAY action."""

    __slots__ = ("delayed", "is_plain", "policy", "priority", "rejects", "waiting")

    def __init__(self, priority: int, policy: QueuePolicy) -> None:
        self.priority = priority
        self.policy = policy
        self.is_plain = not policy.default_timeout_ns and not policy.max_queue_size
        self.rejects = policy.default_timeout_ns > 0 and not policy.delay_on_timeout
        self.waiting: deque[PendingRequest] = deque()
        self.delayed: deque[PendingRequest] = deque()

    def admit(self, pending: PendingRequest) -> None:
        """Apply the policy to an arriving request: refuse it, or set when it expires.

        The request's own timeout can only shorten the default, so without a default it has no effect.
        """
        policy = self.policy
        if policy.max_queue_size and len(self.waiting) + len(self.delayed) >= policy.max_queue_size:
            text = f"{pending.request.log_prefix}Exceeds maximum queue size"
            raise QueueFull(text, hint=_FULL, model=pending.request.model_name)
        timeout_ns = policy.default_timeout_ns
        if policy.allow_timeout_override and 0 < pending.request.timeout_us * 1000 < timeout_ns:
            timeout_ns = pending.request.timeout_us * 1000
        pending.expires_ns = pending.enqueue_ns + timeout_ns if timeout_ns else 0

    def head(self, limit: int, now_ns: int, rejections: list[Rejection]) -> list[PendingRequest]:
        """The first `limit` live requests of the level. Those that leave the queue are added to `rejections`."""
        head = list(islice(self.waiting, limit))
        if self.delayed:
            head += islice(self.delayed, limit - len(head))
        for pending in head:
            if pending.cancelled or 0 < pending.expires_ns <= now_ns:
                rejections += self._sweep(limit, now_ns)
                return self.head(limit, now_ns, rejections)
        return head

    def expire(self, now_ns: int, rejections: list[Rejection]) -> int:
        """Add the expired and cancelled requests to `rejections`. Returns when the next timeout passes."""
        next_ns = sys.maxsize
        is_due = False
        for pending in self.waiting:
            if pending.expires_ns <= now_ns or pending.cancelled:
                is_due = True
            elif pending.expires_ns < next_ns:
                next_ns = pending.expires_ns
        if is_due:
            rejections += self._sweep(len(self.waiting), now_ns)
        return next_ns

    def _sweep(self, limit: int, now_ns: int) -> list[Rejection]:
        """Apply the policy until the first `limit` requests are live. Returns the requests that left the queue."""
        rejections: list[Rejection] = []
        live: list[PendingRequest] = []
        while self.waiting and len(live) < limit:
            pending = self.waiting.popleft()
            if pending.cancelled:
                rejections.append(Rejection.of_cancelled(pending))
            elif not 0 < pending.expires_ns <= now_ns:
                live.append(pending)
            elif self.policy.delay_on_timeout:
                pending.expires_ns = 0
                self.delayed.append(pending)
            else:
                error = DeadlineExceeded("Request timeout expired", model=pending.request.model_name)
                rejections.append(Rejection(pending, error))
        self.waiting.extendleft(reversed(live))
        for _ in range(len(self.delayed)):
            pending = self.delayed.popleft()
            if pending.cancelled:  # read once, because another thread may set it at any moment
                rejections.append(Rejection.of_cancelled(pending))
            else:
                self.delayed.append(pending)
        return rejections


class InFlight:
    """The number of requests, `count`, that a scheduler has taken and that are not done. Under the scheduler's lock.

    `changed` is notified as long as a thread waits.
    """

    __slots__ = ("_waiters", "changed", "count")

    def __init__(self, lock: threading.Lock) -> None:
        self.count = 0
        self.changed = threading.Condition(lock)
        self._waiters = 0

    def end(self, count: int) -> None:
        """Note that `count` requests are done; 0 for any other change that a thread may wait for."""
        self.count -= count
        if self._waiters:
            self.changed.notify_all()

    def wait_until(self, is_so: Callable[[], object], timeout_s: float | None = None) -> bool:
        """Release the lock and block until `is_so()`. Returns whether that came within `timeout_s` seconds."""
        self._waiters += 1
        try:
            return bool(self.changed.wait_for(is_so, timeout_s))
        finally:
            self._waiters -= 1


AFTER_FAILURE_S: Final = 1.0
"""The pause of a thread after an exception that may recur at once."""


class TimeoutThread:
    """Ends waits at their timeout: of requests in a queue, of sequences without a slot or without a request.

    It calls `look` when it is woken, and after the seconds that the last look returned (None: not by itself). A look
    that raises is logged, and the next one follows in a second.
    """

    def __init__(self, model: str, look: Callable[[], float | None]) -> None:
        self._look = look
        self._is_closed = False
        self._wake = threading.Event()
        self._own_thread = threading.Thread(target=self._run, name=f"trident-{model}-timeouts", daemon=True)

    def start(self) -> None:
        self._own_thread.start()

    def wake(self) -> None:
        self._wake.set()

    def close(self, timeout_s: float | None) -> bool:
        """Look no more, and end the thread. Returns whether it ended."""
        self._is_closed = True
        self._wake.set()
        if self._own_thread.ident is not None and self._own_thread is not threading.current_thread():
            self._own_thread.join(timeout_s)
        is_ended = not self._own_thread.is_alive()
        if is_ended:
            self._look = _nothing  # a scheduler's, which would stay until the garbage collector runs
        return is_ended

    def _run(self) -> None:
        while not self._is_closed:
            try:
                pause_s = self._look()
            except Exception:
                _log.exception("looking for expired requests failed unexpectedly")
                pause_s = AFTER_FAILURE_S
            self._wake.wait(None if pause_s is None else min(pause_s, threading.TIMEOUT_MAX))
            self._wake.clear()


def _nothing() -> float | None:
    return None
