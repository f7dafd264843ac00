"""A request on its way through the engine."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from enum import Enum
from types import TracebackType

from trident.core.errors import ServerError
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import InferenceResponse, OnResponse


class CancelCause(Enum):
    """The value is the label of the metric of cancelled requests."""

    CLIENT = "client"
    """The caller went away, or cancelled its call."""

    DEADLINE = "deadline"
    """The caller's own deadline has passed: `grpc-timeout`, or the time that Vertex AI gives a request."""

    QUEUE_TIMEOUT = "queue_timeout"
    """It waited longer in a queue than the queue policy of its model, or its `timeout`, allows."""

    @property
    def number(self) -> int:
        """The number that represents it between processes."""
        return _NUMBERS[self]

    @classmethod
    def of_number(cls, number: int) -> CancelCause:
        """CLIENT for an unknown number."""
        return _BY_NUMBER.get(number, cls.CLIENT)


_BY_NUMBER = dict(enumerate(CancelCause))
_NUMBERS = {cause: number for number, cause in _BY_NUMBER.items()}


class PendingRequest:
    """A request, the caller that gets its responses, and the engine's notes on it.

    The caller makes it and passes it to `ServedModel.submit`. The engine owns `request` from `submit` to the final
    response. It never leaves its process.

    `on_response` may be called on any thread and as often as the model answers, the last time with `final` set.
    `defer` takes calls that the submitting thread makes after it has submitted all that it has; None: it makes none.
    `flush` sends the responses that the caller has collected; called after those of a whole batch were delivered.
    `is_alone`: its thread submits nothing else before it has the answer, and holds no lock.
    `is_nested`: a model makes the request while it executes another one, so it is accepted while the server stops, too.
    `wants_times`: its responses carry their times, whatever the options of the server say.
    """

    is_nested = False
    is_alone = False

    __slots__ = (
        "batch_key",
        "batch_size",
        "cancelled",
        "defer",
        "enqueue_ns",
        "expires_ns",
        "flush",
        "number",
        "on_cancel",
        "on_response",
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
        self.on_response = on_response
        self.defer = defer
        self.flush = flush
        # Set by `cancel`. A queued request that carries it leaves the queue unrun.
        self.cancelled: CancelCause | None = None
        # What `cancel` calls as well, None for nothing: set by an engine that does not look at `cancelled`.
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

    def refuse(self, error: ServerError) -> None:
        """Answer the request with an error instead of running it."""
        self.on_response(InferenceResponse.failed(self.request, error))

    def cancel(self, cause: CancelCause = CancelCause.CLIENT) -> None:
        """The caller no longer wants an answer. A queued request is answered CANCELLED unrun. Any thread."""
        self.cancelled = cause
        on_cancel = self.on_cancel  # read once: the engine sets it to None when the request is done
        if on_cancel is not None:
            on_cancel(self)


class LoneRequest(PendingRequest):
    """The request of a thread that waits for its answer: it may be executed in `submit`."""

    is_alone = True

    __slots__ = ()


Call = Callable[[], None]
Defer = Callable[[Call], None]


class Deferred:
    """Calls to make later, each once, however often it was added. One thread only."""

    __slots__ = ("_calls", "add")

    add: Defer

    def __init__(self) -> None:
        self._calls: set[Call] = set()
        self.add = self._calls.add

    def run(self) -> None:
        """Make the calls, also those that are added meanwhile."""
        while self._calls:
            self._calls.pop()()


# --- flushing what the callers of requests have collected, once for a run of responses

Flush = Callable[[], None]

# `waiting` has the collected calls; None, or nothing at all, outside of the context.
_of_thread = threading.local()


def flush(calls: Iterable[Flush | None]) -> None:
    """Make each of the calls once, now or at the end of the thread's `CollectedFlushes`."""
    waiting: set[Flush] | None = getattr(_of_thread, "waiting", None)
    for each in set(calls):
        if each is None:
            continue
        if waiting is None:
            each()
        else:
            waiting.add(each)


class CollectedFlushes:
    """A context in which a thread's calls of `flush` are collected; each is made once, at the end.

    For a thread that delivers several responses without waiting in between.
    """

    __slots__ = ()

    def __enter__(self) -> None:
        _of_thread.waiting = set()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        waiting: set[Flush] = _of_thread.waiting
        _of_thread.waiting = None
        for each in waiting:
            each()
