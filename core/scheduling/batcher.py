"""The scheduler of a model version: a queue, and one native thread per instance that takes batches from it.

Nobody stands between the queue and the instances. A thread that has finished a batch looks what has queued up
meanwhile; only when there is nothing to run does it rest until `submit` wakes it:

    running   executes, or has been woken and is on its way to the queue
    idle      rests until a request comes
    holding   rests until the queue delay is over or a request comes that may change the decision; one thread at most

So a thread is woken once per batch and not per request, and no timer runs unless the configuration asks for a delay.
The thread of an instance that goes ends where it would look for more to run, and wakes another for what is queued.

If executions have been short of late and no thread is awake, none is woken where the thread that submits can `defer`
calls: it runs what is queued itself, once it has submitted all. Handing the interpreter to and fro takes longer.
Source: docs/spec/schedulers.md sections 3.1 to 3.3; docs/spec/repository.md section 1.6, "What reloads".
"""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence

from core.backends.base import BackendInstance
from core.config.model_spec import ModelSpec
from core.errors import ServerStopping
from core.inference.pending_request import PendingRequest
from core.inference.response import InferenceResponse
from core.observability.statistics import ModelStatistics
from core.scheduling.delivery import Respond, deliver, flush
from core.scheduling.inline_execution import TURN_NS, InlineExecution
from core.scheduling.instance import Clock, ModelInstance, OnPoisoned
from core.scheduling.instance_thread import InstanceThread
from core.scheduling.ordering import ResponseOrder
from core.scheduling.policy import Run, Wait, form_batch, limits_of, may_end
from core.scheduling.queue import Rejection, RequestQueue
from core.scheduling.work import Work, reason_of, stopping


class DynamicBatcher:
    """Queues requests for one model version and executes them on its instances.

    `submit` may be called from any thread and never blocks longer than the lock is held, which is microseconds. Every
    request that it accepts is answered exactly once, through `on_response`: on an instance's thread, on one that makes
    deferred calls, or on that of `close`. `add` and `remove` change the instances while it serves. The backend
    instances stay the caller's: close them after `close` or `remove`. `delay_until` N holds everything back until N
    requests are queued, once. `on_poisoned` is called where the batch was executed and must not raise.
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
    ) -> None:
        self._spec = spec
        self._statistics = statistics
        self._clock = clock
        self._limits = limits_of(spec)
        self._short_runs = InlineExecution(spec)
        self._order = ResponseOrder(deliver) if spec.batching and spec.batching.preserve_ordering else None
        self._respond: Respond = self._order.respond if self._order else deliver
        self._on_poisoned = on_poisoned
        self._lock = threading.Lock()
        self._drained = threading.Condition(self._lock)
        # --- guarded by the lock
        self._queue = RequestQueue(spec.batching)
        self._delay_until = delay_until
        self._idle: list[InstanceThread] = []
        self._holder: InstanceThread | None = None
        self._waking = 0
        self._in_flight = 0
        self._drainers = 0
        self._stopped = False
        self._closed = False
        # --- guarded by a lock of their own, taken before the other: no request waits while a thread is started
        self._changing = threading.Lock()
        self._started = False
        self._threads = [self._thread_for(instance) for instance in instances]

    def _thread_for(self, instance: BackendInstance) -> InstanceThread:
        model_instance = ModelInstance(
            instance, self._spec, self._statistics, self._respond, clock=self._clock, on_poisoned=self._on_poisoned
        )
        return InstanceThread(instance, model_instance, self._serve)

    @property
    def queued(self) -> int:
        """Requests that wait for an instance."""
        return self._queue.size

    @property
    def in_flight(self) -> int:
        """Requests that an instance has taken and not finished answering."""
        return self._in_flight

    def start(self) -> None:
        """Start the instance threads; once."""
        with self._changing:
            self._started = True
            for thread in self._threads:
                thread.start()

    def add(self, instance: BackendInstance) -> None:
        """Have `instance` execute as well, at once if the threads were started. Neither waits for what runs.

        Raises ServerStopping after `close`, ValueError if it is one of the instances already.
        """
        with self._changing:
            if self._closed:
                raise ServerStopping("Server is stopping, scheduler for model has ended", model=self._spec.name)
            if self._thread_of(instance) is not None:
                raise ValueError(f"'{instance.placement.name}' is an instance already")
            thread = self._thread_for(instance)
            if self._started:
                thread.start()
            self._threads.append(thread)

    def remove(self, instance: BackendInstance) -> None:
        """Have `instance` take no more work, and wait until it has finished what it runs and its thread has ended.

        Raises ValueError if it is none of the instances, or the last one (add its successor first), and RuntimeError
        on its own thread, which cannot wait for itself; then nothing has changed.
        """
        with self._changing:
            thread = self._thread_of(instance)
            if thread is None or thread.retired:
                raise ValueError(f"'{instance.placement.name}' is no instance any more")
            if thread.is_current:
                raise RuntimeError("an instance cannot be removed on its own thread")
            if all(other.retired for other in self._threads if other is not thread):
                raise ValueError(f"'{instance.placement.name}' is the last instance")
            with self._lock:
                self._retire(thread)
        thread.join(None)
        with self._changing:
            self._threads.remove(thread)

    def _thread_of(self, instance: BackendInstance) -> InstanceThread | None:
        return next((thread for thread in self._threads if thread.backend is instance), None)

    def submit(self, pending: PendingRequest) -> None:
        """Queue `pending`. Raises QueueFull or ServerStopping, and then `on_response` is never called."""
        now_ns = self._clock()
        pending.enqueue_ns = now_ns
        if not pending.start_ns:
            pending.start_ns = now_ns
        with self._lock:
            if self._stopped:
                raise stopping(pending, self._spec.name)
            self._queue.push(pending)
            if self._order is not None:
                self._order.enter(pending)
            if self._delay_until:
                if self._queue.size < self._delay_until:
                    return
                self._delay_until = 0
            holder = self._holder
            if holder is None:
                if pending.defer is not None and self._may_lend():
                    pending.defer(self._run_here)
                else:
                    self._wake_idle()
            elif may_end(holder.wait, pending, self._queue.items) or not (
                self._queue.is_in_order or self._queue.is_last(pending)
            ):
                self._wake_holder(holder)

    def _wake_idle(self) -> None:
        """Wake an idle thread if there is more to run than what those on their way can take. Under the lock."""
        if self._idle and self._queue.items > self._waking * self._limits.max_batch_size:
            self._wake(self._idle.pop())

    def _wake_holder(self, holder: InstanceThread) -> None:
        self._holder = None
        self._wake(holder)

    def _wake(self, thread: InstanceThread) -> None:
        """Give a thread just taken out of the resting ones its token. Under the lock: it never gets two."""
        self._waking += 1
        thread.woken = True
        thread.token.release()

    def _may_lend(self) -> bool:
        """Under the lock."""
        return bool(self._idle) and not self._waking and self._idle[-1].may_be_lent and self._short_runs.lasting

    def _run_here(self) -> None:
        """Run what is queued on the calling thread, in place of one that rests, which nobody wakes for it."""
        with self._lock:
            if not self._may_lend():
                self._wake_idle()
                return
            thread = self._idle.pop()
            thread.lent = True
        until_ns = self._clock() + TURN_NS
        while True:
            with self._lock:
                self._finish(thread)
                goes_on = self._clock() <= until_ns and not thread.retired and not self._closed
                work = self._form(lent=True) if goes_on else None
                if not isinstance(work, Work):
                    self._take_back(thread)
                    return
                self._take(thread, work)
            self._do(thread, work)

    def _take_back(self, thread: InstanceThread) -> None:
        """Enter a thread that was lent among the resting ones, or send it on its way. Under the lock."""
        thread.lent = False
        if thread.retired:
            self._let_end(thread)
        elif self._closed:
            self._wake(thread)
        else:
            self._idle.append(thread)
            self._wake_idle()

    def _serve(self, thread: InstanceThread) -> None:
        """The life of an instance's thread."""
        while (work := self._next_work(thread)) is not None:
            self._do(thread, work)
            del work  # while the thread rests, the requests of its last work must be free to go

    def _do(self, thread: InstanceThread, work: Work) -> None:
        """Answer the rejected and execute the batch, on the instance's thread or in its place."""
        for rejection in work.rejections:
            self._reject(rejection)
        if work.batch:
            begin_ns = self._clock()
            thread.instance.execute(work.batch)
            self._short_runs.note(work.batch, self._clock() - begin_ns, thread.lent)

    def _next_work(self, thread: InstanceThread) -> Work | None:
        """Count off what `thread` has finished, and wait for its next work; None when it shall end."""
        while True:
            with self._lock:
                if thread.taken:
                    self._finish(thread)
                if thread.resting:
                    self._rise(thread)
                if thread.retired:
                    self._leave()
                    return None
                wait = self._form()
                if isinstance(wait, Work):
                    self._take(thread, wait)
                    return wait
                if self._closed:
                    return None
                timeout_s = self._rest(thread, wait)
            thread.token.acquire(timeout=timeout_s)

    def _take(self, thread: InstanceThread, work: Work) -> None:
        thread.taken = len(work.batch) + len(work.rejections)
        self._in_flight += thread.taken

    def _finish(self, thread: InstanceThread) -> None:
        self._in_flight -= thread.taken
        thread.taken = 0
        if self._drainers and not self._in_flight and not self._queue.size:
            self._drained.notify_all()

    def _form(self, lent: bool = False) -> Work | Wait | None:
        """What the thread that asks shall do: work, wait for the queue to grow, or (None) rest. Under the lock.

        Who asks in the place of a thread that was `lent` gets only what will be short.
        """
        if not self._queue.size or self._delay_until:
            return None
        now_ns = self._clock()
        candidates = self._queue.candidates(self._limits.max_batch_size, now_ns)
        rejections = self._queue.take_rejections()
        decision = form_batch(candidates, self._limits, now_ns)
        if isinstance(decision, Run) and (not lent or self._short_runs.expected(candidates[: decision.requests])):
            batch = self._queue.take(decision.requests)
            self._pass_on()
            return Work(batch, rejections)
        if rejections:
            return Work([], rejections)
        return decision if isinstance(decision, Wait) else None

    def _pass_on(self) -> None:
        """After a batch was taken, see to what is left. Under the lock.

        A holder waits for something that may have left with the batch: it becomes idle, and is woken if there is more.
        """
        self._relieve_holder()
        if self._queue.size:
            self._wake_idle()

    def _relieve_holder(self) -> None:
        """Make the holder one of the idle; its timer may still wake it in vain, once. Under the lock."""
        if self._holder is not None:
            self._idle.append(self._holder)
            self._holder = None

    def _rest(self, thread: InstanceThread, wait: Wait | None) -> float:
        """Enter `thread` among the resting ones; returns for how many seconds, -1 for any. Under the lock.

        Of several that decided to wait, the last one holds.
        """
        thread.resting = True
        if wait is None:
            self._idle.append(thread)
            return -1
        self._relieve_holder()
        self._holder = thread
        thread.wait = wait
        return min(max(0, wait.until_ns - self._clock()) / 1e9, threading.TIMEOUT_MAX)

    def _rise(self, thread: InstanceThread) -> None:
        """Undo `_rest` after the token came or the time was over. Under the lock."""
        thread.resting = False
        if thread.woken:
            thread.woken = False
            self._waking -= 1
            thread.token.acquire(blocking=False)  # it came when the time was just over: leave none behind
        else:
            self._withdraw(thread)

    def _withdraw(self, thread: InstanceThread) -> None:
        """Take `thread`, which rests and was not woken, out of the resting ones. Under the lock."""
        if thread is self._holder:
            self._holder = None
        else:
            self._idle.remove(thread)

    def _retire(self, thread: InstanceThread) -> None:
        """Have `thread` end when it next looks for work. Under the lock.

        One that rests is woken for it, but not counted as on its way: a request that comes meanwhile wakes another.
        """
        thread.retired = True
        if thread.resting and not thread.woken and not thread.lent:
            self._withdraw(thread)
            self._let_end(thread)

    def _let_end(self, thread: InstanceThread) -> None:
        """Under the lock."""
        thread.resting = False
        thread.token.release()

    def _leave(self) -> None:
        """Leave to another what a retired thread was woken for, or held. Under the lock."""
        if self._queue.size and self._holder is None:
            self._wake_idle()

    def _reject(self, rejection: Rejection) -> None:
        pending, error = rejection
        self._statistics.record_failure(pending, reason_of(error), self._clock())
        self._respond(pending, InferenceResponse.failed(pending.request, error))
        flush((pending,))

    def stop(self) -> None:
        """Accept no more requests. What is queued runs without waiting for company that can no longer come."""
        with self._lock:
            self._stopped = True
            self._delay_until = 0
            self._limits = self._limits._replace(delay_ns=0)
            if self._holder is not None:
                self._wake_holder(self._holder)
            elif self._queue.size:
                self._wake_idle()

    def drain(self, timeout_s: float | None = None) -> bool:
        """Wait until nothing is queued nor in flight, at most `timeout_s` seconds; whether that came about."""
        with self._lock:
            self._drainers += 1
            try:
                return self._drained.wait_for(lambda: not self._queue.size and not self._in_flight, timeout_s)
            finally:
                self._drainers -= 1

    def close(self, timeout_s: float | None = None) -> bool:
        """Stop, answer what is still queued with ServerStopping, end the threads and wait for them.

        Executions that have begun finish. Returns whether all threads ended within `timeout_s` seconds each.
        """
        self.stop()
        with self._changing, self._lock:
            self._closed = True
            threads = list(self._threads)
            queued = self._queue.clear()
            self._in_flight += len(queued)
            self._relieve_holder()
            while self._idle:
                self._wake(self._idle.pop())
        for pending in queued:
            self._reject(Rejection(pending, stopping(pending, self._spec.name)))
        with self._lock:
            self._in_flight -= len(queued)
            self._drained.notify_all()
        ended = [thread.join(timeout_s) for thread in threads]
        return all(ended)
