"""The dynamic batcher: one queue, from which the instances of a model take batches.

Nothing stands between the queue and the instances. A thread that has finished a batch takes as its next batch what has
queued up meanwhile (`batch_forming.py` says what, and when). Only if there is nothing to execute is it idle until
`submit` wakes it. So a thread is woken once for each batch, not for each request, and a timer runs only if the
configuration asks for a queue delay. The states of a thread are in `instance.py`. Short executions run on the
submitting thread (`inline_execution.py`).
Source: docs/spec/schedulers.md sections 3.1 to 3.3; docs/spec/repository.md section 1.6, "What reloads".
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Final

from trident.core.backends.backend import BackendInstance
from trident.core.borders import expected
from trident.core.errors import ServerError, ServerStopping
from trident.core.inference.pending_request import PendingRequest
from trident.core.scheduling.batch_forming import (
    BatchLimits,
    Run,
    Wait,
    Work,
    limits_of,
    may_end,
    take_work,
)
from trident.core.scheduling.context import Respond, SchedulingContext
from trident.core.scheduling.inline_execution import LONGEST_NS, InlineExecution, ShortExecutions
from trident.core.scheduling.instance import BORROWED, DELAYING, ENDED, RUNNING, WAITING, ModelInstance
from trident.core.scheduling.instance_pool import InstancePool
from trident.core.scheduling.open_requests import Again, DroppedSenders, OpenRequests, ResponseOrder, refuse_again
from trident.core.scheduling.queue import (
    AFTER_FAILURE_S,
    Rejection,
    RequestQueue,
    TimeoutThread,
    reject,
    stopping,
)

if TYPE_CHECKING:
    from trident.core.scheduling.latency_target import BatchTuner

_log = logging.getLogger("trident.scheduling")

LOOK_EVERY_NS: Final = 10_000_000
"""The interval between searches of a queue for expired requests, which are answered at most that much later."""

# Makes a wrapper that executes instead of the instance.
Through = Callable[[BackendInstance], BackendInstance]


class DynamicBatcher:
    """Implements Scheduler for models whose requests do not depend on each other.

    Each request gets its response on the thread that executed it or on that of `close`, or, from an instance that
    answers later, its responses on the threads that send them. `submit` holds a lock for some microseconds. A batch
    whose instance must wait for resources stays in the queue until then, and grows.
    `through` makes the object that executes in place of an instance. `again` submits or refuses a request that its
    model wants to execute again.
    """

    def __init__(
        self,
        context: SchedulingContext,
        instances: Sequence[BackendInstance],
        *,
        through: Through | None = None,
        again: Again = refuse_again,
    ) -> None:
        spec, batching = context.spec, context.spec.batching
        self._spec = spec
        self._order: ResponseOrder | None = None
        if batching and batching.preserve_ordering:
            self._order = ResponseOrder(context.respond)
            context = replace(context, respond=self._order.respond, refuse=self._order.refuse)
        self._context = context
        self._clock = context.clock
        self._through = through
        self._again = again
        answers_later = any(instance.answers_later for instance in instances)
        self._dropped = DroppedSenders(spec.name) if answers_later else None
        self._short = ShortExecutions(spec)
        # The sequence batcher submits under its lock.
        self._runs_alone = self._order is None and spec.sequence is None
        self._lock = threading.Lock()
        # --- guarded by the lock
        self._queue = RequestQueue(batching, context.delay_until)
        self._pool = InstancePool(self._lock, self._queue, limits_of(spec))
        self._inline_execution = InlineExecution(self._short, self._pool, self._lock, context.clock)
        self._looks_ns = sys.maxsize  # when to look for expired requests
        self._stopped = False
        self._accepts_nested = False
        # ---
        self._timeouts = TimeoutThread(spec.name, self._expire) if self._queue.may_expire else None
        self._tuner: BatchTuner | None = None
        if batching and batching.target_p99_ns:
            from trident.core.scheduling.latency_target import BatchTuner  # for models with a target only

            self._tuner = BatchTuner(spec, self._pool.limits, self._change_limits, context.statistics)
        # --- guarded by a second lock, which is taken before the other: no request waits while a thread is started
        self._changing = threading.Lock()
        self._started = False
        self._instances = [self._made(instance) for instance in instances]
        self._count_instances()

    def _made(self, backend: BackendInstance) -> ModelInstance:
        requests = None
        if self._dropped is not None:
            requests = OpenRequests(self._context, self._pool.in_flight, self._again, self._dropped)
        instance = ModelInstance(
            self._context,
            backend,
            executing=None if self._through is None else self._through(backend),
            open_requests=requests,
            observe=self._observe,
        )
        if instance.reservation is not None:
            queue = self._queue
            instance.reservation.has_more = lambda: queue.size > 0
        return instance

    def _observe(self, batch: Sequence[PendingRequest], begin_ns: int, end_ns: int, inline: bool) -> None:
        self._short.note(batch, end_ns - begin_ns, inline)
        if self._tuner is not None:
            self._tuner.note(batch, begin_ns, end_ns)

    @property
    def queued(self) -> int:
        return self._queue.size

    @property
    def in_flight(self) -> int:
        return self._pool.in_flight.count

    def start(self) -> None:
        with self._changing:
            self._started = True
            if self._dropped is not None:
                self._dropped.start()
            if self._timeouts is not None:
                self._timeouts.start()
            for instance in self._instances:
                instance.start(self._serve)

    def submit(self, pending: PendingRequest) -> None:
        """Queue `pending`. Raises QueueFull or ServerStopping, and then `on_response` is never called.

        A request that is alone is executed here, if nothing prevents it.
        """
        now_ns = self._clock()
        if not pending.enqueue_ns:  # it may have waited elsewhere before
            pending.enqueue_ns = now_ns
        if not pending.start_ns:
            pending.start_ns = now_ns
        with self._lock:
            if self._stopped and not (self._accepts_nested and pending.is_nested):
                raise stopping(pending, self._spec.name)
            instance = self._inline_execution.borrow_for(pending) if pending.is_alone and self._runs_alone else None
            if instance is None:
                self._enqueue(pending, now_ns)
        if instance is not None:
            self._inline_execution.execute(instance, Work([pending], []), now_ns + LONGEST_NS)

    def _enqueue(self, pending: PendingRequest, now_ns: int) -> None:
        """Under the lock."""
        queue = self._queue
        if queue.is_limited or self._pool.limits.delay_ns:
            pending.on_cancel = self._cancel
        queue.push(pending)
        if self._timeouts is not None and pending.expires_ns:
            looks_ns = max(pending.expires_ns, now_ns + LOOK_EVERY_NS)
            if looks_ns < self._looks_ns:
                self._looks_ns = looks_ns
                self._timeouts.wake()
        if self._order is not None:
            self._order.enter(pending)
        if queue.delay_until:
            if queue.size < queue.delay_until:
                return
            queue.delay_until = 0
        delaying = self._pool.delaying
        if (
            delaying is None
            or delaying.wait.until_ns <= now_ns
            or may_end(delaying.wait, pending, queue.items)
            or not (queue.is_in_order or queue.is_last(pending))
        ):
            if pending.defer is not None and self._inline_execution.is_possible():
                try:
                    pending.defer(self._inline_execution.execute_queued)
                    return
                except Exception:  # the caller's
                    _log.exception("deferring an execution of model '%s' failed unexpectedly", self._spec.name)
            self._pool.wake()

    def run_when_idle(self, device: str, call: Callable[[], None]) -> bool:
        """Make `call` on the thread of an idle instance on `device`, and wait for it. False if none is idle.

        Raises what `call` raises. Not on an instance's own thread.
        """
        done = threading.Event()
        failures: list[Exception] = []

        def run() -> None:
            try:
                call()
            except Exception as error:  # the caller's; the instance serves on
                failures.append(error)
            finally:
                done.set()

        with self._lock:
            is_sent = self._pool.send(device, run)
        if is_sent:
            done.wait()
        if failures:
            raise failures[0]
        return is_sent

    # --- on the instance threads

    def _serve(self, instance: ModelInstance) -> None:
        while True:
            try:
                if not self._perform_next(instance):
                    return
            except Exception as error:
                self._fail_queued(error)

    def _fail_queued(self, error: Exception) -> None:
        """Fail the queued requests after no batch could be formed, so that the next attempt does not meet them."""
        failure = expected(error, f"forming a batch for model '{self._spec.name}'")
        with self._lock:
            queued = self._take_all()
        self._end_queued(queued, lambda pending: failure)
        if not queued:
            time.sleep(AFTER_FAILURE_S)

    def _take_all(self) -> list[PendingRequest]:
        """Empty the queue; its requests count as in flight until `_end_queued`. Under the lock."""
        queued = self._queue.clear()
        self._pool.in_flight.count += len(queued)
        return queued

    def _end_queued(self, queued: Sequence[PendingRequest], error_for: Callable[[PendingRequest], ServerError]) -> None:
        """Answer requests that left the queue, new ones and those that their model gave back."""
        opened = [each.open_requests for each in list(self._instances) if each.open_requests is not None]
        for pending in queued:
            respond = next((each.respond_unexecuted for each in opened if each.has(pending)), None)
            self._refuse_all([Rejection(pending, error_for(pending))], respond)

    def _perform_next(self, instance: ModelInstance) -> bool:
        """Block until there is work, and do it. False if the thread must end.

        No reference to the requests remains: an idle thread must not keep those of its last work alive.
        """
        while True:
            with self._lock:
                work = self._next_work(instance)
            # Whatever has woken the thread: it may have slept with a time limit, because it was DELAYING.
            if instance.call is not None:
                call, instance.call = instance.call, None
                call()
            if work is not None:
                instance.perform(work)
                return True
            # Another thread may change the state now; it then releases the token.
            state = instance.state
            if state is ENDED:
                return False
            if state is WAITING and instance.reservation is not None:
                instance.reservation.wait()
            elif state is DELAYING:
                remaining_s = max(0, instance.wait.until_ns - self._clock()) / 1e9
                instance.token.acquire(timeout=min(remaining_s, threading.TIMEOUT_MAX))
            else:
                instance.token.acquire()

    def _next_work(self, instance: ModelInstance) -> Work | None:
        """Take work for an instance whose thread is awake; None if it must wait or end, as its state then says."""
        pool, reservation = self._pool, instance.reservation
        if instance.state is BORROWED:
            return None  # the time limit of its wait has woken it while another thread executes on its instance
        if instance.taken:
            pool.finish(instance)
        if instance.state is not RUNNING:
            pool.rise(instance)
        if instance.is_removed:
            if reservation is not None:
                reservation.withdraw()
            pool.end(instance)
            if self._queue.size and pool.delaying is None:
                pool.wake_idle()  # for the requests that it was woken for or was delaying
            return None
        may_run = None if reservation is None else reservation.request
        decision = take_work(self._queue, pool.limits, self._clock(), may_run=may_run)
        if isinstance(decision, Work):
            pool.take(instance, decision)
            return decision
        if reservation is not None and not isinstance(decision, Run):
            reservation.withdraw()
        if pool.closed:
            pool.end(instance)
        elif decision is None:
            pool.park(instance)
        elif isinstance(decision, Wait):
            pool.hold(instance, decision)
        else:
            pool.wait(instance)
        return None

    # --- timeouts and cancellations

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
                if rejections:
                    self._note_left(len(rejections))
            looks_ns = self._looks_ns
        self._refuse_all(rejections)
        return None if looks_ns >= sys.maxsize else max(0, looks_ns - self._clock()) / 1e9

    def _cancel(self, pending: PendingRequest) -> None:
        self._reject_queued(Rejection.of_cancelled(pending))

    def _reject_queued(self, rejection: Rejection, respond: Respond | None = None) -> None:
        with self._lock:
            if not self._queue.discard(rejection.pending):
                return
            self._note_left(1)
        self._refuse_all([rejection], respond)

    def _note_left(self, count: int) -> None:
        """Note that `count` requests have left the queue: the batch that waits for others may be due without them.

        Under the lock.
        """
        self._pool.in_flight.count += count
        if self._pool.delaying is not None:
            self._pool.wake()

    def _refuse_all(self, rejections: Sequence[Rejection], respond: Respond | None = None) -> None:
        """Answer requests that have left the queue, and are counted as in flight until then."""
        if not rejections:
            return
        for rejection in rejections:
            reject(rejection, self._context, respond)
        with self._lock:
            self._pool.in_flight.end(len(rejections))

    # --- limits and instances

    def _change_limits(self, limits: BatchLimits) -> None:
        """Form batches by `limits` from now on. A batch that waits already waits as long as it was told to."""
        with self._lock:
            self._pool.limits = limits._replace(delay_ns=0) if self._stopped else limits

    def hold(self, until: int) -> None:
        with self._lock:
            self._queue.delay_until = until if self._queue.size < until else 0
            if not self._queue.delay_until:
                self._pool.wake()

    def add(self, instance: BackendInstance) -> None:
        with self._changing:
            if self._pool.closed:
                raise ServerStopping("Server is stopping, scheduler for model has ended", model=self._spec.name)
            if self._find(instance) is not None:
                raise ValueError(f"'{instance.placement.name}' is an instance already")
            made = self._made(instance)
            if self._started:
                made.start(self._serve)
            self._instances.append(made)
            self._count_instances()

    def remove(self, instance: BackendInstance) -> Callable[[], None]:
        with self._changing:
            leaving = self._find(instance)
            if leaving is None or leaving.is_removed:
                raise ValueError(f"'{instance.placement.name}' is not an instance")
            if leaving.is_current:
                raise RuntimeError("an instance cannot be removed on its own thread")
            if all(other.is_removed for other in self._instances if other is not leaving):
                raise ValueError(f"'{instance.placement.name}' is the last instance")
            with self._lock:
                self._pool.remove(leaving)
        return partial(self._finish_removal, leaving)

    def _finish_removal(self, leaving: ModelInstance) -> None:
        leaving.join(None)
        if leaving.open_requests is not None:
            with self._lock:
                leaving.open_requests.drain()
        with self._changing:
            self._instances = [each for each in self._instances if each is not leaving]
            self._count_instances()

    def _find(self, instance: BackendInstance) -> ModelInstance | None:
        return next((each for each in self._instances if each.backend is instance), None)

    def _count_instances(self) -> None:
        if self._tuner is not None:
            self._tuner.instances = max(1, len(self._instances))

    def forget(self, instance: BackendInstance) -> None:
        found = self._find(instance)
        if found is None or found.open_requests is None:
            return
        for lost in found.open_requests.lose():
            self._reject_queued(lost, found.open_requests.respond_unexecuted)

    # --- the end

    def stop(self, *, accept_nested: bool = False) -> None:
        with self._lock:
            self._stopped = True
            self._accepts_nested = accept_nested
            self._queue.delay_until = 0
            self._pool.limits = self._pool.limits._replace(delay_ns=0)
            if self._queue.size:
                self._pool.wake()

    def drain(self, timeout_s: float | None = None) -> bool:
        with self._lock:
            pool = self._pool
            return pool.in_flight.wait_until(lambda: not pool.queue.size and not pool.in_flight.count, timeout_s)

    def close(self, timeout_s: float | None = None, because: str = "") -> bool:
        self.stop()
        with self._changing, self._lock:
            instances = list(self._instances)
            queued = self._take_all()
            self._pool.close()
        self._end_queued(queued, lambda pending: stopping(pending, self._spec.name, because))
        for instance in instances:
            if instance.open_requests is not None:
                instance.open_requests.resume_all()
        ended = [instance.join(timeout_s) for instance in instances]
        if self._timeouts is not None:
            ended.append(self._timeouts.close(timeout_s))
        if self._dropped is not None:
            ended.append(self.drain(timeout_s))
            ended.append(self._dropped.close(timeout_s))
        if all(ended):
            # They refer to this batcher: the buffers of their batches would stay until the garbage collector runs.
            with self._changing:
                self._instances = []
        return all(ended)
