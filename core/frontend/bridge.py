"""How a front end waits for the engine, which answers through callbacks on its own threads.

    Bridge          the protocol
    ├── ThreadBridge   each request has a native thread, which waits on a lock (gthread worker, test client)
    └── HubBridge      the protocol of a bridge that also calls back on a hub, where nobody waits
        └── GeventBridge   a greenlet waits on the hub, or a callback is called there (core/frontend/gevent_bridge.py)

Source: docs/architecture.md section 3 points 1 to 3.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from functools import partial
from queue import Empty, SimpleQueue
from types import ModuleType
from typing import TYPE_CHECKING, Final, ParamSpec, Protocol, TypeVar

from trident.core.errors import BackendFailed, RequestCancelled, ServerError
from trident.core.frontend.response_stream import ResponseStream
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import InferenceResponse, OnResponse
from trident.core.inference.streaming import StreamedRequest
from trident.core.waiting.waiting import Deadlines, ThreadMailbox, ThreadWaiter

if TYPE_CHECKING:
    from trident.core.engine.protocol import Engine, ServedModel


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
        self, model: ServedModel, request: InferenceRequest, client_gone: ClientGone | None = None
    ) -> ResponseStream:
        """Submit `request` to `model` and return its responses, which may be errors, as they arrive.

        The caller takes all of them or cancels the stream. `client_gone` is asked as in `infer`; after it returned true
        or raised, the stream ends with an error at once.
        """
        ...

    def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function that may block, where it delays no other request; returns its result or raises its error."""
        ...

    def run_long(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """As `run`, for a function that may take minutes: it does not occupy a thread that `run` uses."""
        ...

    def give_way(self) -> None:
        """Let the other requests of this thread go on: again and again, between the steps of work that takes long."""
        ...

    def close(self) -> None:
        """Release threads and watchers. No call may be waiting."""
        ...


class HubBridge(Bridge, Protocol):
    """`deadlines` are those of the hub."""

    deadlines: Deadlines

    def submit(
        self, model: ServedModel, request: InferenceRequest, on_response: OnResponse, *, is_slow: bool = False
    ) -> PendingRequest:
        """Submit `request` to `model` together with all others of this iteration of the loop; nobody waits.

        `is_slow` is that of `infer`.

        `on_response` is called on the hub's thread for each response, the last time with one that is final, possibly
        before this returns. It must neither wait nor raise. `PendingRequest.cancel` of the result cancels.
        """
        ...

    def submit_streamed(
        self, model: ServedModel, request: InferenceRequest, on_response: OnResponse, *, is_slow: bool = False
    ) -> StreamedRequest:
        """As `submit`, for a caller that calls `take` when a response has left, so that the model is held back."""
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

    Raises RuntimeError where gevent has patched `threading`: waiting would then stop the hub, and with it all requests.
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
        waiting = _WaitingForResponse()
        pending = PendingRequest(request, waiting.respond)
        model.submit(pending)
        try:
            if client_gone is not None:
                while waiting.wait(LOOK_SECONDS) is None:
                    if client_gone():
                        pending.cancel()
                        break
            response: InferenceResponse = waiting.wait()
        except ServerError as error:
            return InferenceResponse.failed(request, error)
        finally:
            if waiting.outcome is None:
                # The wait was interrupted.
                pending.cancel()
        return response

    def stream(
        self, model: ServedModel, request: InferenceRequest, client_gone: ClientGone | None = None
    ) -> ResponseStream:
        stream = ResponseStream(request, ThreadMailbox(), client_gone, LOOK_SECONDS)
        pending = StreamedRequest(request, stream.respond)
        stream.begin(pending)
        model.submit(pending)
        return stream

    def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return function(*args, **kwargs)

    def run_long(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return function(*args, **kwargs)

    def give_way(self) -> None:
        """Other requests have their own threads."""

    def close(self) -> None:
        """It holds nothing."""


class _WaitingForResponse(ThreadWaiter):
    """A thread that waits for the one response to its request."""

    __slots__ = ("_responses",)

    def __init__(self) -> None:
        super().__init__()
        self._responses = SingleResponse()

    def respond(self, response: InferenceResponse) -> None:
        """Take a response, on any thread, one at a time."""
        answer = self._responses.gather(response)
        if answer is not None:
            self.settle(answer)


def refuse_patched_threading(modules: Mapping[str, ModuleType] = sys.modules) -> None:
    """Raise RuntimeError if gevent has patched `threading`. Does not import gevent."""
    monkey = modules.get("gevent.monkey")
    if monkey is not None and monkey.is_module_patched("threading"):
        raise RuntimeError(
            "gevent has monkey-patched threading, so native threads would stop the hub; "
            "start gunicorn with --worker-class trident.app.worker.worker.TridentWorker, or with gthread"
        )


_LONGEST_S = 0.0002


class TimeSlice:
    """Call it between the steps of the work: it gives way when the work has taken 0.2 ms since it did."""

    def __init__(self, give_way: Callable[[], None], *, now: Callable[[], float] = time.perf_counter) -> None:
        """`give_way` is that of the bridge; `now` is a clock in seconds."""
        self._give_way = give_way
        self._now = now
        self._since = now()

    def __call__(self) -> None:
        if self._now() - self._since >= _LONGEST_S:
            self._give_way()
            self._since = self._now()


# Source: docs/spec/vertex.md section D point 3.


AT_ONCE = 16

_Answers = SimpleQueue[tuple[int, InferenceResponse]]


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
        self._answers: _Answers = SimpleQueue()
        self._under_way: dict[int, PendingRequest] = {}
        self._responses: dict[int, InferenceResponse] = {}
        self._error: ServerError | None = None
        self._hold: tuple[str, int] | None = None
        self._model: ServedModel | None = None

    def run(self, requests: Iterable[InferenceRequest]) -> list[InferenceResponse]:
        try:
            for index, request in enumerate(requests):
                while len(self._under_way) >= AT_ONCE:
                    self._take_answer()
                if self._error is not None:
                    break
                self._submit(index, request)
            while self._under_way:
                self._take_answer()
        finally:
            # No request is in flight here unless this was interrupted, or `requests` raised.
            self._cancel_all()
            self._release()
        if self._error is not None:
            raise self._error
        return [self._responses[index] for index in range(len(self._responses))]

    def _release(self) -> None:
        if self._hold is not None:
            # An engine that has ended holds nothing.
            with suppress(ServerError):
                self._engine.release_version(*self._hold)

    def _submit(self, index: int, request: InferenceRequest) -> None:
        if self._hold is None:
            number = self._engine.hold_version(request.model_name, request.model_version)
            self._hold = request.model_name, number
        if self._model is None:
            self._model = self._engine.model(*self._hold)
        request.model_version = self._hold[1]
        pending = PendingRequest(request, partial(_gather, index, SingleResponse(), self._answers))
        self._under_way[index] = pending
        self._model.submit(pending)

    def _take_answer(self) -> None:
        """Wait for an answer, at most for one period."""
        self._look_for_client()
        try:
            index, response = self._answers.get(timeout=None if self._client_gone is None else LOOK_SECONDS)
        except Empty:
            return
        del self._under_way[index]
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
        for pending in self._under_way.values():
            pending.cancel()


def _gather(index: int, gatherer: SingleResponse, answers: _Answers, response: InferenceResponse) -> None:
    """Take a response to request number `index`. Any thread, one at a time."""
    answer = gatherer.gather(response)
    if answer is not None:
        answers.put((index, answer))
