"""The bridge between greenlets that wait and native threads that answer.

A thread that has a response appends it to a queue and wakes the hub, once for all responses that come until the hub
looks. The hub then switches to each waiting greenlet.
Source: docs/architecture.md section 3 points 2 and 3.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from typing import TYPE_CHECKING, Any, TypeVar

from greenlet import getcurrent

from core.errors import ServerError
from core.frontend.bridge import LOOK_SECONDS, ClientGone, P, SingleResponse, refuse_patched_threading
from core.inference.deferred import Deferred
from core.inference.pending_request import PendingRequest
from core.inference.request import InferenceRequest
from core.inference.response import InferenceResponse

if TYPE_CHECKING:
    from core.engine.protocol import Engine

T = TypeVar("T")


class GeventBridge:
    """Belongs to the thread of `hub`: all methods are called there, `infer` and `run` in greenlets of that hub.

    Raises RuntimeError where gevent has patched `threading`.
    """

    def __init__(self, hub: Any, threads: int = 8) -> None:
        """`threads` is how many calls `run` makes at the same time."""
        refuse_patched_threading()
        self._hub = hub
        self._arrivals = _Arrivals(hub)
        self._departures = _Departures(hub)
        self._watch = _ClientWatch(hub)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="trident-blocking")

    def infer(
        self, engine: Engine, request: InferenceRequest, client_gone: ClientGone | None = None
    ) -> InferenceResponse:
        waiting = _WaitingForResponse(self._arrivals, engine, client_gone)
        waiting.pending = pending = PendingRequest(request, waiting.respond, defer=self._departures.defer)
        self._departures.put(waiting)
        if client_gone is not None:
            self._watch.add(waiting)
        try:
            while waiting.outcome is None:
                self._hub.switch()
        finally:
            waiting.leave()
            if client_gone is not None:
                self._watch.remove(waiting)
            if waiting.outcome is None:
                engine.cancel(pending)
        response: InferenceResponse = waiting.outcome
        return response

    def run(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        return self._wait(self._threads.submit(function, *args, **kwargs))

    def run_long(self, function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
        future: Future[T] = Future()
        call = partial(_settle, future, partial(function, *args, **kwargs))
        threading.Thread(target=call, name="trident-long-call", daemon=True).start()
        try:
            return self._wait(future)
        finally:
            del future, call  # see `_wait`

    def _wait(self, future: Future[T]) -> T:
        waiting = _Waiting(self._arrivals)
        future.add_done_callback(waiting.settle)
        try:
            while waiting.outcome is None:
                self._hub.switch()
        finally:
            waiting.greenlet = None
            if waiting.outcome is None:
                future.cancel()
        try:
            return future.result()
        finally:
            # No cycles: `waiting` and the future know each other, and an error knows the frames that it goes through
            # and so the future. They would keep all that the call was given, a model of many MB perhaps, until the
            # collector comes round.
            waiting.outcome = None
            del future

    def close(self) -> None:
        """Stop watching and end the threads, after what they run now."""
        self._watch.close()
        self._threads.shutdown(cancel_futures=True)
        self._arrivals.close()


def _settle(future: Future[T], function: Callable[[], T]) -> None:
    """Give `future` the outcome of `function`, unless nobody waits for it any more."""
    try:
        result = function()
    except BaseException as error:
        if future.set_running_or_notify_cancel():
            future.set_exception(error)
    else:
        if future.set_running_or_notify_cancel():
            future.set_result(result)
    finally:
        del future  # see `_wait`


class _Waiting:
    """A greenlet that waits for an outcome. `settle` is called once, on any thread.

    `greenlet` is None once nobody waits any more; only the hub's thread reads and writes it.
    """

    __slots__ = ("_arrivals", "greenlet", "outcome")

    def __init__(self, arrivals: _Arrivals) -> None:
        self._arrivals = arrivals
        self.greenlet: Any = getcurrent()
        self.outcome: Any = None

    def settle(self, outcome: object) -> None:
        self.outcome = outcome
        self._arrivals.put(self)


class _WaitingForResponse(_Waiting):
    """A greenlet that waits for the response to `request`; `since` counts the looks of the client watch."""

    __slots__ = ("_responses", "client_gone", "engine", "pending", "since")

    def __init__(self, arrivals: _Arrivals, engine: Engine, client_gone: ClientGone | None) -> None:
        super().__init__(arrivals)
        self._responses: SingleResponse | None = None
        self.engine = engine
        self.pending: PendingRequest | None = None
        self.client_gone = client_gone
        self.since = 0

    def leave(self) -> None:
        """Nobody waits any more.

        A response that arrives later must not wake a greenlet that has gone on to wait for something else. And the
        pending request, which refers to `respond`, must not be referred to from here: a cycle would keep each body
        until the garbage collector runs.
        """
        self.greenlet = None
        self.pending = None

    def is_given_up(self) -> bool:
        """Ask for the client, and cancel the request if it is not worth an answer any more. On the hub."""
        pending = self.pending
        if pending is None or self.client_gone is None:
            return False
        try:
            if not self.client_gone():
                return False
        except ServerError as error:
            self.settle(InferenceResponse.failed(pending.request, error))
        self.engine.cancel(pending)
        return True

    def respond(self, response: InferenceResponse) -> None:
        """Take a response, on any thread, one at a time."""
        if response.final and self._responses is None:
            self.settle(response)
            return
        if self._responses is None:
            self._responses = SingleResponse()
        answer = self._responses.gather(response)
        if answer is not None:
            self.settle(answer)


class _Departures:
    """Requests on their way to the engine: handed over together, once per iteration of the hub's loop, or when there
    are as many as the engine wants at a time.

    An instance that sleeps is woken by the first of them and finds all the others; submitted one by one, each request
    would wake it for a batch of its own (mean batch at 16 connections: 2.1 then, 9 now).
    """

    def __init__(self, hub: Any) -> None:
        self._loop = hub.loop
        self._waiting: list[_WaitingForResponse] = []
        self._deferred = Deferred()
        self.defer = self._deferred.add

    def put(self, waiting: _WaitingForResponse) -> None:
        if not self._waiting:
            self._loop.run_callback(self._submit_all)
        self._waiting.append(waiting)
        if len(self._waiting) == waiting.engine.handover:
            self._submit_all()

    def _submit_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for one in waiting:
            if one.pending is not None:
                one.engine.submit(one.pending)
        self._deferred.run()


class _Arrivals:
    """Outcomes on their way from native threads to the hub."""

    def __init__(self, hub: Any) -> None:
        self._arrived: deque[_Waiting] = deque()
        self._signalled = False
        self._loop = hub.loop
        self._thread = threading.get_ident()
        self._wake = hub.loop.async_()
        self._wake.start(self._deliver)

    def put(self, waiting: _Waiting) -> None:
        """Called on any thread.

        No wake-up is lost: who finds `_signalled` set has appended before the hub cleared it, and the hub looks at
        the queue only after clearing. Two threads may both find it clear; the second signal then finds nothing.
        """
        self._arrived.append(waiting)
        if not self._signalled:
            self._signalled = True
            if threading.get_ident() == self._thread:
                self._loop.run_callback(self._deliver)  # an engine in another process: its link is on the hub, too
            else:
                self._wake.send()

    def _deliver(self) -> None:
        """On the hub: switch to each greenlet whose outcome has arrived; each comes back when it waits again."""
        self._signalled = False
        arrived = self._arrived
        try:
            # As many as are there now: what comes meanwhile waits until sockets have had their turn.
            for _ in range(len(arrived)):
                greenlet = arrived.popleft().greenlet
                if greenlet is not None:
                    greenlet.switch()
        finally:
            if arrived:
                self._signalled = True
                self._wake.send()

    def close(self) -> None:
        # Outcomes that still come are kept where they are and signal nothing.
        self._signalled = True
        self._wake.stop()
        self._wake.close()


class _ClientWatch:
    """Cancels requests whose client has gone away, or shall not wait any longer.

    One timer for all, which runs only while somebody waits. A request is looked at when it has waited for a full
    period, so that the great mass of short ones costs an entry in a dict and no look.
    """

    def __init__(self, hub: Any) -> None:
        self._waiting: dict[_WaitingForResponse, None] = {}
        self._looks = 0
        self._running = False
        self._timer = hub.loop.timer(LOOK_SECONDS, LOOK_SECONDS)

    def add(self, waiting: _WaitingForResponse) -> None:
        waiting.since = self._looks
        self._waiting[waiting] = None
        if not self._running:
            self._running = True
            self._timer.start(self._look)

    def remove(self, waiting: _WaitingForResponse) -> None:
        self._waiting.pop(waiting, None)

    def _look(self) -> None:
        self._looks += 1
        if not self._waiting:
            self._running = False
            self._timer.stop()
            return
        for waiting in list(self._waiting):
            if self._looks - waiting.since < 2:
                # They stand in the order in which they came: all others are younger still.
                return
            if waiting.is_given_up():
                del self._waiting[waiting]

    def close(self) -> None:
        self._timer.stop()
        self._timer.close()
