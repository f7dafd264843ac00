"""Collects the responses to a request that no client sent."""

from __future__ import annotations

from collections.abc import Callable

from trident.core.errors import BackendFailed, ServerError
from trident.core.inference.request import Parameter
from trident.core.inference.response import Outputs
from trident.core.waiting.waiting import ThreadWaiter


class CollectedAnswer:
    """The outputs of the first response that has some, or the first error. `wait` on one thread; the rest on any."""

    def __init__(self) -> None:
        self._answer: Outputs | ServerError | None = None
        self._end = ThreadWaiter()

    def note(self, response: Outputs | ServerError | None, final: bool) -> None:
        if self._end.outcome is not None:
            return
        if self._answer is None or (isinstance(response, ServerError) and not isinstance(self._answer, ServerError)):
            self._answer = response
        if final:
            self._end.settle(True)

    def wait(self) -> Outputs | ServerError:
        """Block until the final response."""
        self._end.wait()
        return [] if self._answer is None else self._answer


class CollectingSender:
    """Implements ResponseSender, without a window. Only the backend instance refers to it."""

    is_cancelled = False
    is_full = False

    def __init__(self, answer: CollectedAnswer) -> None:
        self._answer = answer

    def __del__(self) -> None:
        # Does nothing after the final response. It takes no lock, so it may be done anywhere.
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
