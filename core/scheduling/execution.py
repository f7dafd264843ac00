"""Executing one batch on the calling thread, and counting it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from trident.core.backends.backend import BackendInstance, Execution
from trident.core.config.request_check import BatchForm
from trident.core.config.spec import ModelSpec
from trident.core.errors import BackendFailed
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import CloseReason, InferenceRequest
from trident.core.inference.response import Outputs, OutputTensor
from trident.core.inference.streaming import AGAIN, DeferredOutcome
from trident.core.inference.tensors import BYTES
from trident.core.observability.model_statistics import ModelStatistics
from trident.core.scheduling.collecting_sender import CollectedAnswer, CollectingSender

# On its own thread an execution takes two to three times its computing time, because that thread shares the interpreter
# with the submitting one. So these limits only tell that running inline does no harm: the execution takes no longer
# than the rest of the work for as many requests.
_SHORT_NS: Final = 1_000_000
_SHORT_NS_PER_REQUEST: Final = 30_000
_IN_A_ROW: Final = 16
# These limits are for durations measured inline, which are computing time. They tell that running inline is a gain: an
# execution that computes longer is worth another thread on a machine with another core. The work that Python does for
# each request takes the same time on either thread.
_INLINE_NS: Final = 200_000
_INLINE_NS_PER_REQUEST: Final = 8_000
# The durations measured inline are averaged over this many executions. If the average is too high, inline execution is
# tried again after this many other executions.
_AVERAGED: Final = 16
_PAUSE: Final = 1000


class ShortExecutions:
    """The measured durations of one model's executions. Any thread; a note may be lost if two arrive at once.

    No client may block the submitting thread, so the amount of input that a client sends must not make the next
    execution a long one. An execution with twice the input of a short one takes some milliseconds at most, even if the
    time grows with the cube of the size.

    `lasting` tells whether the last 16 executions were short.
    """

    __slots__ = ("_average", "_largest", "_measured", "_short", "lasting")

    def __init__(self, spec: ModelSpec) -> None:
        # The time that a model spends on a string does not follow from the size of the string.
        self._measured = all(tensor.datatype is not BYTES for tensor in spec.inputs.values())
        self._short = 0
        self._largest = 0
        self._average = 0.0
        self.lasting = False

    def expected(self, batch: Sequence[PendingRequest]) -> bool:
        """Whether executing `batch` will be short: the last 16 were, and one of them had at least half its input."""
        return self.lasting and _size(batch) <= 2 * self._largest

    def note(self, batch: Sequence[PendingRequest], duration_ns: int, inline: bool) -> None:
        """Note that executing `batch` took `duration_ns` nanoseconds, on the submitting thread if `inline`."""
        if not self._measured:
            return
        count = len(batch)
        if duration_ns >= _SHORT_NS + _SHORT_NS_PER_REQUEST * count:
            self._short = self._largest = 0
            self.lasting = False
            return
        self._short += 1
        self._largest = max(self._largest, _size(batch))
        if inline:
            self._average += (duration_ns / (_INLINE_NS + _INLINE_NS_PER_REQUEST * count) - self._average) / _AVERAGED
            if self._average > 1:
                self._average = 0.0
                self._short = -_PAUSE
        self.lasting = self._short >= _IN_A_ROW


def _size(batch: Sequence[PendingRequest]) -> int:
    return sum([pending.request.nbytes for pending in batch])


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
    if execution.bucket is not None:
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
    return [_outputs(answer.wait() if isinstance(outcome, DeferredOutcome) else outcome) for answer, outcome in pairs]


def _outputs(outcome: Outputs | Exception | DeferredOutcome) -> list[OutputTensor]:
    """Raises an outcome that is an error."""
    if isinstance(outcome, Exception):
        raise outcome
    if isinstance(outcome, DeferredOutcome):
        raise BackendFailed("the backend answers later, which it did not announce")
    return list(outcome)
