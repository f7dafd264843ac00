"""What a model asks about other models: to infer, and to be loaded, unloaded or ready.

The server's calls are `load_model`, `unload_model` and `is_model_ready`; the contents of files are Base64.
Source: docs/spec/python-backend.md sections 4.3 and 4.4.
"""

from __future__ import annotations

import base64
import threading
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Union

from . import server
from .errors import TritonError, TritonModelException, text_of
from .model import Phase, running_model
from .response import InferenceResponse
from .server import ResponseStream

if TYPE_CHECKING:
    import asyncio

    from .request import InferenceRequest


class ResponseIterator:
    """The responses to a request with `decoupled=True`, in their order, as they come. One thread at a time.

    A model that ends its responses without another one gives a last response that is empty, as in Triton.
    The responses are kept: after the end, they can be iterated again from the beginning.
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
        """Tell the other model that no more responses are wanted; it may still send some."""
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
    """As `execute`, but return a future of the first response. Cancelling it cancels the request."""
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
    # A request that arrived here is sent to this model.
    request._description().setdefault("model_name", running_model().name)
    return server.current().infer(request, decoupled, within)


def _answer(stream: ResponseStream, decoupled: bool) -> Answer:
    if decoupled:
        return ResponseIterator(stream)
    return stream.next() or InferenceResponse(error=TritonError("An error occurred while performing BLS request."))


def load_model(
    model_name: str | bytes, config: str | bytes = "", files: dict[str | bytes, bytes] | None = None
) -> None:
    """Load a model, or load it again, with a configuration and files in place of those of the repository.

    `files` are contents by `file:PATH`. Raises TritonModelException with the reason.
    """
    fields = {"model_name": text_of(model_name, "'model_name'"), "config": text_of(config, "'config'")}
    encoded = {}
    for path, content in (files or {}).items():
        _check(f"files[{path!r}]", content, bytes)
        encoded[text_of(path, "'files'")] = base64.b64encode(content).decode()
    _call("Failed to load model: ", "load_model", {**fields, "files": encoded})


def unload_model(model_name: str | bytes, unload_dependents: bool = False) -> None:
    """Begin to unload a model. Raises TritonModelException with the reason."""
    _check("unload_dependents", unload_dependents, bool)
    fields = {"model_name": text_of(model_name, "'model_name'"), "unload_dependents": unload_dependents}
    _call("Failed to unload model: ", "unload_model", fields)


def is_model_ready(model_name: str | bytes, model_version: str | bytes = "") -> bool:
    """Whether a model serves, in that version or in any. Raises TritonModelException for an invalid version."""
    model_name, model_version = text_of(model_name, "'model_name'"), text_of(model_version, "'model_version'")
    prefix = "Failed to check model readiness: "
    if model_version and not (model_version.isascii() and model_version.isdigit() and int(model_version) > 0):
        raise TritonModelException(
            f"{prefix}failed to get model version from specified version string '{model_version}': "
            "it must be an integer greater than 0"
        )
    answer = _call(prefix, "is_model_ready", {"model_name": model_name, "model_version": model_version})
    return bool(answer["ready"])


def _call(prefix: str, name: str, fields: dict[str, Any]) -> dict[str, Any]:
    try:
        return server.current().call(name, fields)
    except TritonModelException as error:
        raise TritonModelException(f"{prefix}{error}") from error


def _check(name: str, value: object, expected: type) -> None:
    if not isinstance(value, expected):
        raise TypeError(f"'{name}' must be a {expected.__name__}, not {type(value).__name__}")
