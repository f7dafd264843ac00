"""Requests of a model to other models: sent and waited for, or awaited.

Source: docs/spec/python-backend.md section 4.4.
"""

from __future__ import annotations

import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Union

from . import server
from .errors import TritonError, TritonModelException
from .inference_response import InferenceResponse
from .running_model import Phase, running_model
from .server import ResponseStream

if TYPE_CHECKING:
    import asyncio

    from .inference_request import InferenceRequest


class ResponseIterator:
    """The responses to a request with `decoupled=True`, in their order, as they come. One thread at a time.

    A model that ends its responses without another one gives a last response that is empty, as in Triton.
    It may be iterated again from the beginning after its end, so that it keeps the responses.
    """

    def __init__(self, stream: ResponseStream) -> None:
        self._stream = stream
        self._responses: list[InferenceResponse] = []
        self._at = 0
        self._ended = False

    def __iter__(self) -> Iterator[InferenceResponse]:
        if self._ended and self._at >= len(self._responses):
            self._at = 0
        return self

    def __next__(self) -> InferenceResponse:
        if self._at >= len(self._responses) and not self._receive():
            raise StopIteration
        response = self._responses[self._at]
        self._at += 1
        return response

    def cancel(self) -> None:
        """Tell the other model that no more responses are wanted; it may send more before it looks."""
        self._stream.cancel()

    def _receive(self) -> bool:
        """Wait for one more response; false if all have come."""
        if self._ended:
            return False
        response = self._stream.next()
        if response is None:
            self._ended = True
            return False
        self._responses.append(response)
        return True


Answer = Union[InferenceResponse, ResponseIterator]


def execute(request: InferenceRequest, decoupled: bool) -> Answer:
    """Send `request`, and wait for its response. Raises TritonModelException if the model is not serving."""
    return _answer(_send(request, decoupled, _is_executing()), decoupled)


def execute_async(request: InferenceRequest, decoupled: bool) -> asyncio.Future[Answer]:
    """As `execute`, settled when the first response is there. Whoever cancels the future cancels the request."""
    import asyncio  # not at the start of every process, of which it would take a tenth

    loop = asyncio.get_running_loop()
    future: asyncio.Future[Answer] = loop.create_future()
    # The loop of a decoupled model goes on when `execute` has returned.
    stream = _send(request, decoupled, _is_executing() or not running_model().decoupled)

    def settle() -> None:
        if not future.done():
            future.set_result(_answer(stream, decoupled))

    def has_come() -> None:
        try:
            loop.call_soon_threadsafe(settle)
        except RuntimeError:
            # The loop ended without waiting for the answer. This thread reads, and must not send.
            threading.Thread(target=stream.cancel, daemon=True).start()

    def is_settled(settled: asyncio.Future[Any]) -> None:
        if settled.cancelled():
            stream.cancel()

    future.add_done_callback(is_settled)
    stream.add_listener(has_come)
    return future


def _is_executing() -> bool:
    """Whether this is the thread that calls the model's `execute`."""
    return threading.current_thread() is threading.main_thread()


def _send(request: InferenceRequest, decoupled: bool, within: bool) -> ResponseStream:
    if not isinstance(decoupled, bool):
        raise TypeError(f"the argument 'decoupled' must be a bool, not {type(decoupled).__name__}")
    if running_model().phase is not Phase.SERVING:
        raise TritonModelException("BLS is only supported during the 'execute' function.")
    # A request that arrived is sent to the model at which it arrived.
    request._description().setdefault("model_name", running_model().name)
    return server.current().infer(request, decoupled, within)


def _answer(stream: ResponseStream, decoupled: bool) -> Answer:
    if decoupled:
        return ResponseIterator(stream)
    return stream.next() or InferenceResponse(error=TritonError("An error occurred while performing BLS request."))
