"""The open requests of one model instance that answers through senders."""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Sequence
from contextlib import suppress
from functools import partial
from queue import SimpleQueue
from typing import Final

from trident.core.borders import expected, guarded
from trident.core.errors import BackendFailed, InvalidRequest, ServerError
from trident.core.inference.pending_request import PendingRequest, ResponseWindow, StreamedRequest, flush
from trident.core.inference.request import InferenceTimes, Parameter
from trident.core.inference.response import InferenceResponse, Origin, Outputs
from trident.core.observability.statistics import ResponseKind
from trident.core.scheduling.context import Respond, SchedulingContext
from trident.core.scheduling.queue import InFlight, Rejection, flush_callers, reason_of, reject

_WATCHER: Final = "telling a response sender of its client"


class RequestSender:
    """Implements ResponseSender. Only the backend instance refers to it, so that the request learns of its end."""

    __slots__ = ("_dropped", "_is_over", "_request")

    def __init__(self, request: OpenRequest, dropped: DroppedSenders) -> None:
        self._request = request
        self._dropped = dropped
        self._is_over = False

    def __del__(self) -> None:
        if not (self._is_over or self._request.is_closed):
            self._dropped.put(self._request)

    def end(self) -> None:
        """Send nothing any more: the request is executed again, with another sender."""
        self._is_over = True

    @property
    def is_cancelled(self) -> bool:
        return self._request.is_cancelled

    @property
    def is_full(self) -> bool:
        return self._request.is_full

    def send(
        self,
        outputs: Outputs | None,
        *,
        final: bool = False,
        error: ServerError | None = None,
        parameters: dict[str, Parameter] | None = None,
    ) -> None:
        if not self._is_over:
            self._request.send(outputs, final, error, parameters)

    def watch(self, callback: Callable[[], None]) -> None:
        self._request.watch(callback)


class DroppedSenders:
    """Answers them with an error, on a thread of its own.

    The garbage collector may end a sender at any allocation, while its thread holds any lock. So nothing may be done
    there but `put`, which a `SimpleQueue` allows.
    """

    def __init__(self, model: str) -> None:
        self._model = model
        self._dropped: SimpleQueue[OpenRequest | None] = SimpleQueue()
        self._own_thread = threading.Thread(target=self._answer, name=f"trident-{model}-dropped", daemon=True)

    def start(self) -> None:
        self._own_thread.start()

    def put(self, request: OpenRequest) -> None:
        """Fail `request`. Any thread, at any moment."""
        self._dropped.put(request)

    def close(self, timeout_s: float | None) -> bool:
        """Answer those that were put before, and end the thread. Returns whether it ended."""
        self._dropped.put(None)
        if self._own_thread.ident is not None:
            self._own_thread.join(timeout_s)
        return not self._own_thread.is_alive()

    def _answer(self) -> None:
        while (request := self._dropped.get()) is not None:
            guarded(partial(self._fail, request), "ending a request whose sender was dropped")
            del request  # nothing keeps the last one alive

    def _fail(self, request: OpenRequest) -> None:
        reason = "the model dropped its response sender before the final response"
        error = BackendFailed(reason, model=self._model, hint="send the final flag with the last response")
        request.send(None, final=True, error=error)


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
        "_last_ns",
        "_lock",
        "_requests",
        "_waiting",
        "_watchers",
        "_window",
        "error",
        "first_ns",
        "input_end_ns",
        "is_closed",
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
        # True if its final response was sent; it may not be delivered yet.
        self.is_closed = False
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
    def is_cancelled(self) -> bool:
        return self.pending.cancelled is not None

    @property
    def is_full(self) -> bool:
        window = self._window
        return window is not None and window.is_full and not self.pending.cancelled

    def close(self) -> bool:
        """Close it for senders; the caller then passes its final response to `answer`. False if it was closed."""
        with self._lock:
            was_closed, self.is_closed = self.is_closed, True
        if was_closed:
            self._requests.note_late()
        return not was_closed

    def answer(self, response: InferenceResponse) -> None:
        """Deliver the final response to a request that the caller has closed, after those that were sent before."""
        if not (self._delivering or self._waiting):
            # Closed: no other thread delivers from now on. Most requests of a model that answers once end here.
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
        requests, pending = self._requests, self.pending
        response = InferenceResponse(
            requests.name,
            requests.version,
            [] if outputs is None or error is not None else outputs,
            id=pending.request.id,
            parameters=parameters,
            error=error,
            final=final,
            is_end=outputs is None and error is None,
        )
        if error is not None:
            response.origin = pending.origin_of(error)
        now_ns = requests.clock()
        with self._lock:
            is_late = self.is_closed
            if not is_late:
                is_unwanted = pending.cancelled is not None and not final
                index, before_ns = self._index, self._last_ns
                if not index:
                    self.first_ns = now_ns
                self._index += 1
                self._last_ns = now_ns
                if outputs is not None or error is not None:
                    self.error = error
                if final:
                    self.is_closed = True
                try:
                    kind = _kind(outputs, error, is_unwanted)
                    requests.statistics.record_response(index, kind, now_ns - before_ns)
                    if final:
                        requests.count(self, now_ns)
                except Exception:
                    _log.exception("counting a response of model '%s' failed unexpectedly", requests.name)
                if is_unwanted:
                    return
                if final and pending.request.trace is not None and error is None:
                    response.times = self._times(now_ns)
                if self._put(response):
                    return
        if is_late:
            requests.note_late()
            return
        self._deliver()
        if pending.flush is not None:
            flush((pending.flush,))

    def pause(self) -> bool:
        """End the use of its sender; the next execution has another one.

        Returns False if the next execution must wait because the client has taken too few responses: then
        `OpenRequests.resume` is called when it has taken more, or when the request is cancelled.
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
        pending = self.pending
        with self._lock:
            if self.is_closed:
                return
            self._watchers += (callback,)
        # A cancellation that comes in between is seen by the caller or by the next line.
        pending.on_cancel = self._on_cancel
        if pending.cancelled:
            guarded(callback, _WATCHER)

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
            guarded(callback, _WATCHER)

    def _take(self, request: StreamedRequest, count: int) -> None:
        with self._lock:
            window = self._window
            if window is None:
                return
            was_full = window.is_full
            window.take(count)
            has_space = was_full and not window.is_full
        if has_space:
            for callback in self._watchers:
                guarded(callback, _WATCHER)


def _kind(outputs: Outputs | None, error: ServerError | None, is_unwanted: bool) -> ResponseKind:
    if is_unwanted:
        return ResponseKind.CANCELLED
    if error is not None:
        return ResponseKind.FAIL
    return ResponseKind.EMPTY if outputs is None else ResponseKind.SUCCESS


# Queues a request that its model gave back to be executed again. Raises a ServerError if that cannot be.
Again = Callable[[PendingRequest], None]


def refuse_again(pending: PendingRequest) -> None:
    """Of a model without iterative sequences. Raises InvalidRequest, with Triton's text."""
    raise InvalidRequest(
        "Request is released with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE, while the model is not configured to handle "
        "such a flag.",
        hint="add sequence_batching { iterative_sequence: true } to config.pbtxt",
        model=pending.request.model_name,
    )


_log = logging.getLogger("trident.scheduling")


class OpenRequests:
    """Opens requests, delivers their responses, and counts those that sent their final response. Any thread.

    `size` is guarded by the scheduler's lock. It counts a request from when the instance takes it until its final
    response was delivered.
    """

    def __init__(self, context: SchedulingContext, in_flight: InFlight, again: Again, dropped: DroppedSenders) -> None:
        self.size = 0
        self.window = context.window
        self.name = context.spec.name
        self.version = context.spec.version
        self.statistics = context.statistics
        self.clock = context.clock
        self._context = context
        self._in_flight = in_flight
        self._has_noted_late = False
        self._again = again
        self._dropped = dropped
        # How often the instance has lost the state of its requests.
        self.losses = 0
        # Those to be executed again, by their pending requests, and those of them whose client must take more first.
        self._given_back: dict[PendingRequest, OpenRequest] = {}
        self._paused: dict[OpenRequest, None] = {}
        self._is_closing = False

    def open(self, batch: Sequence[PendingRequest], now_ns: int) -> list[OpenRequest]:
        if not self._given_back:
            return [OpenRequest(pending, now_ns, self) for pending in batch]
        return [
            self._given_back.pop(pending) if pending in self._given_back else OpenRequest(pending, now_ns, self)
            for pending in batch
        ]

    def sender(self, request: OpenRequest) -> RequestSender:
        return RequestSender(request, self._dropped)

    def give_back(self, request: OpenRequest) -> None:
        """Execute `request` again once its client has taken enough of its responses."""
        if request.is_closed:  # the model ended it nevertheless
            return
        self._given_back[request.pending] = request
        self._paused[request] = None
        if request.pause() or request.is_cancelled or self._is_closing:
            self.resume(request)

    def resume(self, request: OpenRequest) -> None:
        """Queue a paused request to be executed again. Any thread; more than one may try."""
        try:
            del self._paused[request]
        except KeyError:
            return
        pending = request.pending
        rejection: Rejection | None = None
        if pending.cancelled:
            rejection = Rejection.of_cancelled(pending)
        elif request.losses != self.losses:
            rejection = self._lost(pending)
        else:
            try:
                self._again(pending)
            except Exception as error:
                subject = f"a request that model '{self.name}' gave back"
                rejection = Rejection(pending, expected(error, subject), Origin.FAILED)
        if rejection is None:
            self._note_closed(1)
        else:
            reject(rejection, self._context, self._end)

    def resume_all(self) -> None:
        """Let no request wait for its client any more."""
        self._is_closing = True
        for request in list(self._paused):
            self.resume(request)

    def lose(self) -> list[Rejection]:
        """Note that the instance has lost its state: rescheduled requests are not executed again.

        Returns those that may be queued for it, to be rejected if they are; the others are answered.
        """
        self.losses += 1
        for request in list(self._paused):
            self.resume(request)
        return [self._lost(pending) for pending in list(self._given_back)]

    def _lost(self, pending: PendingRequest) -> Rejection:
        error = BackendFailed(
            f"the process of model '{self.name}' ended between two iterations of the request, and with it what the "
            "model knew of the request",
            hint="send the request again",
            model=self.name,
        )
        return Rejection(pending, error, Origin.FAILED)

    def has(self, pending: PendingRequest) -> bool:
        """Return whether `pending` was executed, and is to be executed again."""
        return pending in self._given_back

    def respond_unexecuted(self, pending: PendingRequest, response: InferenceResponse) -> None:
        """Answer a request that left the queue without being executed, or without being executed again."""
        if self.has(pending):
            self._note_closed(-1)
            self._end(pending, response)
        else:
            self._context.refuse(pending, response)

    def _note_closed(self, count: int) -> None:
        """Note that `count` more are done; -1 for one that is open again. Not under the lock."""
        with self._in_flight.changed:
            self.size -= count
            self._in_flight.end(count)

    def drain(self) -> None:
        """Release the lock and block until none is open."""
        self._in_flight.wait_until(lambda: not self.size)

    def _end(self, pending: PendingRequest, response: InferenceResponse) -> None:
        request = self._given_back.pop(pending)
        if request.close():
            request.answer(response)

    def count(self, request: OpenRequest, now_ns: int) -> None:
        """Count a request whose final response was sent by a sender. Its last response that says something decides."""
        error = request.error
        if error is None:
            self.statistics.record_request(
                request.pending, request.start_ns, request.input_end_ns, request.first_ns or now_ns, now_ns
            )
        else:
            self.statistics.record_failure(
                request.pending, reason_of(request.pending.origin_of(error)), now_ns, error.message
            )

    def deliver(self, pending: PendingRequest, response: InferenceResponse) -> None:
        """Give `response` to the caller. After the final one the request is no longer open."""
        self._context.respond(pending, response)
        if response.final:
            self._note_closed(1)

    def note_late(self) -> None:
        """Log, once, that a response was dropped because it was sent after the final one."""
        if not self._has_noted_late:
            self._has_noted_late = True
            _log.warning(
                "model '%s' answered a request again after its final response; such responses are dropped", self.name
            )


class ResponseOrder:
    """Holds responses back until the final ones of all earlier requests are delivered. Thread-safe.

    Triton documents this but orders by completion. A request that leaves the queue without being executed is told so at
    once, as there. Responses are delivered one at a time, on the thread that completed the earliest request or on one
    that already delivers. No lock is held during a callback, so it may submit another request.
    Source: docs/spec/schedulers.md section 3.2, "Order of responses".
    """

    def __init__(self, deliver: Respond) -> None:
        self._deliver = deliver
        self._lock = threading.Lock()
        self._arrived: deque[PendingRequest] = deque()
        self._answered: dict[PendingRequest, list[InferenceResponse]] = {}
        self._delivering = False

    def enter(self, pending: PendingRequest) -> None:
        """Note that `pending` arrived after all requests noted before."""
        with self._lock:
            self._arrived.append(pending)

    def respond(self, pending: PendingRequest, response: InferenceResponse) -> None:
        """Deliver a response to `pending` in order: now, or later on another thread."""
        with self._lock:
            self._answered.setdefault(pending, []).append(response)
        self._go_on()

    def refuse(self, pending: PendingRequest, response: InferenceResponse) -> None:
        """Deliver the only response to `pending` now; the others no longer wait for it. It may not have entered."""
        with self._lock, suppress(ValueError):
            self._arrived.remove(pending)
        self._deliver(pending, response)
        self._go_on()

    def _go_on(self) -> None:
        """Deliver due responses, unless another thread does."""
        with self._lock:
            if self._delivering:
                return
            self._delivering = True
        delivered: list[PendingRequest] = []
        while (turn := self._next()) is not None:
            first, answers = turn
            for answer in answers:
                self._deliver(first, answer)
            delivered.append(first)
        # The caller flushes the batch that it executed. The requests delivered here may belong to other batches.
        flush_callers(delivered)

    def _next(self) -> tuple[PendingRequest, list[InferenceResponse]] | None:
        """The earliest request that is not done, with its responses; None if it has none, which ends the delivery."""
        with self._lock:
            if not self._arrived or self._arrived[0] not in self._answered:
                self._delivering = False
                return None
            first = self._arrived[0]
            answers = self._answered.pop(first)
            if answers[-1].final:
                self._arrived.popleft()
            return first, answers
