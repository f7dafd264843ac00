"""The dynamic batcher: one queue, and one native thread for each instance, which takes batches from it.

Nothing stands between the queue and the instances. A thread that has finished a batch takes as its next batch what has
queued up meanwhile. Only if there is nothing to execute does it rest until `submit` wakes it. So a thread is woken once
for each batch, not for each request, and a timer runs only if the configuration asks for a queue delay. The states of a
thread are listed in `instance_thread.py`.
Source: docs/spec/schedulers.md sections 3.1 to 3.3; docs/spec/repository.md section 1.6, "What reloads".
"""

from __future__ import annotations

import ctypes
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from trident.core.backends.backend import BackendInstance
from trident.core.config.spec import ModelSpec
from trident.core.errors import RequestCancelled, ServerStopping
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.window_limits import DEFAULT_WINDOW, WindowLimits
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.scheduling.execution import Clock, ShortExecutions
from trident.core.scheduling.inline_execution import InlineExecution
from trident.core.scheduling.instance import ModelInstance, OnPoisoned, Work, take_work
from trident.core.scheduling.instance_pool import LENT, RUNNING, InstancePool, InstanceThread
from trident.core.scheduling.latency_target import BatchTuner
from trident.core.scheduling.limits import IDLE, Idle, LimitsInForce, Run, Wait, limits_of, may_end
from trident.core.scheduling.open_requests import (
    Again,
    DroppedSenders,
    OpenExecution,
    OpenRequests,
    ResponseOrder,
    refuse_again,
)
from trident.core.scheduling.queue import Rejection, RequestQueue, Respond, deliver, reject, stopping
from trident.core.scheduling.rate_limiter import Claim, InstanceClaims
from trident.core.scheduling.reaper import Reaper

_SET, _GET = 29, 30


def end_waits_in_time() -> None:
    """Have the timed waits of the calling thread end as soon as their time is over. Nothing happens without Linux."""
    prctl = getattr(ctypes.CDLL(None), "prctl", None)
    if prctl is not None:
        prctl(_SET, 1, 0, 0, 0)


def timer_slack_ns() -> int:
    """That of the calling thread, nanoseconds. Only on Linux."""
    slack: int = ctypes.CDLL(None).prctl(_GET, 0, 0, 0, 0)
    return slack


LOOK_EVERY_NS: Final = 10_000_000
"""A queue is looked through for expired requests at most once in this time, so they are answered so much later."""

# Makes what executes in place of an instance.
Through = Callable[[BackendInstance], BackendInstance]


class DynamicBatcher:
    """Implements Scheduler for models whose requests do not depend on each other.

    Each request gets its response on the thread that executed it or on that of `close`, or, from an instance that
    answers later, its responses on the threads that send them. `submit` holds a lock for some microseconds. A batch
    whose instance must wait for its turn at resources stays in the queue until then, and grows.
    `delay_until` is the number of requests for which the batcher waits, once, before the first batch. `on_poisoned` is
    called on the thread that executed, and must not raise.
    `window` is how much of a request's responses may be sent and not taken. `claims` are those of the instances on the
    resources that their executions hold. `through` makes what executes in place of an instance. `again` submits
    or refuses a request that its model wants to execute again.
    """

    def __init__(
        self,
        spec: ModelSpec,
        instances: Sequence[BackendInstance],
        statistics: ModelStatistics,
        *,
        clock: Clock = time.monotonic_ns,
        delay_until: int = 0,
        on_poisoned: OnPoisoned | None = None,
        window: WindowLimits = DEFAULT_WINDOW,
        claims: InstanceClaims | None = None,
        through: Through | None = None,
        again: Again = refuse_again,
    ) -> None:
        self._spec = spec
        self._statistics = statistics
        self._clock = clock
        self._order = ResponseOrder(deliver) if spec.batching and spec.batching.preserve_ordering else None
        self._respond: Respond = self._order.respond if self._order else deliver
        # To a request that is not executed: it is told so at once, also where responses keep an order, as in Triton.
        self._refuse: Respond = self._order.leave if self._order else deliver
        self._on_poisoned = on_poisoned
        self._window = window
        self._claims = claims or InstanceClaims()
        self._through = through
        self._again = again
        answers_later = any(instance.answers_later for instance in instances)
        self._dropped = DroppedSenders(spec.name) if answers_later else None
        self._short = ShortExecutions(spec)
        limits = limits_of(spec)
        self._limits = LimitsInForce(limits)
        has_target = spec.batching is not None and spec.batching.target_p99_ns > 0
        self._tuner = BatchTuner(spec, self._limits, statistics) if has_target else None
        self._lock = threading.Lock()
        # --- guarded by the lock
        self._queue = RequestQueue(spec.batching, delay_until)
        self._pool = InstancePool(self._lock, limits.max_batch_size)
        self._looks_ns = sys.maxsize  # when the reaper looks for expired requests
        self._stopped = False
        self._accepts_nested = False
        # ---
        self._inline_execution = InlineExecution(
            self._lock, self._queue, self._pool, self._limits, self._short, self._clock
        )
        self._reaper = Reaper(spec.name, self._expire) if self._queue.may_expire else None
        # --- guarded by a second lock, which is taken before the other: no request waits while a thread is started
        self._changing = threading.Lock()
        self._started = False
        self._threads = [self._thread_for(instance) for instance in instances]
        self._count_instances()

    def _thread_for(self, instance: BackendInstance) -> InstanceThread:
        requests = execution = None
        executing = instance if self._through is None else self._through(instance)
        if self._dropped is not None:
            spec, statistics = self._spec, self._statistics
            requests = OpenRequests(
                spec, statistics, self._respond, self._refuse, self._pool, self._window, self._clock, self._again
            )
            execution = OpenExecution(executing, requests, self._dropped, statistics, self._clock)
        claim = self._claims.of(instance)
        if claim is not None:
            queue = self._queue
            claim.has_more = lambda: queue.size > 0
        model_instance = ModelInstance(
            executing,
            self._spec,
            self._statistics,
            self._respond,
            self._refuse,
            self._short,
            clock=self._clock,
            on_poisoned=self._on_poisoned,
            open_execution=execution,
            claim=claim,
            tuner=self._tuner,
        )
        return InstanceThread(instance, model_instance, self._serve, requests)

    @property
    def queued(self) -> int:
        """Requests that wait for an instance."""
        return self._queue.size

    @property
    def in_flight(self) -> int:
        """Requests that a thread has taken, and whose final response was not delivered."""
        return self._pool.in_flight

    def start(self) -> None:
        """Start the instance threads; once."""
        with self._changing:
            self._started = True
            if self._dropped is not None:
                self._dropped.start()
            if self._reaper is not None:
                self._reaper.start()
            for thread in self._threads:
                thread.start()

    def submit(self, pending: PendingRequest) -> None:
        """Queue `pending`. Raises QueueFull or ServerStopping, and then `on_response` is never called."""
        now_ns = self._clock()
        if not pending.enqueue_ns:  # it may have waited elsewhere before
            pending.enqueue_ns = now_ns
        if not pending.start_ns:
            pending.start_ns = now_ns
        with self._lock:
            if self._stopped and not (self._accepts_nested and pending.is_nested):
                raise stopping(pending, self._spec.name)
            queue = self._queue
            if queue.is_limited:
                # Of the request, not of the queue: a queue that knew this batcher would keep it in a cycle.
                pending.on_cancel = self._leave_queue
            queue.push(pending)
            if self._reaper is not None and pending.expires_ns:
                self._note_timeout(pending.expires_ns, now_ns)
            callers = queue.callers
            if callers is not None:
                callers.note(pending, now_ns)
            if self._order is not None:
                self._order.enter(pending)
            if queue.delay_until:
                if queue.size < queue.delay_until:
                    return
                queue.delay_until = 0
            holder = self._pool.holder
            if (
                holder is None
                or holder.wait.until_ns <= now_ns
                or may_end(holder.wait, pending, queue.items)
                or (callers is not None and callers.may_all_wait(queue.size, now_ns))
                or not (queue.is_in_order or queue.is_last(pending))
            ):
                if pending.defer is not None and self._inline_execution.is_possible:
                    pending.defer(self._inline_execution.run)
                else:
                    self._pool.wake(queue.items)

    def _note_timeout(self, expires_ns: int, now_ns: int) -> None:
        """Have the reaper look no later than when a request expires, or soon after. Under the lock."""
        looks_ns = max(expires_ns, now_ns + LOOK_EVERY_NS)
        if looks_ns < self._looks_ns:
            self._looks_ns = looks_ns
            if self._reaper is not None:
                self._reaper.wake()

    def _expire(self) -> float | None:
        """Answer the requests whose timeout has passed. Returns after how many seconds the next one's does."""
        now_ns = self._clock()
        rejections: list[Rejection] = []
        with self._lock:
            if now_ns >= self._looks_ns:
                next_ns = now_ns
                if not self._queue.delay_until:
                    rejections, next_ns = self._queue.expire(now_ns)
                self._looks_ns = max(next_ns, now_ns + LOOK_EVERY_NS)
                self._pool.in_flight += len(rejections)
            looks_ns = self._looks_ns
        for rejection in rejections:
            reject(rejection, self._statistics, self._refuse, self._clock())
        if rejections:
            with self._lock:
                self._pool.count_off(len(rejections))
        return None if looks_ns >= sys.maxsize else max(0, looks_ns - self._clock()) / 1e9

    def hold(self, until: int) -> None:
        """Execute nothing more until `until` requests are queued, once."""
        with self._lock:
            self._queue.delay_until = until if self._queue.size < until else 0
            if not self._queue.delay_until:
                self._pool.wake(self._queue.items)

    def _serve(self, thread: InstanceThread) -> None:
        """The body of an instance thread."""
        if self._spec.counts_arrival:
            end_waits_in_time()
        while (work := self._next_work(thread)) is not None:
            thread.instance.perform(work)
            del work  # a resting thread must not keep the requests of its last work alive

    def _next_work(self, thread: InstanceThread) -> Work | None:
        """Count off the work that `thread` has finished, and block until it has new work; None if it must end."""
        while True:
            with self._lock:
                decision = self._decide(thread)
            if decision is None or isinstance(decision, Work):
                return decision
            if isinstance(decision, Run):
                assert thread.instance.claim is not None
                thread.instance.claim.wait()
            elif isinstance(decision, Wait):
                remaining_ns = max(0, decision.until_ns - self._clock())
                thread.token.acquire(timeout=min(remaining_ns / 1e9, threading.TIMEOUT_MAX))
            else:
                thread.token.acquire()

    def _decide(self, thread: InstanceThread) -> Work | Wait | Run | Idle | None:
        """What `thread` does next: execute, wait for more requests, for its turn or for anything, or end (None)."""
        if thread.state is LENT:
            return IDLE  # the time limit of its wait has woken it while another thread executes on its instance
        if thread.taken:
            self._pool.finish(thread)
        if thread.state is not RUNNING:
            self._pool.rise(thread)
        claim = thread.instance.claim
        if thread.retired:
            self._leave(claim)
            return None
        may_run = None if claim is None else claim.request
        decision = take_work(self._queue, self._limits.current, self._clock(), may_run=may_run)
        if isinstance(decision, Work):
            self._pool.take(thread, decision, self._queue)
            return decision
        if claim is not None and not isinstance(decision, Run):
            claim.withdraw()
        if self._pool.closed:
            return None
        if decision is None:
            self._pool.rest(thread)
            return IDLE
        if isinstance(decision, Wait):
            self._pool.hold(thread, decision)
        else:
            self._pool.wait(thread)
        return decision

    def _leave(self, claim: Claim | None) -> None:
        """Leave to another thread the requests that a retired one was woken for or held. Under the lock."""
        if claim is not None:
            claim.withdraw()
        if self._queue.size and self._pool.holder is None:
            self._pool.wake_idle(self._queue.items)

    def add(self, instance: BackendInstance) -> None:
        """Execute on `instance` as well, at once if the threads were started. Waits for no execution.

        Raises ServerStopping after `close`, ValueError for an instance that the batcher already has.
        """
        with self._changing:
            if self._pool.closed:
                raise ServerStopping("Server is stopping, scheduler for model has ended", model=self._spec.name)
            if self._thread_of(instance) is not None:
                raise ValueError(f"'{instance.placement.name}' is an instance already")
            thread = self._thread_for(instance)
            if self._started:
                thread.start()
            self._threads.append(thread)
            self._count_instances()

    def remove(self, instance: BackendInstance) -> None:
        """Give `instance` no more work, and block until its requests are answered and its thread has ended.

        Raises ValueError for an unknown instance and for the last one (add its successor first), and RuntimeError on
        the instance's own thread, which cannot wait for itself; then nothing has changed.
        """
        with self._changing:
            thread = self._thread_of(instance)
            if thread is None or thread.retired:
                raise ValueError(f"'{instance.placement.name}' is not an instance")
            if thread.is_current:
                raise RuntimeError("an instance cannot be removed on its own thread")
            if all(other.retired for other in self._threads if other is not thread):
                raise ValueError(f"'{instance.placement.name}' is the last instance")
            with self._lock:
                self._pool.retire(thread)
        thread.join(None)
        if thread.open_requests is not None:
            with self._lock:
                self._pool.drain_open(thread.open_requests)
        with self._changing:
            self._threads.remove(thread)
            self._count_instances()

    def _count_instances(self) -> None:
        if self._tuner is not None:
            self._tuner.instances = max(1, len(self._threads))

    def forget(self, instance: BackendInstance) -> None:
        """Fail the requests that are to be executed again; others do not depend on what the instance remembers."""
        thread = self._thread_of(instance)
        if thread is None or thread.open_requests is None:
            return
        for lost in thread.open_requests.lose():
            self._reject_queued(lost, thread.open_requests.respond_unrun)

    def _leave_queue(self, pending: PendingRequest) -> None:
        """Make room for others, because `pending` was cancelled. Any thread."""
        self._reject_queued(Rejection(pending, RequestCancelled("", model=pending.request.model_name)), self._refuse)

    def _reject_queued(self, rejection: Rejection, respond: Respond) -> None:
        """Answer a request with an error, now, if it is still queued."""
        with self._lock:
            if not self._queue.discard(rejection.pending):
                return
            self._pool.in_flight += 1
        reject(rejection, self._statistics, respond, self._clock())
        with self._lock:
            self._pool.count_off(1)

    def _thread_of(self, instance: BackendInstance) -> InstanceThread | None:
        return next((thread for thread in self._threads if thread.backend is instance), None)

    def stop(self, *, accept_nested: bool = False) -> None:
        """Accept no more requests, or only nested ones. No batch waits any longer for those that no longer arrive."""
        with self._lock:
            self._stopped = True
            self._accepts_nested = accept_nested
            self._queue.delay_until = 0
            self._limits.stop()
            if self._queue.size:
                self._pool.wake(self._queue.items)

    def drain(self, timeout_s: float | None = None) -> bool:
        """Block until nothing is queued or in flight, at most `timeout_s` seconds. Returns whether that happened."""
        with self._lock:
            return self._pool.drain(self._queue, timeout_s)

    def close(self, timeout_s: float | None = None, because: str = "") -> bool:
        """Stop, answer what is queued with ServerStopping, and block until the threads have ended.

        Executions that have begun are finished, and requests that are answered later are answered. Returns whether that
        happened, within `timeout_s` seconds for each thread.
        """
        self.stop()
        with self._changing, self._lock:
            threads = list(self._threads)
            queued = self._queue.clear()
            self._pool.in_flight += len(queued)
            self._pool.close()
            opened = [thread.open_requests for thread in threads if thread.open_requests is not None]
        for pending in queued:
            respond = next((each.respond_unrun for each in opened if each.has(pending)), self._refuse)
            error = stopping(pending, self._spec.name, because)
            reject(Rejection(pending, error), self._statistics, respond, self._clock())
        for requests in opened:
            requests.resume_all()
        with self._lock:
            self._pool.count_off(len(queued))
        ended = [thread.join(timeout_s) for thread in threads]
        if self._reaper is not None:
            ended.append(self._reaper.close(timeout_s))
        if self._dropped is not None:
            ended.append(self.drain(timeout_s))
            ended.append(self._dropped.close(timeout_s))
        return all(ended)
