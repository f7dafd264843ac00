"""The responses to one request as an iterator, and those to several.

Source: docs/spec/schedulers.md section 3.8.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from trident.core.errors import RequestCancelled, ServerError
from trident.core.inference.pending_request import CancelCause
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import InferenceResponse
from trident.core.inference.streaming import StreamedRequest
from trident.core.waiting import Mailbox

# What `take` returns at most: the caller sends it as one piece, while the model fills the rest of the window.
_MOST_RESPONSES = 32
_MOST_BYTES = 65536


class ResponseStream:
    """An iterator of the responses, the last one with `final` set. Used by one thread or greenlet, where it was made.

    A response is acknowledged when the next one is asked for: the caller has sent it by then. When the client has
    disconnected, the request is cancelled and the stream ends with an error; likewise when `client_gone` raises one.
    """

    def __init__(
        self,
        request: InferenceRequest,
        mailbox: Mailbox[InferenceResponse],
        client_gone: Callable[[], bool] | None,
        look_seconds: float | None = None,
        on_end: Callable[[ResponseStream], None] | None = None,
        on_arrival: Callable[[], None] | None = None,
    ) -> None:
        """`look_seconds`: the period in which a wait asks `client_gone`; None: somebody else calls `is_given_up`.
        `on_end` is called when the caller has the final response, or cancels; `on_arrival` when a response has come, on
        any thread.
        """
        self._request = request
        self._mailbox = mailbox
        self._client_gone = client_gone
        self._look_seconds = look_seconds if client_gone is not None else None
        self._on_end = on_end
        self._on_arrival = on_arrival
        self._taken = 0
        self._pending: StreamedRequest | None = None
        self._has_ended = False
        # The number of the client watch's look at which the stream began.
        self.since = 0

    def begin(self, pending: StreamedRequest) -> None:
        """The request is `pending`, whose `on_response` is `respond`."""
        self._pending = pending

    def respond(self, response: InferenceResponse) -> None:
        """Bring a response. Any thread, one at a time."""
        self._mailbox.put(response)
        if self._on_arrival is not None:
            self._on_arrival()

    def __iter__(self) -> ResponseStream:
        return self

    def __next__(self) -> InferenceResponse:
        responses = self.take(1)
        if not responses:
            raise StopIteration
        return responses[0]

    def take(self, most: int = _MOST_RESPONSES) -> list[InferenceResponse]:
        """Wait for a response; return it and those that have arrived with it, at most `most`. None are left: []."""
        self.acknowledge()
        if self._has_ended:
            return []
        self._wait()
        arrived, size = self._mailbox.items, 0
        responses: list[InferenceResponse] = []
        while arrived and len(responses) < most and size < _MOST_BYTES:
            response = arrived.popleft()
            responses.append(response)
            if response.final:
                self._end()
                return responses
            size += response.nbytes
        self._taken = len(responses)
        return responses

    def acknowledge(self) -> None:
        """The caller has sent what it took: the model may send as much again."""
        pending, taken = self._pending, self._taken
        if pending is not None and taken:
            self._taken = 0
            pending.take(taken)

    def cancel(self) -> None:
        """The caller takes no more responses. Does nothing after the final one; the next `take` returns []."""
        pending = self._pending
        if not self._has_ended:
            self._end()
            if pending is not None:
                pending.cancel()

    def is_given_up(self) -> bool:
        """Ask `client_gone` whether nobody wants the responses; then the request is cancelled and the stream ends."""
        pending = self._pending
        if pending is None or self._client_gone is None:
            return False
        try:
            if not self._client_gone():
                return False
            failure: ServerError = RequestCancelled("the client went away", model=self._request.model_name)
            cause = CancelCause.CLIENT
        except ServerError as error:
            failure, cause = error, CancelCause.DEADLINE
        # First: the engine may answer the cancelled request at once, with a text that says less.
        self.respond(InferenceResponse.failed(self._request, failure))
        pending.cancel(cause)
        return True

    def _wait(self) -> None:
        mailbox = self._mailbox
        if self._look_seconds is None:
            mailbox.wait()
            return
        while not mailbox.wait(self._look_seconds):
            self.is_given_up()

    def _end(self) -> None:
        self._has_ended = True
        # No cycle: `pending` refers to this stream.
        self._pending = None
        if self._on_end is not None:
            on_end, self._on_end = self._on_end, None
            on_end(self)


class ResponseStreams:
    """The responses to several requests as they arrive, each with the number of its request, from 0. Used as a
    ResponseStream is."""

    def __init__(self, arrived: Mailbox[int]) -> None:
        """`arrived` has the number of the request of each response that is there."""
        self._arrived = arrived
        self._streams: list[ResponseStream] = []
        self._open = 0
        self._taken: ResponseStream | None = None

    def add(self, begin: Callable[[Callable[[], None]], ResponseStream]) -> None:
        """Add the stream that `begin` makes; it takes what the stream has to call on an arrival."""
        self._streams.append(begin(partial(self._arrived.put, len(self._streams))))
        self._open += 1

    def __iter__(self) -> ResponseStreams:
        return self

    def __next__(self) -> tuple[int, InferenceResponse]:
        if self._taken is not None:
            self._taken.acknowledge()
            self._taken = None
        while self._open:
            while not self._arrived.wait(self._streams[0]._look_seconds):
                for stream in self._streams:
                    stream.is_given_up()
            number = self._arrived.items.popleft()
            response = next(self._streams[number], None)
            if response is not None:
                self._taken = self._streams[number]
                self._open -= response.final
                return number, response
        raise StopIteration

    def cancel(self) -> None:
        """The caller takes no more responses."""
        for stream in self._streams:
            stream.cancel()
        self._open = 0
