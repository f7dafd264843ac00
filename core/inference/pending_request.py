"""A request inside the engine, and responses that are sent later, more than once, or from any thread.

Source: docs/spec/schedulers.md section 3.8, docs/spec/python-backend.md section 4.3 ("InferenceResponseSender").
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterable
from enum import Enum
from functools import partial
from types import TracebackType
from typing import Final, Protocol

import numpy as np

from trident.core.borders import expected, guarded
from trident.core.errors import ErrorCode, ServerError
from trident.core.inference.request import InferenceRequest, Parameter
from trident.core.inference.response import (
    InferenceResponse,
    OnResponse,
    Origin,
    Outputs,
    OutputTensor,
    PackedOutputs,
)
from trident.core.options import WindowLimits

_log = logging.getLogger("trident.scheduling")


class CancelCause(Enum):
    """The value is the label of the metric of cancelled requests."""

    CLIENT = "client"
    """The caller went away, or cancelled its call."""

    DEADLINE = "deadline"
    """The caller's own deadline has passed: `grpc-timeout`, or the time that Vertex AI gives a request."""

    QUEUE_TIMEOUT = "queue_timeout"
    """It waited longer in a queue than the queue policy of its model, or its `timeout`, allows."""

    SERVER = "server"
    """The server itself asked and no longer needs the answer: the load that tried a model was ended, or the process of
    the model that asked."""

    @property
    def number(self) -> int:
        return _NUMBERS[self]

    @classmethod
    def of_number(cls, number: int) -> CancelCause:
        return _BY_NUMBER.get(number, cls.CLIENT)


_BY_NUMBER = dict(enumerate(CancelCause))
_NUMBERS = {cause: number for number, cause in _BY_NUMBER.items()}


class Submits(Protocol):
    """Runs requests, such as a model version."""

    @property
    def submit(self) -> Callable[[PendingRequest], None]:
        """Takes a request, whose `on_response` it calls on any thread, perhaps before it returns."""
        ...


class PendingRequest:
    """A request, the callback for its responses, and the engine's state of it.

    The caller makes it and passes it to `ServedModel.submit`. The engine owns `request` from `submit` to the final
    response. It never leaves its process.

    `on_response` may be called on any thread and as often as the model answers, the last time with `final` set.
    `defer` schedules calls that the submitting thread makes once it has submitted everything; None if it makes none.
    `flush` sends the responses that the caller has collected; called after those of a whole batch were delivered.
    `is_alone`: its thread submits nothing else before it has the answer, and holds no lock.
    `is_nested`: a model makes the request while it executes another one, so it is accepted even while the server stops.
    `wants_times`: its responses carry their times, whatever the options of the server say. `is_logged`: the payload log
    has seen it.
    """

    is_nested = False
    is_alone = False

    __slots__ = (
        "batch_key",
        "batch_size",
        "callbacks",
        "cancelled",
        "defer",
        "enqueue_ns",
        "expires_ns",
        "flush",
        "is_logged",
        "last",
        "number",
        "on_cancel",
        "request",
        "start_ns",
        "wants_times",
    )

    def __init__(
        self,
        request: InferenceRequest,
        on_response: OnResponse,
        *,
        defer: Defer | None = None,
        flush: Callable[[], None] | None = None,
    ) -> None:
        self.request = request
        # `on_response`, or empty while a response is delivered and after the final one. One C call pops it, so only one
        # of several answering threads gets it.
        self.callbacks = [on_response]
        # A final response that arrived while another one was being delivered.
        self.last: InferenceResponse | None = None
        self.defer = defer
        self.flush = flush
        # Set by `cancel`. A queued request that carries it is removed from the queue unexecuted.
        self.cancelled: CancelCause | None = None
        # Also called by `cancel`; None if not set. Set by an engine that does not look at `cancelled`.
        self.on_cancel: Callable[[PendingRequest], None] | None = None
        # Items, and a value that must be equal within a batch (None: no condition). Validation finds both.
        self.batch_size = 1
        self.batch_key: tuple[object, ...] | None = None
        # Monotonic nanoseconds; 0 where not set yet. A request without `expires_ns` does not expire.
        self.start_ns = 0
        self.enqueue_ns = 0
        self.expires_ns = 0
        # The number of the request between a front end and an engine in two processes.
        self.number = 0
        self.wants_times = False
        self.is_logged = False

    def submit_to(self, model: Submits) -> None:
        """Pass the request to `model`. Never raises: an exception becomes the answer."""
        try:
            model.submit(self)
        except Exception as error:
            self.fail(error)

    @property
    def on_response(self) -> OnResponse:
        """Called with each response. Set it before passing the request to anything that may answer it."""
        try:
            return self.callbacks[0]
        except IndexError:
            return drop

    @on_response.setter
    def on_response(self, on_response: OnResponse) -> None:
        self.callbacks[:] = (on_response,)

    def refuse(self, error: ServerError, origin: Origin = Origin.REFUSED) -> None:
        """Answer the request with an error instead of running it, and flush. Any thread."""
        deliver(self, self.refusal(error, origin))
        if self.flush is not None:
            flush((self.flush,))

    def fail(self, error: Exception, origin: Origin = Origin.REFUSED) -> None:
        """Answer the request with an error that arose outside of its execution, of any class. Any thread.

        The part that raised may already have answered the request or passed it on: later answers are dropped.
        """
        self.refuse(expected(error, f"a request for model '{self.request.model_name}'"), origin)

    def refusal(self, error: ServerError, origin: Origin) -> InferenceResponse:
        return InferenceResponse.failed(self.request, error, origin)

    def take_callback(self) -> OnResponse:
        """Remove and return `on_response`; the caller then sets one that forwards to it.

        For threads other than the submitting one, which may fail the request at the same time.
        """
        try:
            return self.callbacks.pop()
        except IndexError:
            return drop

    def origin_of(self, error: ServerError) -> Origin:
        """Return the origin of an error of its execution: a model may end a request because it was cancelled."""
        if self.cancelled is not None and error.code is ErrorCode.CANCELLED:
            return Origin.CANCELLED
        return Origin.FAILED

    def cancel(self, cause: CancelCause = CancelCause.CLIENT) -> None:
        """The caller no longer wants an answer. A queued request is answered with CANCELLED, unexecuted. Any thread."""
        self.cancelled = cause
        on_cancel = self.on_cancel  # read once: the engine sets it to None when the request is done
        if on_cancel is not None:
            guarded(partial(on_cancel, self), "the cancellation of a request")


def deliver(pending: PendingRequest, response: InferenceResponse) -> None:
    """Call `on_response` on the calling thread, unless the final response was delivered. Never raises: exceptions are
    logged.

    A fault of a front end must not end the thread that answers, nor keep other requests from their responses. Several
    threads may deliver final responses: the first one counts. All others are delivered one at a time, before it.
    """
    try:
        on_response = pending.callbacks.pop()
    except IndexError:
        if response.final:
            pending.last = response
            _deliver_last(pending)
        return
    try:
        on_response(response)
    except BaseException:  # the library's callers may have callbacks of their own
        _log.exception("the response callback of a request for model '%s' failed", pending.request.model_name)
    if not response.final:
        pending.callbacks.append(on_response)
        if pending.last is not None:
            _deliver_last(pending)


def _deliver_last(pending: PendingRequest) -> None:
    """Deliver `last`, unless it was delivered, or another thread is delivering a response and will find it."""
    try:
        on_response = pending.callbacks.pop()
    except IndexError:
        return
    assert pending.last is not None
    guarded(partial(on_response, pending.last), "the response callback of a request")


def drop(response: InferenceResponse) -> None:
    """Ignore a response that arrives after the final one."""


class LoneRequest(PendingRequest):
    """The request of a thread that waits for its answer: it may be executed in `submit`."""

    is_alone = True

    __slots__ = ()


Call = Callable[[], None]
Defer = Callable[[Call], None]


class Deferred:
    """Calls to make later, the last added first, each once however often it was added. One thread only."""

    __slots__ = ("_calls", "add")

    add: Defer

    def __init__(self) -> None:
        self._calls: dict[Call, None] = {}
        self.add = self._calls.setdefault

    def run(self) -> None:
        """Make the calls, including those added meanwhile. An exception in one does not stop the others."""
        while self._calls:
            guarded(self._calls.popitem()[0], "a deferred call")


# --- flushing the collected responses of callers, once for a run of responses

Flush = Callable[[], None]
_FLUSH: Final = "sending the responses of a batch"

# `waiting` has the collected calls; None, or nothing at all, outside of the context.
_of_thread = threading.local()


def flush(calls: Iterable[Flush]) -> None:
    """Make each of the calls once, now or at the end of the thread's `CollectedFlushes`."""
    waiting: dict[Flush, None] | None = getattr(_of_thread, "waiting", None)
    for each in calls:
        if waiting is None:
            guarded(each, _FLUSH)
        else:
            waiting[each] = None


class CollectedFlushes:
    """A context in which a thread's calls of `flush` are collected; each is made once, at the end.

    For a thread that delivers several responses without waiting in between.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        _of_thread.waiting = {}

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        waiting: dict[Flush, None] = _of_thread.waiting
        _of_thread.waiting = None
        for each in waiting:
            guarded(each, _FLUSH)


# --- responses through senders


class DeferredOutcome(Enum):
    """The type of LATER and AGAIN."""

    LATER = "the request is answered through its sender"
    AGAIN = "the request is to be executed again"


LATER: Final = DeferredOutcome.LATER
"""An outcome of an execution: the request is answered through its sender, or has been already."""
AGAIN: Final = DeferredOutcome.AGAIN
"""An outcome of an execution: the request is to be executed again. Its sender sends nothing more."""


class ResponseSender(Protocol):
    """Sends the responses to one request of an execution. Any thread; several may send at once.

    Keep it until the final response: a sender that is dropped earlier answers its request with an error.
    """

    @property
    def is_cancelled(self) -> bool:
        """True if the request was cancelled: its responses are dropped, but the final one is still needed."""
        ...

    @property
    def is_full(self) -> bool:
        """True while the client lags behind. `send` works, but costs memory; false once cancelled."""
        ...

    def send(
        self,
        outputs: Outputs | None,
        *,
        final: bool = False,
        error: ServerError | None = None,
        parameters: dict[str, Parameter] | None = None,
    ) -> None:
        """Send a response: `outputs`, or `error` in place of them. Returns at once.

        `final` without outputs or an error ends the responses. The responses of a request arrive in the order in which
        they were sent. What is sent after the final one is dropped.
        """
        ...

    def watch(self, callback: Callable[[], None]) -> None:
        """Have `callback` called when `is_cancelled` becomes true, and each time `is_full` becomes false.

        It is called on any thread, immediately if the request is already cancelled, and must not block.
        """
        ...


class ResponseWindow:
    """Not thread-safe. Responses are taken in the order in which they were sent."""

    __slots__ = ("_limits", "_nbytes", "_sizes")

    def __init__(self, limits: WindowLimits) -> None:
        self._limits = limits
        self._sizes: deque[int] = deque()
        self._nbytes = 0

    @property
    def is_full(self) -> bool:
        return len(self._sizes) >= self._limits.responses or self._nbytes >= self._limits.nbytes

    def put(self, response: InferenceResponse) -> None:
        try:
            size = _size(response)
        except TypeError:  # elements are not bytes: the encoder reports it
            size = 0
        self._sizes.append(size)
        self._nbytes += size

    def take(self, count: int) -> None:
        """Note that the oldest `count` responses, or all if there are fewer, were taken."""
        sizes = self._sizes
        for _ in range(min(count, len(sizes))):
            self._nbytes -= sizes.popleft()


def _size(response: InferenceResponse) -> int:
    outputs = response.outputs
    if type(outputs) is PackedOutputs:
        return outputs.layout.size
    size = 0
    for output in outputs:
        # The array of an output that is bytes already is made on each use.
        if type(output) is OutputTensor and output.array.dtype == np.object_:
            size += sum(map(len, output.array.reshape(-1).tolist()))
        else:
            size += output.nbytes
    return size


class StreamedRequest(PendingRequest):
    """The engine lets the model send only as much as fits into a window of responses that were sent and not taken.

    So a client that reads slowly holds back its own model, and costs no more memory than its window. The responses to
    any other request have no window.
    """

    __slots__ = ("on_take",)

    def __init__(
        self,
        request: InferenceRequest,
        on_response: OnResponse,
        *,
        defer: Defer | None = None,
        flush: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(request, on_response, defer=defer, flush=flush)
        # What `take` calls: set by the engine while the request is open.
        self.on_take: Callable[[StreamedRequest, int], None] | None = None

    def take(self, count: int = 1) -> None:
        """Acknowledge the oldest `count` responses, so that the model may send as many more. Any thread."""
        on_take = self.on_take
        if on_take is not None:
            guarded(partial(on_take, self, count), "the next response of a stream")
