"""A model instance: executes work on a backend instance and answers the requests.

Source: docs/spec/schedulers.md section 3, docs/architecture.md section 7.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from trident.core.backends.backend import BackendInstance, Execution
from trident.core.config.spec import ModelSpec
from trident.core.errors import BackendFailed, RequestCancelled, ServerError
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import CALLERS, IDLE, CloseReason, InferenceTimes, asks_for_times
from trident.core.inference.response import InferenceResponse
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.observability.statistics import FailureReason
from trident.core.observability.switches import SWITCHES
from trident.core.scheduling.execution import Clock, ShortExecutions, execute_batch, execute_in_bucket
from trident.core.scheduling.latency_target import BatchTuner
from trident.core.scheduling.limits import BatchLimits, Run, Wait, form_batch
from trident.core.scheduling.open_requests import OpenExecution
from trident.core.scheduling.queue import Rejection, RequestQueue, Respond, flush_callers, reject
from trident.core.scheduling.rate_limiter import Claim, Needs


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


_log = logging.getLogger("trident.scheduling")

OnPoisoned = Callable[[BackendInstance], None]


class ModelInstance:
    """One instance of a model version. It runs on its own thread, or inline on another while its own rests."""

    def __init__(
        self,
        backend: BackendInstance,
        spec: ModelSpec,
        statistics: ModelStatistics,
        respond: Respond,
        refuse: Respond,
        short: ShortExecutions,
        *,
        clock: Clock = time.monotonic_ns,
        on_poisoned: OnPoisoned | None = None,
        open_execution: OpenExecution | None = None,
        claim: Claim | None = None,
        tuner: BatchTuner | None = None,
    ) -> None:
        """`refuse` answers requests that are not executed. `open_execution` executes on an instance that answers later.

        `claim` is that on what its executions hold. `tuner` is told of each execution.
        """
        self.name = backend.placement.name
        self.claim = claim
        self._backend = backend
        self._spec = spec
        self._statistics = statistics
        self._respond = respond
        self._short = short
        self._clock = clock
        self._open_execution = open_execution
        self._respond_unrun = refuse if open_execution is None else open_execution.respond_unrun
        self._execute_batch = execute_batch if spec.buckets is None else execute_in_bucket
        self._on_poisoned = on_poisoned
        self._tuner = tuner

    @property
    def needs(self) -> Needs:
        """What its executions hold; empty for nothing."""
        return {} if self.claim is None else self.claim.needs

    def perform(self, work: Work, inline: bool = False) -> None:
        """Answer the rejected requests, then execute the batch. `inline`: not on the instance's own thread.

        The caller holds the claim, if there is one, which ends with the execution: requests that are answered later
        hold nothing.
        """
        for rejection in work.rejections:
            reject(rejection, self._statistics, self._respond_unrun, self._clock())
        if work.batch:
            begin_ns = self._clock()
            self._statistics.begin_execution(self.name, work.batch, begin_ns)
            self.execute(work.batch, work.reason)
            self._statistics.end_execution(self.name)
            end_ns = self._clock()
            self._short.note(work.batch, end_ns - begin_ns, inline)
            if self.claim is not None:
                self.claim.end()
            # Not part of the execution: the next steps of an ensemble may be executed meanwhile.
            flush_callers(work.batch)
            if self._tuner is not None:
                self._tuner.note(work.batch, begin_ns, end_ns)

    def execute(self, requests: Sequence[PendingRequest], reason: CloseReason = IDLE) -> None:
        """Execute a batch and answer each of its requests that is not answered later. Raises nothing.

        `reason` is why the batch was closed; it holds for each part of it.
        A batch that fails as a whole is executed again in halves, down to the requests that fail alone. If the backend
        instance is poisoned afterwards, so that it can execute nothing again, `on_poisoned` is called, once.
        """
        if self._open_execution is None:
            self._execute(requests, reason)
        else:
            self._execute_open(requests, reason, self._open_execution)
        if self._on_poisoned is not None and self._backend.poisoned:
            on_poisoned, self._on_poisoned = self._on_poisoned, None
            on_poisoned(self._backend)

    def _execute(self, requests: Sequence[PendingRequest], reason: CloseReason) -> None:
        """Each request gets its one response."""
        name, version, respond = self._spec.name, self._spec.version, self._respond
        parts = [requests]
        while parts:
            part = parts.pop()
            try:
                execution = self._execute_batch(self._backend, part, reason, self._statistics, self._clock)
            except Exception as exc:
                # Executed after this block, so that the next exception is not chained to this one.
                parts += self._split(part, exc)
                continue
            for pending, outcome in zip(part, execution.outputs, strict=True):
                if isinstance(outcome, Exception):
                    self._fail(pending, outcome)
                    continue
                # Only an instance that answers later may give LATER.
                response = InferenceResponse(name, version, outcome, id=pending.request.id)  # type: ignore[arg-type]
                if SWITCHES.times or pending.wants_times:
                    self._note_times(response, pending, execution, reason)
                respond(pending, response)

    def _execute_open(
        self, requests: Sequence[PendingRequest], reason: CloseReason, open_execution: OpenExecution
    ) -> None:
        """Requests that are answered later stay open."""
        execution, claimed = open_execution.run(requests, reason)
        for request, outcome in claimed:
            pending = request.pending
            if isinstance(outcome, Exception):
                request.answer(self._failure(pending, outcome))
                continue
            response = InferenceResponse(self._spec.name, self._spec.version, outcome, id=pending.request.id)
            if execution is not None and (SWITCHES.times or pending.wants_times):
                self._note_times(response, pending, execution, reason)
            request.answer(response)

    def _split(self, requests: Sequence[PendingRequest], exc: Exception) -> list[Sequence[PendingRequest]]:
        """The halves of a batch that failed, the second one first; fails a single request.

        On a poisoned instance every request fails.
        """
        if len(requests) == 1 or self._backend.poisoned:
            for pending in requests:
                self._fail(pending, exc)
            return []
        count, model = len(requests), self._spec.name
        _log.warning("a batch of %d requests for model '%s' failed, running it again split: %s", count, model, exc)
        middle = count // 2
        return [requests[middle:], requests[:middle]]

    def _note_times(
        self, response: InferenceResponse, pending: PendingRequest, execution: Execution, reason: CloseReason
    ) -> None:
        """Add the times of the execution in which `pending` succeeded, as parameters, too, if its client asks."""
        response.times = times = InferenceTimes(
            execution.start_ns - pending.enqueue_ns,
            execution.input_end_ns - execution.start_ns,
            execution.output_start_ns - execution.input_end_ns,
            execution.end_ns - execution.output_start_ns,
            execution.items,
            reason,
        )
        if SWITCHES.timing and asks_for_times(pending.request):
            response.parameters = {**(response.parameters or {}), **times.parameters()}

    def _fail(self, pending: PendingRequest, exc: Exception) -> None:
        """Answer one request with its error."""
        self._respond(pending, self._failure(pending, exc))

    def _failure(self, pending: PendingRequest, exc: Exception) -> InferenceResponse:
        """Count a failed request and make its response. An exception that is not a ServerError is logged with its
        traceback.
        """
        if isinstance(exc, ServerError):
            error = exc
        else:
            _log.error("model '%s', instance '%s' failed", self._spec.name, self.name, exc_info=exc)
            error = BackendFailed(str(exc) or type(exc).__name__, model=self._spec.name)
            error.__cause__ = exc
        is_cancelled = pending.cancelled is not None and isinstance(error, RequestCancelled)
        reason = FailureReason.CANCELED if is_cancelled else FailureReason.BACKEND
        self._statistics.record_failure(pending, reason, self._clock(), error.message)
        return InferenceResponse.failed(pending.request, error)
