"""The statistics of one model version: plain integers, updated once per execution.

Durations are nanoseconds of the monotonic clock, summed over requests. They are lost when the version is loaded again.
What they are at one moment is in another module, which is not compiled, because it crosses process boundaries.
Source: docs/spec/statistics-and-metrics.md section A.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping, Sequence

from trident.core.inference.pending_request import CancelCause, PendingRequest
from trident.core.inference.request import IDLE, CloseReason
from trident.core.observability.history import (
    LONGEST_ERROR,
    LONGEST_ID,
    NotedRequest,
    SlowestRequests,
    VersionRequests,
)
from trident.core.observability.latencies import LatencyMeters, LatencyMetrics
from trident.core.observability.statistics import (
    BatchStatistics,
    BatchTuning,
    BucketStatistics,
    BucketUse,
    FailureReason,
    ResponseKind,
    ResponseStatistics,
    RunningExecution,
    StatisticsSnapshot,
)

_MOST_RESPONSES = 1024


class _ComputeCounters:
    """Executions and their durations, summed."""

    __slots__ = ("compute_infer_ns", "compute_input_ns", "compute_output_ns", "count")

    def __init__(self) -> None:
        self.count = 0
        self.compute_input_ns = 0
        self.compute_infer_ns = 0
        self.compute_output_ns = 0


class ModelStatistics:
    """Counters of one model version. Thread-safe; every method returns at once.

    Requests that the queue refuses (it is full, or the server stops) are counted apart from failures: the metrics show
    both, the statistics call shows only failures, as in Triton. An invalid request is not counted here.
    Distributions of the durations are counted from `measure` on.
    """

    def __init__(self, *, wall_clock: Callable[[], int] = time.time_ns) -> None:
        self._wall_clock = wall_clock
        self._lock = threading.Lock()
        # When the last request ended, in Unix time; 0 before the first.
        self.last_inference_ms = 0
        self._inference_count = 0
        self._execution_count = 0
        self._success_count = 0
        self._success_ns = 0
        self._failures = dict.fromkeys(FailureReason, 0)
        self._refusals: dict[FailureReason, int] = {}
        self._step_failures = 0
        self._cancellations = dict.fromkeys(CancelCause, 0)
        self._failed_count = 0
        self._fail_ns = 0
        self._queue_ns = 0
        self._compute = _ComputeCounters()
        self._batches: dict[int, _ComputeCounters] = {}
        self._tuning: BatchTuning | None = None
        self._closes = [0] * len(CloseReason)
        # The counts and durations of the responses with each index, by ResponseKind.
        self._responses: list[tuple[list[int], list[int]]] = []
        # Executions, elements and padding by batch size and length of the bucket.
        self._buckets: dict[tuple[int, int], tuple[int, int, int]] = {}
        self._latencies: LatencyMeters | None = None
        self._noted = SlowestRequests()
        # Those of `_noted`, at hand for each execution.
        self._slow_ns = 0
        self._interval_ends_ms = 0
        # The executions that run, by their instances: when each began, and its requests.
        self._running: dict[str, tuple[int, Sequence[PendingRequest]]] = {}
        self._cache_hit_count = 0
        self._cache_hit_ns = 0
        self._cache_miss_count = 0
        self._cache_miss_ns = 0

    def measure(self, latencies: LatencyMeters | None) -> None:
        """Count the durations of requests in `latencies`, too, from now on; None: in none."""
        with self._lock:
            self._latencies = latencies

    def begin_execution(self, instance: str, batch: Sequence[PendingRequest], now_ns: int) -> None:
        self._running[instance] = (now_ns, batch)

    def end_execution(self, instance: str) -> None:
        self._running.pop(instance, None)

    @property
    def oldest_execution_ns(self) -> int:
        """For how long the oldest execution that runs has run; 0 if none does."""
        begun = [begin_ns for begin_ns, _ in list(self._running.values())]
        return max(0, time.monotonic_ns() - min(begun)) if begun else 0

    def executions(self) -> list[RunningExecution]:
        """The executions that run, the oldest first."""
        running = [
            RunningExecution(
                instance,
                begin_ns,
                sum([pending.batch_size or 1 for pending in batch]),
                [pending.request.id for pending in batch],
            )
            for instance, (begin_ns, batch) in list(self._running.items())
        ]
        return sorted(running, key=lambda execution: execution.begin_ns)

    def given_up(self) -> list[str]:
        """The instances that execute nothing but requests which the server has given up."""
        return [
            instance
            for instance, (_, batch) in list(self._running.items())
            if all(pending.cancelled is CancelCause.SERVER for pending in batch)
        ]

    def record_batch(
        self,
        requests_ok: Sequence[PendingRequest],
        total_batch_size: int,
        compute_start_ns: int,
        input_end_ns: int,
        output_start_ns: int,
        compute_end_ns: int,
        reason: CloseReason = IDLE,
    ) -> None:
        """Count one execution of `total_batch_size` items, closed for `reason`, in which `requests_ok` succeeded.

        Every request carries the whole duration of the execution it was part of, as in Triton.
        """
        start_ns = enqueue_ns = items = slow = 0
        slow_start_ns = compute_end_ns - self._slow_ns
        for pending in requests_ok:
            start_ns += pending.start_ns
            if pending.start_ns <= slow_start_ns:
                slow += 1
            enqueue_ns += pending.enqueue_ns
            items += pending.batch_size or 1
        count = len(requests_ok)
        input_ns = input_end_ns - compute_start_ns
        infer_ns = output_start_ns - input_end_ns
        output_ns = compute_end_ns - output_start_ns
        now_ms = self._wall_clock() // 1_000_000
        with self._lock:
            self._execution_count += 1
            self._closes[reason] += 1
            self._inference_count += items
            if now_ms > self.last_inference_ms:
                self.last_inference_ms = now_ms
            self._success_count += count
            self._success_ns += count * compute_end_ns - start_ns
            self._queue_ns += count * compute_start_ns - enqueue_ns
            _add(self._compute, count, count * input_ns, count * infer_ns, count * output_ns)
            batch = self._batches.get(total_batch_size)
            if batch is None:
                batch = self._batches[total_batch_size] = _ComputeCounters()
            _add(batch, 1, input_ns, infer_ns, output_ns)
            if self._latencies is not None:
                self._latencies.observe_batch(
                    requests_ok, compute_start_ns, input_end_ns, output_start_ns, compute_end_ns, now_ms
                )
            if slow or now_ms >= self._interval_ends_ms:
                times = (input_ns, infer_ns, output_ns)
                for pending in requests_ok:
                    queue_ns = compute_start_ns - pending.enqueue_ns
                    self._note(pending, compute_end_ns, queue_ns, times, total_batch_size, now_ms, reason.label)

    def _note(
        self,
        pending: PendingRequest,
        end_ns: int,
        queue_ns: int,
        times: tuple[int, int, int],
        batch_size: int,
        now_ms: int,
        batch_close: str = "",
    ) -> None:
        """Keep a request that succeeded, if it is one of the slowest. Under the lock."""
        noted = self._noted
        if now_ms >= noted.due_ms:
            noted.begin_interval(now_ms)
        duration_ns = end_ns - pending.start_ns
        if duration_ns >= noted.least_ns:
            input_ns, infer_ns, output_ns = times
            noted.add(
                NotedRequest(
                    id=pending.request.id[:LONGEST_ID],
                    ended_ms=now_ms,
                    duration_ns=duration_ns,
                    queue_ns=queue_ns,
                    compute_input_ns=input_ns,
                    compute_infer_ns=infer_ns,
                    compute_output_ns=output_ns,
                    batch_size=batch_size,
                    batch_close=batch_close,
                )
            )
        self._slow_ns, self._interval_ends_ms = noted.least_ns, noted.due_ms

    def note_tuning(self, tuning: BatchTuning) -> None:
        self._tuning = tuning

    def record_request(
        self, pending: PendingRequest, compute_start_ns: int, input_end_ns: int, first_ns: int, end_ns: int
    ) -> None:
        """Count one request that succeeded after its execution was counted: answered from `first_ns` to `end_ns`."""
        input_ns, infer_ns = input_end_ns - compute_start_ns, end_ns - input_end_ns
        with self._lock:
            self._queue_ns += compute_start_ns - pending.enqueue_ns
            self._record_one(pending, compute_start_ns, first_ns, end_ns, (input_ns, infer_ns, 0))

    def record_composed(
        self, pending: PendingRequest, first_ns: int, end_ns: int, input_ns: int, infer_ns: int, output_ns: int
    ) -> None:
        """Count one request that succeeded as a whole for an ensemble; the durations are those of its steps, summed.

        It is one execution and never waits in a queue of its own, as in Triton. `first_ns` is when the first of several
        responses was made, 0 for one response.
        """
        items = pending.batch_size or 1
        with self._lock:
            self._execution_count += 1
            batch = self._batches.get(items)
            if batch is None:
                batch = self._batches[items] = _ComputeCounters()
            _add(batch, 1, input_ns, infer_ns, output_ns)
            self._record_one(pending, pending.enqueue_ns, first_ns, end_ns, (input_ns, infer_ns, output_ns))

    def _record_one(
        self, pending: PendingRequest, start_ns: int, first_ns: int, end_ns: int, times: tuple[int, int, int]
    ) -> None:
        """Count a request whose computation began at `start_ns`; `times` are its parts. Under the lock."""
        items, now_ms = pending.batch_size or 1, self._wall_clock() // 1_000_000
        input_ns, infer_ns, output_ns = times
        self._inference_count += items
        self.last_inference_ms = max(self.last_inference_ms, now_ms)
        self._success_count += 1
        self._success_ns += end_ns - pending.start_ns
        _add(self._compute, 1, input_ns, infer_ns, output_ns)
        if self._latencies is not None:
            input_end_ns = start_ns + input_ns
            self._latencies.observe_batch(
                (pending,), start_ns, input_end_ns, input_end_ns + infer_ns, end_ns, now_ms, first_ns
            )
        if pending.start_ns <= end_ns - self._slow_ns or now_ms >= self._interval_ends_ms:
            self._note(pending, end_ns, start_ns - pending.enqueue_ns, times, items, now_ms)

    def record_response(self, index: int, kind: ResponseKind, duration_ns: int) -> None:
        """Count the response with `index` within its request, which a sender sent.

        Only the first 1024 responses of a request count: an endless one must not cost memory.
        """
        if index >= _MOST_RESPONSES:
            return
        with self._lock:
            while len(self._responses) <= index:
                self._responses.append(([0] * len(ResponseKind), [0] * len(ResponseKind)))
            counts, durations_ns = self._responses[index]
            counts[kind] += 1
            durations_ns[kind] += duration_ns

    def record_bucket(self, use: BucketUse) -> None:
        key = (use.batch_size, use.length)
        with self._lock:
            executions, elements, padding = self._buckets.get(key, (0, 0, 0))
            self._buckets[key] = (executions + 1, elements + use.elements, padding + use.padding)

    def record_cache_hit(self, request_id: str, lookup_ns: int, now_ns: int) -> None:
        """Count one request that the response cache answered: it succeeded, and was neither queued nor executed."""
        now_ms = self._wall_clock() // 1_000_000
        with self._lock:
            if now_ms > self.last_inference_ms:
                self.last_inference_ms = now_ms
            self._success_count += 1
            self._success_ns += lookup_ns
            self._cache_hit_count += 1
            self._cache_hit_ns += lookup_ns
            if self._latencies is not None:
                self._latencies.observe_hit(request_id, lookup_ns, now_ns, now_ms)

    def record_cache_miss(self, lookup_ns: int) -> None:
        with self._lock:
            self._cache_miss_count += 1
            self._cache_miss_ns += lookup_ns

    def record_cache_insertion(self, lookup_ns: int, insertion_ns: int, now_ns: int) -> None:
        """Add the time of keeping the answer of a miss, which came after `lookup_ns` and the request were counted."""
        with self._lock:
            self._cache_miss_ns += insertion_ns
            self._success_ns += insertion_ns
            if self._latencies is not None:
                self._latencies.observe_miss(lookup_ns + insertion_ns, now_ns)

    def record_failure(self, pending: PendingRequest, reason: FailureReason, now_ns: int, error: str) -> None:
        """Count one failed request; its duration runs from `start_ns`. `error` is the text of its answer."""
        with self._lock:
            self._note_failed(pending, reason, now_ns - pending.start_ns, error)
            self._failures[reason] += 1
            if reason is FailureReason.CANCELED:
                self._cancellations[pending.cancelled or CancelCause.CLIENT] += 1
            elif reason is FailureReason.REJECTED:
                self._cancellations[CancelCause.QUEUE_TIMEOUT] += 1
            self._fail_ns += now_ns - pending.start_ns
            if self._latencies is not None:
                self._latencies.observe_failure(pending, now_ns - pending.start_ns, self._wall_clock() // 1_000_000)

    def record_refusal(self, pending: PendingRequest, reason: FailureReason, error: str) -> None:
        with self._lock:
            self._note_failed(pending, reason, 0, error)
            self._refusals[reason] = self._refusals.get(reason, 0) + 1

    def record_step_failure(self) -> None:
        with self._lock:
            self._step_failures += 1

    def _note_failed(self, pending: PendingRequest, reason: FailureReason, duration_ns: int, error: str) -> None:
        """Keep a request that failed. Under the lock."""
        self._failed_count += 1
        self._noted.failed.append(
            NotedRequest(
                id=pending.request.id[:LONGEST_ID],
                ended_ms=self._wall_clock() // 1_000_000,
                duration_ns=duration_ns,
                failure=reason.value,
                error=error[:LONGEST_ERROR],
            )
        )

    def requests(self, name: str, version: int) -> VersionRequests:
        with self._lock:
            return self._noted.report(name, version, self._wall_clock() // 1_000_000)

    @property
    def turnover(self) -> int:
        """The number of requests that have ended, well or badly: as long as it is the same, so are all counters."""
        return self._success_count + self._failed_count

    def take_steps(self) -> Mapping[int, int]:
        """See `LatencyMeters.take_steps`; for one caller."""
        with self._lock:
            return self._latencies.take_steps() if self._latencies is not None else {}

    def latencies(self, now_ns: int) -> LatencyMetrics:
        """The distributions of the durations at this moment, which is `now_ns`; empty if none are counted."""
        with self._lock:
            return self._latencies.metrics(now_ns) if self._latencies is not None else LatencyMetrics()

    def snapshot(self, pending: int = 0) -> StatisticsSnapshot:
        """The counters at this moment; `pending` is the number of requests queued, which the caller knows."""
        oldest_execution_ns = self.oldest_execution_ns
        with self._lock:
            if oldest_execution_ns:  # a model whose execution never ends is not idle
                self.last_inference_ms = max(self.last_inference_ms, self._wall_clock() // 1_000_000)
            return StatisticsSnapshot(
                request_success=self._success_count,
                request_failures=dict(self._failures),
                request_refusals=dict(self._refusals),
                request_cancellations=dict(self._cancellations),
                step_failures=self._step_failures,
                inference_count=self._inference_count,
                execution_count=self._execution_count,
                request_ns=self._success_ns,
                queue_ns=self._queue_ns,
                compute_input_ns=self._compute.compute_input_ns,
                compute_infer_ns=self._compute.compute_infer_ns,
                compute_output_ns=self._compute.compute_output_ns,
                pending=pending,
                failure_ns=self._fail_ns,
                last_inference_ms=self.last_inference_ms,
                oldest_execution_ns=oldest_execution_ns,
                cache_hit_count=self._cache_hit_count,
                cache_hit_ns=self._cache_hit_ns,
                cache_miss_count=self._cache_miss_count,
                cache_miss_ns=self._cache_miss_ns,
                batches=tuple(
                    BatchStatistics(
                        batch_size=size,
                        execution_count=batch.count,
                        compute_input_ns=batch.compute_input_ns,
                        compute_infer_ns=batch.compute_infer_ns,
                        compute_output_ns=batch.compute_output_ns,
                    )
                    for size, batch in sorted(self._batches.items())
                ),
                responses=tuple(
                    ResponseStatistics(index=index, counts=tuple(counts), durations_ns=tuple(durations_ns))
                    for index, (counts, durations_ns) in enumerate(self._responses)
                ),
                tuning=self._tuning,
                batch_closes=dict(zip(CloseReason, self._closes, strict=True)),
                buckets=tuple(
                    BucketStatistics(
                        batch_size=batch_size,
                        length=length,
                        execution_count=executions,
                        element_count=elements,
                        padding_count=padding,
                    )
                    for (batch_size, length), (executions, elements, padding) in sorted(self._buckets.items())
                ),
            )


def _add(batch: _ComputeCounters, count: int, input_ns: int, infer_ns: int, output_ns: int) -> None:
    batch.count += count
    batch.compute_input_ns += input_ns
    batch.compute_infer_ns += infer_ns
    batch.compute_output_ns += output_ns
