"""Executing one batch on the calling thread, and counting it."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from core.backends.base import BackendInstance, BucketedExecution, Execution
from core.config.request_validator import BatchForm
from core.errors import BackendFailed
from core.inference.close_reason import CloseReason
from core.inference.pending_request import PendingRequest
from core.inference.request import InferenceRequest
from core.inference.response import Outputs, OutputTensor
from core.inference.response_sender import AGAIN, Later
from core.observability.model_statistics import ModelStatistics
from core.scheduling.collecting_sender import CollectedAnswer, CollectingSender

# Monotonic nanoseconds.
Clock = Callable[[], int]


def execute_batch(
    backend: BackendInstance,
    requests: Sequence[PendingRequest],
    reason: CloseReason,
    statistics: ModelStatistics,
    clock: Clock,
) -> Execution:
    """Execute `requests` as one batch, which was closed for `reason`, with an output or an error for each of them.

    Raises what the backend raises.

    Counts the batch and its successful requests; the caller counts the failed ones. An execution that raised is not
    counted as an execution, as in Triton's ONNX Runtime backend.
    """
    start_ns = clock()
    batch_sizes = [pending.batch_size or 1 for pending in requests]
    execution = checked(backend.execute([pending.request for pending in requests], batch_sizes), len(requests))
    execution.start_ns = start_ns
    execution.end_ns = end_ns = clock()
    execution.items = items = execution.items or sum(batch_sizes)
    outcomes = execution.outputs
    successful = requests
    for outcome in outcomes:
        if isinstance(outcome, Exception):
            pairs = zip(requests, outcomes, strict=True)
            successful = [pending for pending, outcome in pairs if not isinstance(outcome, Exception)]
            break
    statistics.record_batch(
        successful, items, start_ns, execution.input_end_ns, execution.output_start_ns, end_ns, reason
    )
    return execution


def execute_in_bucket(
    backend: BackendInstance,
    requests: Sequence[PendingRequest],
    reason: CloseReason,
    statistics: ModelStatistics,
    clock: Clock,
) -> Execution:
    """`execute_batch` for a model with batch buckets. Counts the padding, too."""
    execution = execute_batch(backend, requests, reason, statistics, clock)
    if isinstance(execution, BucketedExecution):
        statistics.record_bucket(execution.bucket)
    return execution


def checked(execution: Execution, count: int) -> Execution:
    """`execution`, which must have `count` outcomes. Raises BackendFailed."""
    if len(execution.outputs) != count:
        raise BackendFailed(f"the backend gave {len(execution.outputs)} outcomes for {count} requests")
    return execution


def run_once(
    backend: BackendInstance, requests: Sequence[InferenceRequest], check: Callable[[InferenceRequest], BatchForm]
) -> list[list[OutputTensor]]:
    """Check `requests` and execute them as one batch, without a queue: for warmup and golden requests.

    Nothing is counted, because no client sent them. Blocks until each request is answered or, if the model wants to
    execute it again, has had its first execution. Returns the outputs of each
    request, the first ones of a request with several responses; raises the first error. Must not run while the
    instance's thread does.
    """
    batch_sizes = [check(request)[0] or 1 for request in requests]
    if not backend.answers_later:
        return [_outputs(outcome) for outcome in backend.execute(requests, batch_sizes).outputs]
    answers = [CollectedAnswer() for _ in requests]
    execution = checked(
        backend.execute(requests, batch_sizes, [CollectingSender(answer) for answer in answers]), len(requests)
    )
    pairs = list(zip(answers, execution.outputs, strict=True))
    for answer, outcome in pairs:
        if outcome is AGAIN:
            answer.note(None, True)
    return [_outputs(answer.wait() if isinstance(outcome, Later) else outcome) for answer, outcome in pairs]


def _outputs(outcome: Outputs | Exception | Later) -> list[OutputTensor]:
    """Raises an outcome that is an error."""
    if isinstance(outcome, Exception):
        raise outcome
    if isinstance(outcome, Later):
        raise BackendFailed("the backend answers later, which it did not announce")
    return list(outcome)
