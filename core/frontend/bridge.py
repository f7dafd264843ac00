"""How a front end waits for the engine, which answers through callbacks on its own threads.

    Bridge          the protocol
    ├── ThreadBridge   each request has a native thread, which waits on a lock (gthread worker, test client)
    └── GeventBridge   each request has a greenlet, which waits on the hub (core/frontend/gevent_bridge.py)

Source: docs/architecture.md section 3 points 1 to 3.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import TYPE_CHECKING, ParamSpec, Protocol, TypeVar

from core.errors import BackendFailed, ServerError
from core.inference.pending_request import PendingRequest
from core.inference.request import InferenceRequest
from core.inference.response import InferenceResponse
from core.waiting.waiter import ThreadWaiter

if TYPE_CHECKING:
    from core.engine.protocol import Engine

P = ParamSpec("P")
T = TypeVar("T")
# True once nobody reads the answer any more; a ServerError is raised once nobody shall wait for it any longer.
ClientGone = Callable[[], bool]

# How often a request that waits looks whether its client still does.
LOOK_SECONDS = 0.1


class Bridge(Protocol):
    def infer(
        self, engine: Engine, request: InferenceRequest, client_gone: ClientGone | None = None
    ) -> InferenceResponse:
        """Submit `request` and wait for its one response, which may be an error.

        When `client_gone` turns true the request is cancelled; the engine then answers it soon. When it raises a
        ServerError the request is cancelled, and that error is the response at once: what the engine answers later,
        if the request runs already, is thrown away.
        """
        ...

    def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """Call a function that may block, where it holds up nobody else, and return or raise what it does."""
        ...

    def run_long(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        """As `run`, for what may take minutes: it takes no place from the calls of `run`."""
        ...

    def close(self) -> None:
        """Give back threads and watchers. Nothing may be waiting any more."""
        ...


class SingleResponse:
    """Gathers the responses to one request into the one that HTTP can give.

    A model may send its response and, apart from it, an empty final one. Any other number than one is an error.
    """

    __slots__ = ("_count", "_first")

    def __init__(self) -> None:
        self._first: InferenceResponse | None = None
        self._count = 0

    def gather(self, response: InferenceResponse) -> InferenceResponse | None:
        """Take the next response; when it is the final one, return what the client gets."""
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

    Raises RuntimeError where gevent has patched `threading`: waiting would then stop the hub, and so every request.
    """

    def __init__(self, modules: Mapping[str, ModuleType] = sys.modules) -> None:
        refuse_patched_threading(modules)

    def infer(
        self, engine: Engine, request: InferenceRequest, client_gone: ClientGone | None = None
    ) -> InferenceResponse:
        waiting = _WaitingForResponse()
        pending = PendingRequest(request, waiting.respond)
        engine.submit(pending)
        try:
            if client_gone is not None:
                while waiting.wait(LOOK_SECONDS) is None:
                    if client_gone():
                        engine.cancel(pending)
                        break
            response: InferenceResponse = waiting.wait()
        except ServerError as error:
            return InferenceResponse.failed(request, error)
        finally:
            if waiting.outcome is None:
                # Interrupted: nobody will read the response.
                engine.cancel(pending)
        return response

    def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return function(*args, **kwargs)

    def run_long(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return function(*args, **kwargs)

    def close(self) -> None:
        """Nothing is held."""


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
    """Raise RuntimeError if gevent has replaced `threading`. Does not import gevent to find out."""
    monkey = modules.get("gevent.monkey")
    if monkey is not None and monkey.is_module_patched("threading"):
        raise RuntimeError(
            "gevent has monkey-patched threading, so native threads would stop the hub; "
            "start gunicorn with --worker-class app.worker.worker.TridentWorker, or with gthread"
        )
