"""The bridge between greenlets that wait and native threads that answer.

Source: docs/architecture.md section 3 points 2 and 3.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future, ThreadPoolExecutor
from functools import partial
from threading import get_ident
from typing import Any, Final, Protocol, TypeVar

from greenlet import getcurrent

from trident.core.borders import expected
from trident.core.engine.protocol import ServedModel
from trident.core.errors import RequestCancelled
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
from trident.core.waiting import Deadlines, Mailbox, ThreadMailbox

_log = logging.getLogger("trident.borders")

T = TypeVar("T")


# --- calls from other threads to a hub


# So many rounds take a request through one iteration: submission, answer, resumed greenlet, and sending.
_ROUNDS: Final = 4

Call = Callable[[], object]


class Inbox:
    """Calls for the thread of a hub, in the order in which they were put. Create it on that thread.

    Other threads wake the hub once for all calls that they put until it looks. An exception of a call is logged, and
    the next calls are made.
    """

    __slots__ = ("_async", "_calls", "_is_closed", "_is_due", "_thread_id", "hub")

    def __init__(self, hub: Any) -> None:
        self.hub = hub
        self._calls: deque[Call] = deque()
        # Cleared before the last look at the calls: a thread that finds it set has put its call before that look.
        self._is_due = False
        self._is_closed = False
        self._thread_id = get_ident()
        self._async = hub.loop.async_()
        self._async.start(self._make_calls)

    @property
    def is_here(self) -> bool:
        """True on the hub's thread while no call waits: what must follow them can be done at once."""
        return not self._calls and get_ident() == self._thread_id

    def put(self, call: Call) -> None:
        """Have `call` made soon: in this iteration of the loop, if it is put on the hub's thread. Any thread."""
        self._calls.append(call)
        if self._is_due:
            return
        self._is_due = True
        if get_ident() == self._thread_id:
            self.hub.loop.run_callback(self._make_calls)
        else:
            self._async.send()

    def close(self) -> None:
        """Make no call from now on. On the hub's thread."""
        self._is_closed = self._is_due = True
        self._calls.clear()
        self._async.stop()
        self._async.close()

    def _make_calls(self) -> None:
        if self._is_closed:
            return
        calls = self._calls
        rounds = 0
        while calls and rounds < _ROUNDS:
            rounds += 1
            for _ in range(len(calls)):
                call = calls.popleft()
                try:
                    call()
                except Exception:
                    _log.exception("a call on the hub failed unexpectedly")
        if self._is_closed:
            return
        self._is_due = False
        if calls and not self._is_due:  # sockets come first
            self._is_due = True
            self._async.send()


class GreenletMailbox(Mailbox[T]):
    """The caller is a greenlet of the inbox's hub. Items that arrive before it looks wake it once.

    Only the hub's thread touches `_greenlet`, which is None while none waits.
    """

    __slots__ = ("_greenlet", "_inbox", "_is_told", "_items")

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._greenlet: Any = None
        self._items: deque[T] = deque()
        # The caller clears it before it looks at the items: it sees an item, or is told of it.
        self._is_told = True

    def put(self, item: T) -> None:
        self._items.append(item)
        if not self._is_told:
            self._is_told = True
            self._inbox.put(self._wake)

    def take(self) -> T | None:
        return self._items.popleft() if self._items else None

    def get(self, timeout_s: float | None = None) -> T | None:
        items = self._items
        if items:
            return items.popleft()
        hub = self._inbox.hub
        timer = None
        self._greenlet = getcurrent()
        try:
            if timeout_s is not None:
                timer = hub.loop.timer(timeout_s)
                timer.start(self._greenlet.switch)
            self._is_told = False
            while not items and (timer is None or timer.active):
                hub.switch()
                self._is_told = False
        finally:
            # An item that arrives later must not wake a greenlet that has gone on to wait for something else.
            self._greenlet = None
            self._is_told = True
            if timer is not None:
                timer.stop()
                timer.close()
        return items.popleft() if items else None

    def _wake(self) -> None:
        if self._greenlet is not None:
            self._greenlet.switch()


# The inbox of the hub of a thread that has one.
_of_thread = threading.local()


def mailbox_here() -> Mailbox[Any]:
    """A mailbox for the caller: a greenlet of a hub that has a bridge, or a native thread."""
    inbox = getattr(_of_thread, "inbox", None)
    return ThreadMailbox() if inbox is None else GreenletMailbox(inbox)


# --- the bridge


class GeventBridge:
    """Belongs to the thread of `hub`: call all methods there, `infer` and `run` in greenlets of that hub.

    `deadlines` are those of the hub. Raises RuntimeError where gevent has patched `threading`.
    """

    def __init__(self, hub: Any, threads: int = 8) -> None:
        """`threads` is the number of calls that `run` makes at the same time."""
        refuse_patched_threading()
        self.inbox = _of_thread.inbox = Inbox(hub)
        self._submissions = _Submissions(self.inbox)
        self._watch = _ClientWatch(hub)
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
        waiting = _ResponseMailbox(self.inbox, client_gone)
        waiting.pending = pending = PendingRequest(request, waiting.respond)
        self._submit(model, pending, is_slow)
        if client_gone is not None:
            self._watch.add(waiting)
        is_answered = False
        try:
            while (response := waiting.get()) is None:
                pass
            is_answered = True
        finally:
            # No cycle: `pending` refers to `waiting`, and would keep each body until the garbage collector runs.
            waiting.pending = None
            if client_gone is not None:
                self._watch.remove(waiting)
            if not is_answered:
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
        """Submit `request` to `model` together with all others of this iteration of the loop, without waiting.

        `on_response` is called on the hub's thread for each response, the last time with one that is final, possibly
        before this returns. It must not wait. `PendingRequest.cancel` of the result cancels. `streamed`:
        the result is a StreamedRequest, whose `take` the caller calls when a response has left, so that the model is
        held back. `is_slow` is that of `infer`.
        """
        callback = partial(self._respond, on_response)
        pending = StreamedRequest(request, callback) if streamed else PendingRequest(request, callback)
        self._submit(model, pending, is_slow)
        return pending

    def _respond(self, on_response: OnResponse, response: InferenceResponse) -> None:
        """Pass on a response to the hub, after those that came before: they may be to the same request. Any thread."""
        if self.inbox.is_here:
            on_response(response)
        else:
            self.inbox.put(partial(on_response, response))

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
        return GreenletMailbox(self.inbox)

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

    def let_others_run(self) -> None:
        # A timer that is due at once. The loop looks at all sockets before it fires, and serves those that are ready
        # before it fires again.
        self.mailbox().get(0.0)

    def _wait(self, future: Future[T]) -> T:
        mailbox = self.mailbox()
        future.add_done_callback(mailbox.put)
        is_done = False
        try:
            while mailbox.get() is None:
                pass
            is_done = True
        finally:
            if not is_done:
                future.cancel()
        try:
            return future.result()
        finally:
            # No cycle: an error refers to the frames that it passes and so to the future, which would keep all
            # arguments of the call, perhaps a model of many MB, until the garbage collector runs.
            del future

    def close(self) -> None:
        """Stop watching, and end each thread after its current call."""
        self._watch.close()
        self.deadlines.close()
        self._threads.shutdown(cancel_futures=True)
        self.inbox.close()


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


class _ResponseMailbox(GreenletMailbox[InferenceResponse]):
    """Receives the one response to `pending`, which is None after the wait.

    The client watch sets `since`, the number of its check at which the wait began.
    """

    __slots__ = ("_responses", "client_gone", "pending", "since")
    since: int

    def __init__(self, inbox: Inbox, client_gone: ClientGone | None) -> None:
        # Not super().__init__(), which would be one more call for each request.
        self._inbox = inbox
        self._greenlet = None
        self._items = deque()
        self._is_told = True
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
        except Exception as error:
            failure = expected(error, "asking for the client of a request")
            self.put(InferenceResponse.failed(pending.request, failure, Origin.CANCELLED))
            pending.cancel(CancelCause.DEADLINE)
        else:
            pending.cancel()
        return True

    def respond(self, response: InferenceResponse) -> None:
        """Take a response. Any thread, one at a time."""
        if response.final and self._responses is None:
            self.put(response)
            return
        if self._responses is None:
            self._responses = SingleResponse()
        answer = self._responses.gather(response)
        if answer is not None:
            self.put(answer)


class _Submissions:
    """Collects requests and submits them together, once per iteration of the hub's loop.

    A sleeping instance is woken by the first request and finds all the others. If each request were submitted at once,
    it would wake the instance for a batch of one (mean batch at 16 connections: 2.1 that way, 9 this way).
    """

    def __init__(self, inbox: Inbox) -> None:
        self._inbox = inbox
        self._waiting: list[tuple[ServedModel, PendingRequest]] = []
        self._deferred = Deferred()
        self.defer = self._deferred.add

    def put(self, model: ServedModel, pending: PendingRequest) -> None:
        if not self._waiting:
            self._inbox.put(self._submit_all)
        self._waiting.append((model, pending))

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
