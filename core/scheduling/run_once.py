"""Executions without a queue, for requests that no client sent: warmup and golden requests."""

from __future__ import annotations

from collections.abc import Callable, Sequence

from trident.core.backends.backend import BackendInstance
from trident.core.config.request_check import BatchForm
from trident.core.errors import BackendFailed, ServerError
from trident.core.inference.pending_request import AGAIN, DeferredOutcome
from trident.core.inference.request import InferenceRequest, Parameter
from trident.core.inference.response import Outputs, OutputTensor
from trident.core.scheduling.instance import checked
from trident.core.waiting import Mailbox, ThreadMailbox


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
    if isinstance(outcome, Exception):
        raise outcome
    if isinstance(outcome, DeferredOutcome):
        raise BackendFailed("the backend answers later, which it did not announce")
    return list(outcome)


class CollectedAnswer:
    """The outputs of the first response that has some, or the first error. `wait` on one thread; the rest on any."""

    def __init__(self) -> None:
        self._answer: Outputs | ServerError | None = None
        self._is_over = False
        self._end: Mailbox[bool] = ThreadMailbox()

    def note(self, response: Outputs | ServerError | None, final: bool) -> None:
        if self._is_over:
            return
        if self._answer is None or (isinstance(response, ServerError) and not isinstance(self._answer, ServerError)):
            self._answer = response
        if final:
            self._is_over = True
            self._end.put(True)

    def wait(self) -> Outputs | ServerError:
        self._end.get()
        return [] if self._answer is None else self._answer


class CollectingSender:
    """Implements ResponseSender, without a window. Only the backend instance refers to it."""

    is_cancelled = False
    is_full = False

    def __init__(self, answer: CollectedAnswer) -> None:
        self._answer = answer

    def __del__(self) -> None:
        # Does nothing after the final response. It takes no lock that its thread may hold, so it may be done anywhere.
        self._answer.note(BackendFailed("the model dropped its response sender before the final response"), True)

    def send(
        self,
        outputs: Outputs | None,
        *,
        final: bool = False,
        error: ServerError | None = None,
        parameters: dict[str, Parameter] | None = None,
    ) -> None:
        self._answer.note(outputs if error is None else error, final)

    def watch(self, callback: Callable[[], None]) -> None:
        """Nothing changes."""
