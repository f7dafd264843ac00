"""A model instance: executes batches on a backend instance and answers their requests.

Source: docs/spec/schedulers.md section 3, docs/architecture.md section 7.
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Sequence

from core.backends.base import BackendInstance
from core.config.model_spec import ModelSpec
from core.config.request_validator import BatchForm
from core.errors import BackendFailed, ServerError
from core.inference.pending_request import PendingRequest
from core.inference.request import InferenceRequest
from core.inference.response import InferenceResponse, Outputs, OutputTensor
from core.observability.statistics import FailureReason, ModelStatistics
from core.scheduling.delivery import Respond, flush

_log = logging.getLogger("trident.scheduling")

Clock = Callable[[], int]
OnPoisoned = Callable[[BackendInstance], None]
Outcome = Outputs | Exception


class ModelInstance:
    """One instance of a model version. `execute` runs on its thread or in its place, never on two at once."""

    def __init__(
        self,
        backend: BackendInstance,
        spec: ModelSpec,
        statistics: ModelStatistics,
        respond: Respond,
        *,
        clock: Clock = time.monotonic_ns,
        on_poisoned: OnPoisoned | None = None,
    ) -> None:
        self.name = backend.placement.name
        self._backend = backend
        self._spec = spec
        self._statistics = statistics
        self._respond = respond
        self._clock = clock
        self._on_poisoned = on_poisoned

    def execute(self, requests: Sequence[PendingRequest]) -> None:
        """Execute a batch and answer each of its requests exactly once. Raises nothing.

        A batch that fails as a whole runs again in halves, down to the requests that fail alone. If the backend
        instance is poisoned afterwards (it cannot work any more), `on_poisoned` is called, once.
        """
        self._execute(requests)
        flush(requests)
        if self._on_poisoned is not None and self._backend.poisoned:
            on_poisoned, self._on_poisoned = self._on_poisoned, None
            on_poisoned(self._backend)

    def _execute(self, requests: Sequence[PendingRequest]) -> None:
        outcomes = self._try(requests)
        if isinstance(outcomes, Exception):
            self._split(requests, outcomes)
            return
        name, version, respond = self._spec.name, self._spec.version, self._respond
        for pending, outcome in zip(requests, outcomes, strict=True):
            if isinstance(outcome, Exception):
                self._fail(pending, outcome)
            else:
                respond(pending, InferenceResponse(name, version, outcome, id=pending.request.id))

    def _try(self, requests: Sequence[PendingRequest]) -> Sequence[Outcome] | Exception:
        """The exception is returned, so that what is tried next is not chained to it."""
        try:
            return execute_batch(self._backend, requests, self._statistics, self._clock)
        except Exception as exc:
            return exc

    def _split(self, requests: Sequence[PendingRequest], exc: Exception) -> None:
        """Find the culprits of a failed batch by bisection; a poisoned instance can tell nobody apart."""
        if len(requests) == 1 or self._backend.poisoned:
            for pending in requests:
                self._fail(pending, exc)
            return
        count, model = len(requests), self._spec.name
        _log.warning("a batch of %d requests for model '%s' failed, running it again split: %s", count, model, exc)
        middle = count // 2
        self._execute(requests[:middle])
        self._execute(requests[middle:])

    def _fail(self, pending: PendingRequest, exc: Exception) -> None:
        """Answer one request with its error; what is not a ServerError is logged here, where its traceback is known."""
        if isinstance(exc, ServerError):
            error = exc
        else:
            _log.error("model '%s', instance '%s' failed", self._spec.name, self.name, exc_info=exc)
            error = BackendFailed(str(exc) or type(exc).__name__, model=self._spec.name)
            error.__cause__ = exc
        self._statistics.record_failure(pending, FailureReason.BACKEND, self._clock())
        self._respond(pending, InferenceResponse.failed(pending.request, error))


def execute_batch(
    backend: BackendInstance, requests: Sequence[PendingRequest], statistics: ModelStatistics, clock: Clock
) -> Sequence[Outcome]:
    """Execute `requests` as one batch on the calling thread and count it; returns an outcome for each request.

    Statistics take in the batch and its successful requests; counting failed ones is the caller's. Raises what the
    backend raises; an execution that raised is not counted as one, as in Triton's ONNX Runtime backend.
    """
    start_ns = clock()
    batch_sizes = [pending.batch_size or 1 for pending in requests]
    execution = backend.execute([pending.request for pending in requests], batch_sizes)
    end_ns = clock()
    outcomes = execution.outputs
    if len(outcomes) != len(requests):
        raise BackendFailed(f"the backend gave {len(outcomes)} outcomes for {len(requests)} requests")
    successful = requests
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            pairs = zip(requests, outcomes, strict=True)
            successful = [pending for pending, outcome in pairs if not isinstance(outcome, Exception)]
            break
    statistics.record_batch(
        successful, sum(batch_sizes), start_ns, execution.input_end_ns, execution.output_start_ns, end_ns
    )
    return outcomes


def run_once(
    backend: BackendInstance,
    requests: Sequence[InferenceRequest],
    check: Callable[[InferenceRequest], BatchForm],
    statistics: ModelStatistics,
    *,
    clock: Clock = time.monotonic_ns,
) -> list[list[OutputTensor]]:
    """Check `requests` and execute them as one batch on the calling thread, without the queue: for warmup.

    Counted like any other execution. Returns the outputs of each request; raises the first error. Must not run while
    the instance's thread does.
    """
    batch = [PendingRequest(request, _ignore) for request in requests]
    for pending in batch:
        pending.batch_size, pending.batch_key = check(pending.request)
    now_ns = clock()
    for pending in batch:
        pending.start_ns = pending.enqueue_ns = now_ns
    try:
        outcomes = execute_batch(backend, batch, statistics, clock)
    except Exception:
        for pending in batch:
            statistics.record_failure(pending, FailureReason.BACKEND, clock())
        raise
    outputs: list[list[OutputTensor]] = []
    errors: list[Exception] = []
    for pending, outcome in zip(batch, outcomes, strict=True):
        if isinstance(outcome, Exception):
            statistics.record_failure(pending, FailureReason.BACKEND, clock())
            errors.append(outcome)
        else:
            outputs.append(list(outcome))
    if errors:
        raise errors[0]
    return outputs


def _ignore(response: InferenceResponse) -> None:
    """Nobody waits for a response of `run_once`."""
