"""How a front end waits for the engine, which answers through callbacks on its own threads.

    Bridge             the protocol
    ├── ThreadBridge   each request has a native thread, which waits on a lock (gthread worker, test client)
    └── GeventBridge   a greenlet waits on the hub, or a callback is called there (core/frontend/gevent_bridge.py)

Responses come one for a request, as a stream of one (`ResponseStream`), as streams of several, or one for each of many
requests (`infer_many`).
Source: docs/architecture.md section 3 points 1 to 3; docs/spec/schedulers.md section 3.8.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from types import ModuleType
from typing import Any, Final, ParamSpec, Protocol, TypeVar

from trident.core.borders import expected
from trident.core.engine.protocol import Engine, ServedModel
from trident.core.errors import BackendFailed, RequestCancelled, ServerError
from trident.core.inference.pending_request import CancelCause, Deferred, LoneRequest, PendingRequest, StreamedRequest
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import InferenceResponse, Origin
from trident.core.waiting import Mailbox, ThreadMailbox

P = ParamSpec("P")
T = TypeVar("T")
# Returns true when the client has disconnected. Raises a ServerError when the caller must not wait any longer.
ClientGone = Callable[[], bool]
# The period in which a waiting request asks whether its client is still connected.
LOOK_SECONDS: Final = 0.1


class Bridge(Protocol):
    def infer(
        self,
        model: ServedModel,
        request: InferenceRequest,
        client_gone: ClientGone | None = None,
        *,
        is_slow: bool = False,
    ) -> InferenceResponse:
        """Submit `request` to `model` and wait for its one response, which may be an error.

        `is_slow`: submitting it takes milliseconds, because of many strings, and must not delay other requests.

        When `client_gone` returns true, the request is cancelled, and the engine answers it soon. When it raises a
        ServerError, the request is cancelled and the error is the response at once; a response that the engine gives
        later, because the request is running already, is dropped.
        """
        ...

    def stream(
        self,
        model: ServedModel,
        request: InferenceRequest,
        client_gone: ClientGone | None = None,
        on_arrival: Callable[[], None] | None = None,
    ) -> ResponseStream:
        """Submit `request` to `model` and return its responses, which may be errors, as they arrive.

        The caller takes all of them or cancels the stream. `client_gone` is asked as in `infer`; after it returned true
        or raised, the stream ends with an error at once. `on_arrival` is called for each response, on any thread.
        """
        ...

    def mailbox(self) -> Mailbox[Any]:
        """A mailbox for the thread or greenlet that calls."""
        ...

    def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function that may block, where it delays no other request; returns its result or raises its error."""
        ...

    def run_long(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """As `run`, for a function that may take minutes: it does not occupy a thread that `run` uses."""
        ...

    def let_others_run(self) -> None:
        """Let the other requests of this thread proceed; called between the steps of long work."""
        ...

    def close(self) -> None:
        """Release threads and watchers. No call may be waiting."""
        ...


class SingleResponse:
    """Gathers the responses to one request into the single response that HTTP can send.

    A model may send its response and then an empty final one. Any other number of responses is an error.
    """

    __slots__ = ("_count", "_first")

    def __init__(self) -> None:
        self._first: InferenceResponse | None = None
        self._count = 0

    def gather(self, response: InferenceResponse) -> InferenceResponse | None:
        """Take the next response. After the final one, return the response for the client."""
        if response.final and self._count == 0:
            return response
        if not response.final or response.outputs or response.error is not None:
            self._count += 1
            if self._first is None:
                self._first = response
        if not response.final:
            return None
        if self._count == 1:
            return self._first
        error = BackendFailed(f"expected a single response, got {self._count}", model=response.model_name)
        return InferenceResponse.failed(response, error)


class ThreadBridge:
    """Waits on a native lock, in the thread that serves the request.

    Raises RuntimeError where gevent has patched `threading`: waiting would stop the hub, and with it all requests.
    """

    def __init__(self, modules: Mapping[str, ModuleType] = sys.modules) -> None:
        refuse_patched_threading(modules)

    def infer(
        self,
        model: ServedModel,
        request: InferenceRequest,
        client_gone: ClientGone | None = None,
        *,
        is_slow: bool = False,
    ) -> InferenceResponse:
        mailbox: Mailbox[InferenceResponse] = ThreadMailbox()
        responses = SingleResponse()

        def respond(response: InferenceResponse) -> None:
            """Any thread, one at a time."""
            answer = responses.gather(response)
            if answer is not None:
                mailbox.put(answer)

        here = Deferred()
        pending = LoneRequest(request, respond, defer=here.add)
        pending.submit_to(model)
        here.run()  # a short execution
        is_answered = False
        try:
            while (response := mailbox.get(None if client_gone is None else LOOK_SECONDS)) is None:
                if client_gone is not None and client_gone():
                    pending.cancel()
                    client_gone = None
            is_answered = True
        except ServerError as error:
            return InferenceResponse.failed(request, error, Origin.CANCELLED)
        finally:
            if not is_answered:
                # The wait was interrupted.
                pending.cancel()
        return response

    def stream(
        self,
        model: ServedModel,
        request: InferenceRequest,
        client_gone: ClientGone | None = None,
        on_arrival: Callable[[], None] | None = None,
    ) -> ResponseStream:
        stream = ResponseStream(request, self.mailbox(), client_gone, LOOK_SECONDS, on_arrival=on_arrival)
        pending = StreamedRequest(request, stream.respond)
        stream.begin(pending)
        pending.submit_to(model)
        return stream

    def mailbox(self) -> Mailbox[Any]:
        return ThreadMailbox()

    def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return function(*args, **kwargs)

    def run_long(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return function(*args, **kwargs)

    def let_others_run(self) -> None:
        """Do nothing: other requests have their own threads."""

    def close(self) -> None:
        """Do nothing: there is nothing to release."""


def refuse_patched_threading(modules: Mapping[str, ModuleType] = sys.modules) -> None:
    """Raise RuntimeError if gevent has patched `threading`. Does not import gevent."""
    monkey = modules.get("gevent.monkey")
    if monkey is not None and monkey.is_module_patched("threading"):
        raise RuntimeError(
            "gevent has monkey-patched threading, so native threads would stop the hub; "
            "start gunicorn with --worker-class trident.app.worker.worker.TridentWorker, or with gthread"
        )


# The most that `take` returns: the caller sends it as one piece, while the model fills the rest of the window.
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
        """`look_seconds`: the period in which a wait asks `client_gone`; None: the client watch calls `is_given_up`.
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
        # The number of the client watch's check at which the stream began.
        self.since = 0

    def begin(self, pending: StreamedRequest) -> None:
        """The request is `pending`, whose `on_response` is `respond`."""
        self._pending = pending

    def respond(self, response: InferenceResponse) -> None:
        """Accept a response. Any thread, one at a time."""
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
        """Wait for a response; return it and those that have arrived with it, at most `most`; [] if none are left."""
        self.acknowledge()
        if self._has_ended:
            return []
        while (response := self._mailbox.get(self._look_seconds)) is None:
            self.is_given_up()
        size = 0
        responses: list[InferenceResponse] = []
        while response is not None:
            responses.append(response)
            if response.final:
                self._end()
                return responses
            size += response.nbytes
            response = self._mailbox.take() if len(responses) < most and size < _MOST_BYTES else None
        self._taken = len(responses)
        return responses

    def acknowledge(self) -> None:
        """Acknowledge the responses that the caller took and sent, so that the model may send as many more."""
        pending, taken = self._pending, self._taken
        if pending is not None and taken:
            self._taken = 0
            pending.take(taken)

    def cancel(self) -> None:
        """Cancel the request: the caller takes no more. No effect after the final response; `take` then returns []."""
        pending = self._pending
        if not self._has_ended:
            self._end()
            if pending is not None:
                pending.cancel()

    def is_given_up(self) -> bool:
        """Cancel the request and end the stream if `client_gone` says so, or raises."""
        pending = self._pending
        if pending is None or self._client_gone is None:
            return False
        try:
            if not self._client_gone():
                return False
            failure: ServerError = RequestCancelled("the client went away", model=self._request.model_name)
            cause = CancelCause.CLIENT
        except Exception as error:
            failure = expected(error, "asking for the client of a stream")
            cause = CancelCause.DEADLINE
        # First: the engine may answer the cancelled request at once, with a text that says less.
        self.respond(InferenceResponse.failed(self._request, failure, Origin.CANCELLED))
        pending.cancel(cause)
        return True

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
        """Add the stream that `begin` makes, given the callback for arrivals."""
        self._streams.append(begin(partial(self._arrived.put, len(self._streams))))
        self._open += 1

    def __iter__(self) -> ResponseStreams:
        return self

    def __next__(self) -> Any:
        """The number of a request and its response. The type is Any, because mypyc's slots return no tuples."""
        if self._taken is not None:
            self._taken.acknowledge()
            self._taken = None
        while self._open:
            while (number := self._arrived.get(self._streams[0]._look_seconds)) is None:
                for stream in self._streams:
                    stream.is_given_up()
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


# --- many requests of one caller at the same time, such as the instances of a prediction or the lines of a body


AT_ONCE = 16


def infer_many(
    engine: Engine, requests: Iterable[InferenceRequest], client_gone: ClientGone | None = None
) -> list[InferenceResponse]:
    """The responses to `requests`, all for one model and version, in their order. Blocks: call it on a native thread.

    One version answers all of them: the version that serves now is held until the last is answered, even if it is
    unloaded or replaced meanwhile. If none serves, no request is submitted.
    At most 16 requests are in the engine at a time, so that one caller does not fill a model's queue. Raises the first
    error, or RequestCancelled when `client_gone` returns true; the requests in flight are then cancelled and awaited.
    An error that `client_gone` raises is raised at once: the requests in flight are cancelled and not awaited.
    """
    return _FanOut(engine, client_gone).run(requests)


class _FanOut:
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
        pending.submit_to(self._model)

    def _take_answer(self) -> None:
        """Wait for an answer, at most for one period."""
        self._look_for_client()
        try:
            index, response = self._answers.get(timeout=None if self._client_gone is None else LOOK_SECONDS)
        except Empty:
            return
        if self._in_flight.pop(index, None) is None:
            return  # answered before
        self._responses[index] = response
        if response.error is not None:
            self._fail(response.error)

    def _look_for_client(self) -> None:
        """Ask `client_gone` once in a period, even while answers keep arriving."""
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
