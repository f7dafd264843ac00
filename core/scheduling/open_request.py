"""A request that is answered through a sender: open until its final response was delivered."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING

from core.errors import ServerError
from core.inference.flushing import flush
from core.inference.pending_request import PendingRequest
from core.inference.request import Parameter
from core.inference.response import InferenceResponse, Outputs
from core.inference.response_window import ResponseWindow
from core.inference.streamed_request import StreamedRequest
from core.inference.times import InferenceTimes
from core.observability.response_statistics import ResponseKind

if TYPE_CHECKING:
    from core.scheduling.open_requests import OpenRequests


class OpenRequest:
    """Any thread may call any method. Responses are delivered in their order, one at a time, on the thread of one of
    their senders. No lock is held during a callback.

    `start_ns` and `input_end_ns` are monotonic: when its execution began and when its inputs were gathered, which is
    known after the execution; `first_ns` is when the first response was sent, 0 before. `error` is that of the last
    response that was not empty. `losses` is that of its instance when it was executed first.
    """

    __slots__ = (
        "_delivering",
        "_index",
        "_is_closed",
        "_last_ns",
        "_lock",
        "_requests",
        "_waiting",
        "_watchers",
        "_window",
        "error",
        "first_ns",
        "input_end_ns",
        "losses",
        "pending",
        "start_ns",
    )

    def __init__(self, pending: PendingRequest, start_ns: int, requests: OpenRequests) -> None:
        self.pending = pending
        self.start_ns = self.input_end_ns = start_ns
        self.first_ns = 0
        self.error: ServerError | None = None
        self.losses = requests.losses
        self._requests = requests
        self._lock = threading.Lock()
        self._is_closed = False
        # The number of responses that a sender has sent, and when it sent the last one.
        self._index = 0
        self._last_ns = start_ns
        self._delivering = False
        self._waiting: list[InferenceResponse] = []
        self._watchers: tuple[Callable[[], None], ...] = ()
        self._window: ResponseWindow | None = None
        if isinstance(pending, StreamedRequest):
            self._window = ResponseWindow(requests.window)
            pending.on_take = self._take

    @property
    def is_closed(self) -> bool:
        """Whether its final response was sent; it may not be delivered yet."""
        return self._is_closed

    @property
    def is_cancelled(self) -> bool:
        return self.pending.cancelled is not None

    @property
    def is_full(self) -> bool:
        window = self._window
        return window is not None and window.is_full and not self.pending.cancelled

    def claim(self) -> bool:
        """Close it for senders; the caller then passes its final response to `answer`. False if it was closed."""
        with self._lock:
            was_closed, self._is_closed = self._is_closed, True
        if was_closed:
            self._requests.note_late()
        return not was_closed

    def answer(self, response: InferenceResponse) -> None:
        """Deliver the final response to a request that the caller has claimed, after those that were sent before."""
        if not (self._delivering or self._waiting):
            # It is closed, so nobody else delivers from now on. Most requests of a model that answers once end here.
            self._end()
            self._requests.deliver(self.pending, response)
            return
        with self._lock:
            if self._put(response):
                return
        self._deliver()

    def send(
        self,
        outputs: Outputs | None,
        final: bool = False,
        error: ServerError | None = None,
        parameters: dict[str, Parameter] | None = None,
    ) -> None:
        """See ResponseSender."""
        requests, pending = self._requests, self.pending
        response = requests.response(pending, outputs, final, error, parameters)
        now_ns = requests.clock()
        with self._lock:
            is_late = self._is_closed
            if not is_late:
                is_unwanted = pending.cancelled is not None and not final
                kind = _kind(outputs, error, is_unwanted)
                requests.count_response(self._index, kind, now_ns - self._last_ns)
                if not self._index:
                    self.first_ns = now_ns
                self._index += 1
                self._last_ns = now_ns
                if outputs is not None or error is not None:
                    self.error = error
                if final:
                    self._is_closed = True
                    requests.count(self, now_ns)
                    if pending.request.trace is not None and error is None:
                        response.times = self._times(now_ns)
                elif is_unwanted:
                    return
                if self._put(response):
                    return
        if is_late:
            requests.note_late()
            return
        self._deliver()
        if pending.flush is not None:
            flush((pending.flush,))

    def pause(self) -> bool:
        """Its sender is over, and the next one comes when it is executed again.

        False if that must wait, because the client has taken too little: then `OpenRequests.resume` is called when it
        has, or when the request is cancelled.
        """
        pending, requests = self.pending, self._requests
        with self._lock:
            self._watchers = ()
            pending.on_cancel = None
            window = self._window
            if window is None or not window.is_full:
                return True
            self._watchers = (partial(requests.resume, self),)
        pending.on_cancel = self._on_cancel
        return False

    def watch(self, callback: Callable[[], None]) -> None:
        """See ResponseSender."""
        pending = self.pending
        with self._lock:
            if self._is_closed:
                return
            self._watchers += (callback,)
        # A cancellation that comes in between is seen by the caller or by the next line.
        pending.on_cancel = self._on_cancel
        if pending.cancelled:
            callback()

    def _put(self, response: InferenceResponse) -> bool:
        """Queue `response` for delivery. Returns whether another thread delivers it. Under the lock."""
        if self._window is not None:
            self._window.put(response)
        self._waiting.append(response)
        was_delivering, self._delivering = self._delivering, True
        return was_delivering

    def _times(self, now_ns: int) -> InferenceTimes:
        """The times of a traced request, as the statistics count them. An ensemble's step has no others."""
        pending, first_ns = self.pending, self.first_ns or now_ns
        return InferenceTimes(
            self.start_ns - pending.enqueue_ns,
            self.input_end_ns - self.start_ns,
            first_ns - self.input_end_ns,
            now_ns - first_ns,
            pending.batch_size or 1,
        )

    def _deliver(self) -> None:
        """Deliver what waits, until nothing does."""
        lock, pending, requests = self._lock, self.pending, self._requests
        while True:
            with lock:
                waiting = self._waiting
                if not waiting:
                    self._delivering = False
                    return
                self._waiting = []
            for response in waiting:
                if response.final:
                    self._end()
                requests.deliver(pending, response)

    def _end(self) -> None:
        """Nothing changes any more that a sender could watch. Breaks the cycles with the request."""
        pending = self.pending
        if self._watchers:
            self._watchers = ()
            pending.on_cancel = None
        if self._window is not None and isinstance(pending, StreamedRequest):
            pending.on_take = None

    def _on_cancel(self, pending: PendingRequest) -> None:
        for callback in self._watchers:
            callback()

    def _take(self, request: StreamedRequest, count: int) -> None:
        with self._lock:
            window = self._window
            if window is None:
                return
            was_full = window.is_full
            window.take(count)
            has_room = was_full and not window.is_full
        if has_room:
            for callback in self._watchers:
                callback()


def _kind(outputs: Outputs | None, error: ServerError | None, is_unwanted: bool) -> ResponseKind:
    if is_unwanted:
        return ResponseKind.CANCELLED
    if error is not None:
        return ResponseKind.FAIL
    return ResponseKind.EMPTY if outputs is None else ResponseKind.SUCCESS
