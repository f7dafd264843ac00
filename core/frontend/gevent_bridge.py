"""The bridge between greenlets that wait and native threads that answer.

Source: docs/architecture.md section 3 points 2 and 3.
"""

from __future__ import annotations

import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import get_ident
from typing import Any, Protocol, TypeVar

from greenlet import getcurrent

from trident.core.engine.protocol import ServedModel
from trident.core.errors import RequestCancelled, ServerError
from trident.core.frontend.bridge import (
    LOOK_SECONDS,
    ClientGone,
    P,
    ResponseStream,
    SingleResponse,
    refuse_patched_threading,
)
from trident.core.inference.pending_request import CancelCause, Deferred, PendingRequest, StreamedRequest
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import InferenceResponse, OnResponse, Origin
from trident.core.waiting import Deadlines, Mailbox, ThreadWaiter, Waiter

T = TypeVar("T")


# --- greenlets of one hub that wait for outcomes from any thread
#
# A thread that settles a waiter appends it to a queue and wakes the hub, once for all outcomes that arrive until the
# hub looks. The hub then switches to each waiting greenlet.


class HubSignal:
    """Has `function` called on the hub, once for all signals sent until then. Made on the hub's thread.

    No signal is lost: `is_due` is cleared before the call, so a thread that finds it set has written whatever the call
    looks at before the call looks. Two threads may both find it clear; the second call then finds nothing new.
    """

    __slots__ = ("_async", "_function", "_loop", "_thread_id", "is_due")

    def __init__(self, hub: Any, function: Callable[[], None]) -> None:
        self.is_due = False
        self._function = function
        self._loop = hub.loop
        self._thread_id = get_ident()
        self._async = hub.loop.async_()
        self._async.start(self._call)

    def send(self) -> None:
        """Have the function called soon: on the hub's thread in this iteration of the loop. Any thread."""
        if self.is_due:
            return
        self.is_due = True
        if get_ident() == self._thread_id:
            self._loop.run_callback(self._call)
        else:
            self._async.send()

    def send_after_io(self) -> None:
        """As `send`, but not before the loop has looked at all sockets again. On the hub's thread."""
        self.is_due = True
        self._async.send()

    def close(self) -> None:
        """Signals that are sent later do nothing. On the hub's thread."""
        self.is_due = True
        self._async.stop()
        self._async.close()

    def _call(self) -> None:
        self.is_due = False
        self._function()


class Waits(Protocol):
    """`greenlet` is the one that waits; None if none does."""

    greenlet: Any


class HubWaiters:
    """The waiters of one hub. Made on the hub's thread."""

    def __init__(self, hub: Any) -> None:
        self.hub = hub
        self.arrived: deque[Waits] = deque()
        self.signal = HubSignal(hub, self._deliver)
        self._thread_id = get_ident()

    def waiter(self) -> Waiter:
        """For a greenlet of the hub, not the hub itself; on any other thread for that thread."""
        return GreenletWaiter(self) if get_ident() == self._thread_id else ThreadWaiter()

    def wake(self, waits: Waits) -> None:
        """Have the hub switch to the greenlet that waits then. Any thread."""
        self.arrived.append(waits)
        if not self.signal.is_due:
            self.signal.send()

    def close(self) -> None:
        """Wake no greenlet from now on. On the hub's thread."""
        self.signal.close()

    def _deliver(self) -> None:
        """On the hub: switch to each greenlet whose outcome has arrived; it returns here when it waits again."""
        arrived = self.arrived
        try:
            # Not those that arrive meanwhile: sockets have their turn first.
            for _ in range(len(arrived)):
                greenlet = arrived.popleft().greenlet
                if greenlet is not None:
                    greenlet.switch()
        finally:
            if arrived:
                self.signal.send_after_io()


class GreenletWaiter:
    """The greenlet that calls `wait`. Only the hub's thread touches `greenlet`, which is None while nobody waits."""

    __slots__ = ("_waiters", "greenlet", "outcome")

    def __init__(self, waiters: HubWaiters) -> None:
        self._waiters = waiters
        self.greenlet: Any = None
        self.outcome: Any = None

    def settle(self, outcome: object) -> None:
        self.outcome = outcome
        waiters = self._waiters
        waiters.arrived.append(self)
        if not waiters.signal.is_due:
            waiters.signal.send()

    def wait(self, timeout_s: float | None = None) -> Any:
        hub = self._waiters.hub
        self.greenlet = getcurrent()
        try:
            if timeout_s is None:
                while self.outcome is None:
                    hub.switch()
            else:
                self._wait_until(hub, timeout_s)
        finally:
            # An outcome that arrives later must not wake a greenlet that has gone on to wait for something else.
            self.greenlet = None
        return self.outcome

    def _wait_until(self, hub: Any, timeout_s: float) -> None:
        timer = hub.loop.timer(timeout_s)
        try:
            timer.start(self.greenlet.switch)
            while self.outcome is None and timer.active:
                hub.switch()
        finally:
            timer.stop()
            timer.close()


class GreenletMailbox(Mailbox[T]):
    """The caller is a greenlet of the hub. Items that arrive before it looks wake it once.

    Only the hub's thread touches `greenlet`, which is None while nobody waits.
    """

    __slots__ = ("_is_told", "_waiters", "greenlet", "items")

    def __init__(self, waiters: HubWaiters) -> None:
        self._waiters = waiters
        self._is_told = False
        self.greenlet: Any = None
        self.items: deque[T] = deque()

    def put(self, item: T) -> None:
        self.items.append(item)
        # The caller clears the flag before it looks at the items: it either sees this one or is told of it.
        if not self._is_told:
            self._is_told = True
            self._waiters.wake(self)

    def wait(self, timeout_s: float | None = None) -> bool:
        self._is_told = False
        if self.items:
            return True
        hub = self._waiters.hub
        timer = None
        self.greenlet = getcurrent()
        try:
            if timeout_s is not None:
                timer = hub.loop.timer(timeout_s)
                timer.start(self.greenlet.switch)
            while not self.items and (timer is None or timer.active):
                self._is_told = False
                if self.items:
                    break
                hub.switch()
        finally:
            self.greenlet = None
            if timer is not None:
                timer.stop()
                timer.close()
        return bool(self.items)


# --- the bridge


class HubResponses:
    """Calls the callbacks of a hub's requests there, one after the other. Made on the hub's thread.

    Responses of other threads wake the hub once for all that have arrived until it looks.
    """

    def __init__(self, hub: Any) -> None:
        self._thread_id = get_ident()
        self._arrived: deque[tuple[OnResponse, InferenceResponse]] = deque()
        self._signal = HubSignal(hub, self._deliver)

    def callback(self, on_response: OnResponse) -> OnResponse:
        """A callback for any thread that calls `on_response` on the hub."""
        return partial(self._put, on_response)

    def close(self) -> None:
        """Deliver nothing from now on. On the hub's thread."""
        self._signal.close()

    def _put(self, on_response: OnResponse, response: InferenceResponse) -> None:
        # What another thread has sent before comes first: it may be for the same request.
        if not self._arrived and get_ident() == self._thread_id:
            on_response(response)
            return
        self._arrived.append((on_response, response))
        if not self._signal.is_due:
            self._signal.send()

    def _deliver(self) -> None:
        arrived = self._arrived
        try:
            # Not those that arrive meanwhile: sockets have their turn first.
            for _ in range(len(arrived)):
                on_response, response = arrived.popleft()
                on_response(response)
        finally:
            if arrived:
                self._signal.send_after_io()


class GeventBridge:
    """Belongs to the thread of `hub`: call all methods there, `infer` and `run` in greenlets of that hub.

    `deadlines` are those of the hub. Raises RuntimeError where gevent has patched `threading`.
    """

    def __init__(self, hub: Any, threads: int = 8) -> None:
        """`threads` is the number of calls that `run` makes at the same time."""
        refuse_patched_threading()
        self._waiters = HubWaiters(hub)
        self._submissions = _Submissions(hub)
        self._watch = _ClientWatch(hub)
        self._responses = HubResponses(hub)
        self.deadlines = Deadlines(hub)
        self._threads = ThreadPoolExecutor(threads, thread_name_prefix="trident-blocking")

    def infer(
        self,
        model: ServedModel,
        request: InferenceRequest,
        client_gone: ClientGone | None = None,
        *,
        is_slow: bool = False,
    ) -> InferenceResponse:
        cached_answer = model.cached_answer
        if cached_answer is not None:
            answer = cached_answer(request)
            if answer is not None:
                return answer
        waiting = _WaitingForResponse(self._waiters, client_gone)
        waiting.pending = pending = PendingRequest(request, waiting.respond)
        self._submit(model, pending, is_slow)
        if client_gone is not None:
            self._watch.add(waiting)
        try:
            response: InferenceResponse = waiting.wait()
        finally:
            # No cycle: `pending` refers to `waiting`, and would keep each body until the garbage collector runs.
            waiting.pending = None
            if client_gone is not None:
                self._watch.remove(waiting)
            if waiting.outcome is None:
                pending.cancel()
        return response

    def submit(
        self,
        model: ServedModel,
        request: InferenceRequest,
        on_response: OnResponse,
        *,
        streamed: bool = False,
        is_slow: bool = False,
    ) -> PendingRequest:
        """Submit `request` to `model` together with all others of this iteration of the loop; nobody waits.

        `on_response` is called on the hub's thread for each response, the last time with one that is final, possibly
        before this returns. It must neither wait nor raise. `PendingRequest.cancel` of the result cancels. `streamed`:
        the result is a StreamedRequest, whose `take` the caller calls when a response has left, so that the model is
        held back. `is_slow` is that of `infer`.
        """
        callback = self._responses.callback(on_response)
        pending = StreamedRequest(request, callback) if streamed else PendingRequest(request, callback)
        self._submit(model, pending, is_slow)
        return pending

    def _submit(self, model: ServedModel, pending: PendingRequest, is_slow: bool) -> None:
        try:
            if is_slow:
                self._threads.submit(_submit, model, pending)
            else:
                pending.defer = self._submissions.defer
                self._submissions.put(model, pending)
        except Exception as error:
            pending.fail(error)

    def stream(
        self,
        model: ServedModel,
        request: InferenceRequest,
        client_gone: ClientGone | None = None,
        on_arrival: Callable[[], None] | None = None,
    ) -> ResponseStream:
        is_watched = client_gone is not None
        on_end = self._watch.remove if is_watched else None
        stream = ResponseStream(request, self.mailbox(), client_gone, on_end=on_end, on_arrival=on_arrival)
        pending = StreamedRequest(request, stream.respond)
        stream.begin(pending)
        self._submit(model, pending, False)
        if is_watched:
            self._watch.add(stream)
        return stream

    def mailbox(self) -> Mailbox[Any]:
        return GreenletMailbox(self._waiters)

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

    def give_way(self) -> None:
        # A timer that is due at once. The loop looks at all sockets before it fires, and serves those that are ready
        # before it fires again.
        GreenletWaiter(self._waiters).wait(0.0)

    def _wait(self, future: Future[T]) -> T:
        waiter = GreenletWaiter(self._waiters)
        future.add_done_callback(waiter.settle)
        try:
            waiter.wait()
        finally:
            if waiter.outcome is None:
                future.cancel()
        try:
            return future.result()
        finally:
            # No cycles: `waiter` and the future refer to each other, and an error refers to the frames that it passes
            # and so to the future. They would keep all arguments of the call, perhaps a model of many MB, until the
            # garbage collector runs.
            waiter.outcome = None
            del future

    def close(self) -> None:
        """Stop watching, and end each thread after its current call."""
        self._watch.close()
        self.deadlines.close()
        self._responses.close()
        self._threads.shutdown(cancel_futures=True)
        self._waiters.close()


def _submit(model: ServedModel, pending: PendingRequest) -> None:
    """Submit a request that may have been cancelled meanwhile. On a native thread."""
    if pending.cancelled:
        pending.refuse(RequestCancelled("the client went away"), Origin.CANCELLED)
    else:
        pending.submit_to(model)


def _settle(future: Future[T], function: Callable[[], T]) -> None:
    """Give `future` the outcome of `function`, unless it was cancelled."""
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


class _WaitingForResponse(GreenletWaiter):
    """A greenlet that waits for the response to `pending`, which is None after the wait.

    The client watch sets `since`, the number of its look at which the wait began.
    """

    __slots__ = ("_responses", "client_gone", "pending", "since")
    since: int

    def __init__(self, waiters: HubWaiters, client_gone: ClientGone | None) -> None:
        # Not super().__init__(), which would be one more call for each request.
        self._waiters = waiters
        self.greenlet = None
        self.outcome = None
        self._responses: SingleResponse | None = None
        self.pending: PendingRequest | None = None
        self.client_gone = client_gone

    def is_given_up(self) -> bool:
        """Cancel the request if `client_gone` says so; returns whether it did. On the hub."""
        pending = self.pending
        if pending is None or self.client_gone is None:
            return False
        try:
            if not self.client_gone():
                return False
        except ServerError as error:
            self.settle(InferenceResponse.failed(pending.request, error, Origin.CANCELLED))
            pending.cancel(CancelCause.DEADLINE)
        else:
            pending.cancel()
        return True

    def respond(self, response: InferenceResponse) -> None:
        """Take a response. Any thread, one at a time."""
        if response.final and self._responses is None:
            self.settle(response)
            return
        if self._responses is None:
            self._responses = SingleResponse()
        answer = self._responses.gather(response)
        if answer is not None:
            self.settle(answer)


class _Submissions:
    """Collects requests and submits them together, once per iteration of the hub's loop, or as soon as there are
    `handover` of them.

    A sleeping instance is woken by the first request and finds all the others. If each request were submitted at once,
    it would wake the instance for a batch of one (mean batch at 16 connections: 2.1 that way, 9 this way).
    """

    def __init__(self, hub: Any) -> None:
        self._loop = hub.loop
        self._waiting: list[tuple[ServedModel, PendingRequest]] = []
        self._deferred = Deferred()
        self.defer = self._deferred.add

    def put(self, model: ServedModel, pending: PendingRequest) -> None:
        if not self._waiting:
            self._loop.run_callback(self._submit_all)
        self._waiting.append((model, pending))
        if len(self._waiting) == model.handover:
            self._submit_all()

    def _submit_all(self) -> None:
        waiting, self._waiting = self._waiting, []
        for model, pending in waiting:
            pending.submit_to(model)
        self._deferred.run()


class _Watched(Protocol):
    """Must be hashable. `since` is the number of the watch's last check before the wait began."""

    since: int

    def is_given_up(self) -> bool:
        """Cancel the request if its client has gone; returns whether it has. On the hub."""


class _ClientWatch:
    """Cancels requests whose client has disconnected or must not wait any longer.

    One timer serves all requests, and runs only while some wait. A request is looked at after it has waited for a full
    period, so that a short one costs an entry in a dict and no look.
    """

    def __init__(self, hub: Any) -> None:
        self._waiting: dict[_Watched, None] = {}
        self._looks = 0
        self._running = False
        self._timer = hub.loop.timer(LOOK_SECONDS, LOOK_SECONDS)

    def add(self, waiting: _Watched) -> None:
        waiting.since = self._looks
        self._waiting[waiting] = None
        if not self._running:
            self._running = True
            self._timer.start(self._look)

    def remove(self, waiting: _Watched) -> None:
        self._waiting.pop(waiting, None)

    def _look(self) -> None:
        self._looks += 1
        if not self._waiting:
            self._running = False
            self._timer.stop()
            return
        for waiting in list(self._waiting):
            if self._looks - waiting.since < 2:
                # The dict is in the order of arrival: all others are younger.
                return
            if waiting.is_given_up():
                del self._waiting[waiting]

    def close(self) -> None:
        self._timer.stop()
        self._timer.close()
