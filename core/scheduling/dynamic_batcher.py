"""The dynamic batcher: one queue, from which the instances of a model take batches.

Nothing stands between the queue and the instances. A thread that has finished a batch takes as its next batch what has
queued up meanwhile (`batch_forming.py` says what, and when). Only if there is nothing to execute does it rest until
`submit` wakes it. So a thread is woken once for each batch, not for each request, and a timer runs only if the
configuration asks for a queue delay. The states of a thread are in `instance.py`.

Handing the interpreter to an instance thread and back takes longer than a short execution. So if the recent executions
were short and no instance thread is awake, none is woken: the submitting thread borrows the instance of a thread that
rests, and executes the batch itself after it has submitted all its requests. A batch that has to wait is left to the
instance thread.
Source: docs/spec/schedulers.md sections 3.1 to 3.3; docs/spec/repository.md section 1.6, "What reloads".
"""

from __future__ import annotations

import logging
import sys
import threading
import time
from collections.abc import Callable, Sequence
from typing import Final

from trident.core.backends.backend import BackendInstance
from trident.core.borders import expected
from trident.core.config.spec import ModelSpec
from trident.core.errors import ServerError, ServerStopping
from trident.core.inference.pending_request import PendingRequest, deliver
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.options import DEFAULT_WINDOW, WindowLimits
from trident.core.scheduling.batch_forming import (
    BatchLimits,
    BatchTuner,
    Run,
    Wait,
    Work,
    limits_of,
    may_end,
    take_work,
)
from trident.core.scheduling.instance import (
    ENDED,
    HOLDING,
    LENT,
    RUNNING,
    WAITING,
    InstancePool,
    ModelInstance,
    OnPoisoned,
    ShortExecutions,
)
from trident.core.scheduling.open_requests import Again, DroppedSenders, OpenRequests, ResponseOrder, refuse_again
from trident.core.scheduling.queue import (
    AFTER_FAILURE_S,
    Clock,
    Rejection,
    RequestQueue,
    Respond,
    TimeoutThread,
    reject,
    stopping,
)
from trident.core.scheduling.rate_limiter import InstanceClaims

_log = logging.getLogger("trident.scheduling")

TURN_NS: Final = 4_000_000
"""The time after which the submitting thread leaves the rest of the queue to the instance's own thread."""
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
    called on the thread that executed.
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
        batching = spec.batching
        self._spec = spec
        self._statistics = statistics
        self._clock = clock
        self._order = ResponseOrder(deliver) if batching and batching.preserve_ordering else None
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
        # The sequence batcher submits under its lock.
        self._runs_alone = self._order is None and spec.sequence is None
        self._lock = threading.Lock()
        # --- guarded by the lock
        self._queue = RequestQueue(batching, delay_until)
        self._limits = limits_of(spec)
        self._pool = InstancePool(self._lock, self._limits.max_batch_size)
        self._looks_ns = sys.maxsize  # when to look for expired requests
        self._stopped = False
        self._accepts_nested = False
        # ---
        self._timeouts = TimeoutThread(spec.name, self._expire) if self._queue.may_expire else None
        self._tuner: BatchTuner | None = None
        if batching and batching.target_p99_ns:
            self._tuner = BatchTuner(spec, self._limits, self._change_limits, statistics)
        # --- guarded by a second lock, which is taken before the other: no request waits while a thread is started
        self._changing = threading.Lock()
        self._started = False
        self._instances = [self._made(instance) for instance in instances]
        self._count_instances()

    def _made(self, backend: BackendInstance) -> ModelInstance:
        requests = None
        if self._dropped is not None:
            requests = OpenRequests(
                self._spec,
                self._statistics,
                self._respond,
                self._refuse,
                self._pool,
                self._window,
                self._clock,
                self._again,
                self._dropped,
            )
        claim = self._claims.of(backend)
        if claim is not None:
            queue = self._queue
            claim.has_more = lambda: queue.size > 0
        return ModelInstance(
            backend,
            backend if self._through is None else self._through(backend),
            self._spec,
            self._statistics,
            self._respond,
            self._refuse,
            self._short,
            clock=self._clock,
            on_poisoned=self._on_poisoned,
            open_requests=requests,
            claim=claim,
            tuner=self._tuner,
        )

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
            if self._timeouts is not None:
                self._timeouts.start()
            for instance in self._instances:
                instance.start(self._serve)

    def submit(self, pending: PendingRequest) -> None:
        """Queue `pending`. Raises QueueFull or ServerStopping, and then `on_response` is never called.

        A request that is alone is executed here, if nothing is in its way.
        """
        now_ns = self._clock()
        if not pending.enqueue_ns:  # it may have waited elsewhere before
            pending.enqueue_ns = now_ns
        if not pending.start_ns:
            pending.start_ns = now_ns
        with self._lock:
            if self._stopped and not (self._accepts_nested and pending.is_nested):
                raise stopping(pending, self._spec.name)
            instance = self._lent_for(pending) if pending.is_alone and self._runs_alone else None
            if instance is None:
                self._enqueue(pending, now_ns)
        if instance is not None:
            self._execute_on(instance, Work([pending], []), now_ns + TURN_NS)

    def _enqueue(self, pending: PendingRequest, now_ns: int) -> None:
        """Under the lock."""
        queue = self._queue
        if queue.is_limited or self._limits.delay_ns:
            pending.on_cancel = self._leave_queue
        queue.push(pending)
        if self._timeouts is not None and pending.expires_ns:
            self._note_timeout(pending.expires_ns, now_ns)
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
            or not (queue.is_in_order or queue.is_last(pending))
        ):
            if pending.defer is not None and self._may_borrow():
                try:
                    pending.defer(self._execute_here)
                    return
                except Exception:  # the caller's
                    _log.exception("deferring an execution of model '%s' failed unexpectedly", self._spec.name)
            self._pool.wake(queue.items)

    def run_at_rest(self, device: str, errand: Callable[[], None]) -> bool:
        """Call `errand` on the thread of an instance on `device` that rests, and wait for it. False if none rests.

        Raises what `errand` raises. Not on an instance's own thread.
        """
        done = threading.Event()
        failures: list[Exception] = []

        def run() -> None:
            try:
                errand()
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
        """The body of an instance thread."""
        while True:
            try:
                if not self._perform_next(instance):
                    return
            except Exception as error:
                self._fail_queued(error)

    def _fail_queued(self, error: Exception) -> None:
        """No batch could be formed: fail what is queued, so that the next attempt does not meet the same requests."""
        failure = expected(error, f"forming a batch for model '{self._spec.name}'")
        with self._lock:
            queued = self._take_all()
        self._end_queued(queued, lambda pending: failure)
        if not queued:
            time.sleep(AFTER_FAILURE_S)

    def _take_all(self) -> list[PendingRequest]:
        """Empty the queue; its requests count as in flight until `_end_queued`. Under the lock."""
        queued = self._queue.clear()
        self._pool.in_flight += len(queued)
        return queued

    def _end_queued(self, queued: Sequence[PendingRequest], error_for: Callable[[PendingRequest], ServerError]) -> None:
        """Answer requests that left the queue, new ones and those that their model gave back."""
        opened = [each.open_requests for each in list(self._instances) if each.open_requests is not None]
        for pending in queued:
            respond = next((each.respond_unexecuted for each in opened if each.has(pending)), self._refuse)
            self._refuse_all([Rejection(pending, error_for(pending))], respond)

    def _perform_next(self, instance: ModelInstance) -> bool:
        """Block until there is work, and do it. False if the thread must end.

        Nothing refers to the requests when it returns: a resting thread must not keep those of its last work alive.
        """
        while True:
            with self._lock:
                work = self._next_work(instance)
            # Whatever has woken the thread: it may have rested with a time limit, because it held before.
            if instance.errand is not None:
                errand, instance.errand = instance.errand, None
                errand()
            if work is not None:
                instance.perform(work)
                return True
            # Another thread may change the state now; it then releases the token.
            state = instance.state
            if state is ENDED:
                return False
            if state is WAITING and instance.claim is not None:
                instance.claim.wait()
            elif state is HOLDING:
                remaining_s = max(0, instance.wait.until_ns - self._clock()) / 1e9
                instance.token.acquire(timeout=min(remaining_s, threading.TIMEOUT_MAX))
            else:
                instance.token.acquire()

    def _next_work(self, instance: ModelInstance) -> Work | None:
        """Take work for an instance whose thread is awake; None if it must rest or end, as its state then says."""
        pool, claim = self._pool, instance.claim
        if instance.state is LENT:
            return None  # the time limit of its wait has woken it while another thread executes on its instance
        if instance.taken:
            pool.finish(instance)
        if instance.state is not RUNNING:
            pool.rise(instance)
        if instance.retired:
            if claim is not None:
                claim.withdraw()
            pool.end(instance)
            if self._queue.size and pool.holder is None:
                pool.wake_idle(self._queue.items)  # for what it was woken for, or held
            return None
        may_run = None if claim is None else claim.request
        decision = take_work(self._queue, self._limits, self._clock(), may_run=may_run)
        if isinstance(decision, Work):
            pool.take(instance, decision, self._queue)
            return decision
        if claim is not None and not isinstance(decision, Run):
            claim.withdraw()
        if pool.closed:
            pool.end(instance)
        elif decision is None:
            pool.rest(instance)
        elif isinstance(decision, Wait):
            pool.hold(instance, decision)
        else:
            pool.wait(instance)
        return None

    # --- on the submitting thread

    def _may_borrow(self) -> bool:
        """Whether the submitting thread may execute on an instance. Under the lock."""
        pool = self._pool
        # `pool.lendable` without its call, because each request asks.
        instance = pool.holder or (pool.idle[-1] if pool.idle else None)
        return instance is not None and not pool.waking and instance.executing.may_run_inline and self._short.lasting

    def _lent_for(self, pending: PendingRequest) -> ModelInstance | None:
        """Take an instance for `pending` alone, which needs no queue; None if it has to be queued. Under the lock.

        It would be the whole batch, closed because nothing else waits.
        """
        queue, pool = self._queue, self._pool
        if (
            queue.size
            or queue.delay_until
            or pool.holder is not None
            or self._limits.delay_ns
            or pending.batch_size in self._limits.preferred
            or pending.cancelled
            or pending.defer is None
            or not self._may_borrow()
            or not self._short.expected((pending,))
        ):
            return None
        instance = pool.idle[-1]
        if instance.claim is not None or instance.open_requests is not None:
            return None
        pool.lend(instance)
        instance.taken = 1
        pool.in_flight += 1
        return instance

    def _execute_here(self) -> None:
        """Execute queued requests on the calling thread, as long as the executions are short."""
        pool = self._pool
        with self._lock:
            instance = pool.lendable
            if instance is None or not self._may_borrow():
                pool.wake(self._queue.items)
                return
            until_ns = self._clock() + TURN_NS
            pool.lend(instance)
            work = self._next_short_work(instance, until_ns)
        if work is not None:
            self._execute_on(instance, work, until_ns)

    def _execute_on(self, instance: ModelInstance, work: Work, until_ns: int) -> None:
        """Execute `work`, and then what is queued, on the lent `instance` until it is given back."""
        following: Work | None = work
        while following is not None:
            instance.perform(following, inline=True)
            with self._lock:
                self._pool.finish(instance)
                following = self._next_short_work(instance, until_ns)

    def _next_short_work(self, instance: ModelInstance, until_ns: int) -> Work | None:
        """Take work for the lent `instance`; or give it back, and return None or raise. Under the lock."""
        pool, claim = self._pool, instance.claim
        work: Work | Wait | Run | None = None
        try:
            now_ns = self._clock()
            if now_ns <= until_ns and not instance.retired and not pool.closed:
                may_run = None if claim is None else claim.try_take
                is_short = self._short.expected
                work = take_work(self._queue, self._limits, now_ns, is_short=is_short, may_run=may_run)
                if isinstance(work, Work):
                    pool.take(instance, work, self._queue)
                    return work
        finally:
            if not isinstance(work, Work):
                if claim is not None:
                    claim.withdraw()  # it may have asked for another turn when its last execution ended
                pool.take_back(instance, self._queue.items)
        return None

    # --- timeouts and cancellations

    def _note_timeout(self, expires_ns: int, now_ns: int) -> None:
        """Look no later than when a request expires, or soon after. Under the lock."""
        looks_ns = max(expires_ns, now_ns + LOOK_EVERY_NS)
        if looks_ns < self._looks_ns:
            self._looks_ns = looks_ns
            if self._timeouts is not None:
                self._timeouts.wake()

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

    def _leave_queue(self, pending: PendingRequest) -> None:
        """Take `pending`, which was cancelled, out of the queue. Any thread."""
        self._reject_queued(Rejection.of_cancelled(pending), self._refuse)

    def _reject_queued(self, rejection: Rejection, respond: Respond) -> None:
        """Answer a request with an error, now, if it is still queued."""
        with self._lock:
            if not self._queue.discard(rejection.pending):
                return
            self._note_left(1)
        self._refuse_all([rejection], respond)

    def _note_left(self, count: int) -> None:
        """Note that `count` requests have left the queue: the batch that waits for others may be due without them.

        Under the lock.
        """
        self._pool.in_flight += count
        if self._pool.holder is not None:
            self._pool.wake(self._queue.items)

    def _refuse_all(self, rejections: Sequence[Rejection], respond: Respond | None = None) -> None:
        """Answer requests that have left the queue, and are counted as in flight until then."""
        if not rejections:
            return
        for rejection in rejections:
            reject(rejection, self._statistics, respond or self._refuse, self._clock)
        with self._lock:
            self._pool.count_off(len(rejections))

    # --- limits and instances

    def _change_limits(self, limits: BatchLimits) -> None:
        """Form batches by `limits` from now on. A batch that waits already waits as long as it was told to."""
        with self._lock:
            self._limits = limits._replace(delay_ns=0) if self._stopped else limits

    def hold(self, until: int) -> None:
        """Execute nothing more until `until` requests are queued, once."""
        with self._lock:
            self._queue.delay_until = until if self._queue.size < until else 0
            if not self._queue.delay_until:
                self._pool.wake(self._queue.items)

    def add(self, instance: BackendInstance) -> None:
        """Execute on `instance` as well, at once if the threads were started. Waits for no execution.

        Raises ServerStopping after `close`, ValueError for an instance that the batcher already has.
        """
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

    def remove(self, instance: BackendInstance) -> None:
        """Give `instance` no more work, and block until its requests are answered and its thread has ended.

        Raises ValueError for an unknown instance and for the last one (add its successor first), and RuntimeError on
        the instance's own thread, which cannot wait for itself; then nothing has changed.
        """
        with self._changing:
            leaving = self._find(instance)
            if leaving is None or leaving.retired:
                raise ValueError(f"'{instance.placement.name}' is not an instance")
            if leaving.is_current:
                raise RuntimeError("an instance cannot be removed on its own thread")
            if all(other.retired for other in self._instances if other is not leaving):
                raise ValueError(f"'{instance.placement.name}' is the last instance")
            with self._lock:
                self._pool.retire(leaving)
        leaving.join(None)
        if leaving.open_requests is not None:
            with self._lock:
                self._pool.drain_open(leaving.open_requests)
        with self._changing:
            self._instances.remove(leaving)
            self._count_instances()

    def _find(self, instance: BackendInstance) -> ModelInstance | None:
        return next((each for each in self._instances if each.backend is instance), None)

    def _count_instances(self) -> None:
        if self._tuner is not None:
            self._tuner.instances = max(1, len(self._instances))

    def forget(self, instance: BackendInstance) -> None:
        """Fail the requests that are to be executed again; others do not depend on what the instance remembers."""
        found = self._find(instance)
        if found is None or found.open_requests is None:
            return
        for lost in found.open_requests.lose():
            self._reject_queued(lost, found.open_requests.respond_unexecuted)

    # --- the end

    def stop(self, *, accept_nested: bool = False) -> None:
        """Accept no more requests, or only nested ones. No batch waits any longer for those that no longer arrive."""
        with self._lock:
            self._stopped = True
            self._accepts_nested = accept_nested
            self._queue.delay_until = 0
            self._limits = self._limits._replace(delay_ns=0)
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
        return all(ended)
