"""Many requests of one caller at the same time, such as the instances of a prediction or the lines of a body.

Source: docs/spec/vertex.md section D point 3.
"""

from __future__ import annotations

import time
from collections.abc import Iterable
from contextlib import suppress
from queue import Empty, SimpleQueue

from trident.core.engine.protocol import Engine, ServedModel
from trident.core.errors import RequestCancelled, ServerError
from trident.core.frontend.bridge import LOOK_SECONDS, ClientGone, SingleResponse
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import InferenceResponse

AT_ONCE = 16


def infer_many(
    engine: Engine, requests: Iterable[InferenceRequest], client_gone: ClientGone | None = None
) -> list[InferenceResponse]:
    """The responses to `requests`, all for one model and version, in their order. Blocks: call it on a native thread.

    One version answers all of them: the version that serves now is held until the last is answered, though it is
    unloaded or replaced meanwhile. If none serves, no request is submitted.
    At most 16 requests are in the engine at a time, so that one caller does not fill a model's queue. Raises the first
    error, or RequestCancelled when `client_gone` returns true; the requests in flight are then cancelled and awaited.
    An error that `client_gone` raises is raised at once: the requests in flight are cancelled and not awaited.
    """
    return _FanOut(engine, client_gone).run(requests)


class _FanOut:
    """One call of `infer_many`."""

    def __init__(self, engine: Engine, client_gone: ClientGone | None) -> None:
        self._engine = engine
        self._client_gone = client_gone
        self._next_look = time.monotonic() + LOOK_SECONDS
        self._answers: SimpleQueue[tuple[int, InferenceResponse]] = SimpleQueue()
        self._in_flight: dict[int, PendingRequest] = {}
        self._responses: dict[int, InferenceResponse] = {}
        self._error: ServerError | None = None
        # The name and number of the held version.
        self._hold: tuple[str, int] | None = None
        self._model: ServedModel | None = None

    def run(self, requests: Iterable[InferenceRequest]) -> list[InferenceResponse]:
        try:
            for index, request in enumerate(requests):
                while len(self._in_flight) >= AT_ONCE:
                    self._take_answer()
                if self._error is not None:
                    break
                self._submit(index, request)
            while self._in_flight:
                self._take_answer()
        finally:
            # No request is in flight here unless this was interrupted, or `requests` raised.
            self._cancel_all()
            if self._hold is not None:
                with suppress(ServerError):  # an engine that has ended holds nothing
                    self._engine.release_version(*self._hold)
        if self._error is not None:
            raise self._error
        return [self._responses[index] for index in range(len(self._responses))]

    def _submit(self, index: int, request: InferenceRequest) -> None:
        if self._hold is None:
            number = self._engine.hold_version(request.model_name, request.model_version)
            self._hold = request.model_name, number
        if self._model is None:
            self._model = self._engine.model(*self._hold)
        request.model_version = self._hold[1]
        single = SingleResponse()

        def on_response(response: InferenceResponse) -> None:
            """Any thread, one at a time."""
            answer = single.gather(response)
            if answer is not None:
                self._answers.put((index, answer))

        pending = self._in_flight[index] = PendingRequest(request, on_response)
        self._model.submit(pending)

    def _take_answer(self) -> None:
        """Wait for an answer, at most for one period."""
        self._look_for_client()
        try:
            index, response = self._answers.get(timeout=None if self._client_gone is None else LOOK_SECONDS)
        except Empty:
            return
        del self._in_flight[index]
        self._responses[index] = response
        if response.error is not None:
            self._fail(response.error)

    def _look_for_client(self) -> None:
        """Ask `client_gone` once in a period, also while answers arrive all the time."""
        now = time.monotonic()
        if self._client_gone is None or now < self._next_look:
            return
        self._next_look = now + LOOK_SECONDS
        if self._client_gone():
            self._client_gone = None
            self._fail(RequestCancelled("the client went away"))

    def _fail(self, error: ServerError) -> None:
        if self._error is None:
            self._error = error
            self._cancel_all()

    def _cancel_all(self) -> None:
        for pending in self._in_flight.values():
            pending.cancel()
