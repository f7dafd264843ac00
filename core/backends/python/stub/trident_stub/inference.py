"""InferenceRequest and InferenceResponse, the sender of responses, and requests to other models.

Source: docs/spec/python-backend.md sections 4.3, 4.4 and 4.8.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Iterator, Sequence
from contextlib import suppress
from enum import Enum
from json import dumps
from queue import SimpleQueue
from typing import TYPE_CHECKING, Any, SupportsIndex, Union

from .model import Choice, Phase, TritonError, TritonModelException, running_model, text_of, truth_of
from .server import ResponseStream, current
from .tensor import Tensor
from .wire import from_json

if TYPE_CHECKING:
    import asyncio

Parameters = dict[str, Union[bool, int, str]]


def checked_parameters(parameters: Any) -> Parameters:
    """`parameters` as they are sent; {} for None. Raises TritonModelException."""
    if parameters is None:
        return {}
    if not isinstance(parameters, dict):
        raise TritonModelException(f"Expect dict, got {type(parameters)}")
    for key, value in parameters.items():
        if not isinstance(key, str):
            raise TritonModelException(f"Expect parameters keys to have type str, found type {type(key)}")
        if not isinstance(value, (bool, int, str)):
            raise TritonModelException(f"Expect parameters values to have type bool/int/str, found type {type(value)}")
    return dict(parameters)


_NO_PARAMETERS: Parameters = {}


class InferenceResponse:
    """The response to a request: of this model, or of another one that the model asked.

    The server side encodes it from `output_tensors()`, `error()` and `_parameters`, a dict that is empty if there are
    none; it makes the responses of other models with the plain constructor. With an error, the outputs do not count.
    """

    __slots__ = ("_error", "_outputs", "_parameters")

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | None = None,
        parameters: dict[str, Any] | None = None,
    ) -> None:
        """Raises TypeError for other types, and TritonModelException for a tensor that is None."""
        self._outputs = outputs = list(output_tensors)
        for tensor in outputs:
            if tensor is None:
                raise TritonModelException("Output tensor for inference response should not be empty.")
            if not isinstance(tensor, Tensor):
                raise TypeError(f"InferenceResponse(): the outputs must be Tensor objects, not {type(tensor).__name__}")
        if error is not None and not isinstance(error, TritonError):
            raise TypeError(f"InferenceResponse(): the error must be a TritonError, not {type(error).__name__}")
        self._error = error
        self._parameters = checked_parameters(parameters) if parameters is not None else _NO_PARAMETERS

    def output_tensors(self) -> list[Tensor]:
        return self._outputs

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error

    def parameters(self) -> str:
        """The parameters as JSON."""
        return dumps(self._parameters)

    def _with_outputs(self, requested: Sequence[str]) -> InferenceResponse:
        """This response without the outputs that were not requested. Nothing else of it is copied.

        An output that is not configured stays, so that the server reports it.
        """
        for tensor in self._outputs:
            if tensor._name not in requested:
                break
        else:
            return self
        known = running_model().outputs
        outputs = [tensor for tensor in self._outputs if tensor._name in requested or tensor._name not in known]
        kept = InferenceResponse(outputs, self._error)
        kept._parameters = self._parameters
        return kept


def get_output_tensor_by_name(inference_response: InferenceResponse, name: str) -> Tensor | None:
    """The output of that name; None if the response has none."""
    for tensor in inference_response._outputs:
        if tensor._name == name:
            return tensor
    return None


NO_FLAGS = 0
FINAL = 1
MADE_HERE = -1
"""The number of a request that the model made for another model."""


class SenderState(Enum):
    """OPEN -> CLOSED; of a model that is not decoupled also OPEN -> ANSWERED -> CLOSED."""

    OPEN = "open"
    ANSWERED = "answered"
    """The one response was sent without the flag FINAL, which must follow."""
    CLOSED = "closed"


# Shared by all senders: it is held for a few comparisons, and most requests have no sender. A signal handler may send
# within a send.
_lock = threading.RLock()


class InferenceResponseSender:
    """Answers a request, during `execute` or later, once or many times. Any thread.

    Made when the model asks a request for it, or leaves a request without an answer. A model that drops it before the
    end of the responses can never end them: the request is ended with an error, or without one if it has the one
    response that its client waits for. (In Triton the client waits forever.)
    """

    __slots__ = ("_number", "_requested", "_state", "_unused")

    def __init__(self, number: int, requested: Sequence[str], state: SenderState = SenderState.OPEN) -> None:
        """Answer the request that has `number` at the server. One with MADE_HERE cannot be answered."""
        self._number = number
        self._requested = requested
        self._state = state
        # What `execute` returned for a request whose sender the model had not asked for.
        self._unused = ""

    def send(self, response: InferenceResponse | None = None, flags: int = NO_FLAGS) -> None:
        """Send `response`, and with the flag FINAL end the request. Blocks while the client is behind.

        Raises TritonModelException if that is not allowed, TypeError for anything that is not a response.
        """
        if flags.__class__ is not int or flags < 0:
            flags = _index("flags", flags)
        if response is not None and not isinstance(response, InferenceResponse):
            raise TypeError(f"send(): the response must be an InferenceResponse, not {type(response).__name__}")
        if flags not in (NO_FLAGS, FINAL):
            raise TritonModelException("Unable to send response. Unsupported flag provided.")
        if response is None and flags == NO_FLAGS:
            raise TritonModelException(
                "Inference Response object must be provided when the response flags is set to zero."
            )
        if self._number == MADE_HERE:
            raise TritonModelException(
                "Unable to send response. Response sender has no reference to the decoupled state of the model."
            )
        self._advance(response is not None, flags == FINAL)
        if response is not None:
            response = response._with_outputs(self._requested)
        current().send(self._number, response, flags == FINAL)

    def is_cancelled(self) -> bool:
        """Return True if the client went away. The request must still be ended."""
        return self._number != MADE_HERE and current().is_cancelled(self._number)

    def is_full(self) -> bool:
        """Return True if `send` would wait for the client. Not in Triton's library: for models that have more to do."""
        return self._number != MADE_HERE and current().is_full(self._number)

    def __del__(self) -> None:
        if self._number >= 0 and self._state is not SenderState.CLOSED:
            # The garbage collector may run in the middle of anything, where this thread must not send.
            _dropped.put((self._number, self._state, self._unused))

    def _advance(self, has_response: bool, final: bool) -> None:
        """Note that something is sent, or raise TritonModelException."""
        with _lock:
            self._state = _state_after(self._state, has_response, final, running_model().decoupled)

    def _close(self) -> SenderState:
        """Close the sender. Returns its previous state."""
        with _lock:
            was, self._state = self._state, SenderState.CLOSED
        return was


CLOSED_SENDER = InferenceResponseSender(-2, (), SenderState.CLOSED)
"""The sender of every request that `execute` answered without one."""


# The senders that the model has dropped, and the thread that ends their requests.
_dropped: SimpleQueue[tuple[int, SenderState, str]] = SimpleQueue()
_ends_dropped: list[threading.Thread] = []


def _end_dropped() -> None:
    while True:
        number, state, unused = _dropped.get()
        response = None
        if state is SenderState.OPEN:
            text = "the model dropped its response sender before the final response"
            if unused:
                text = f"execute {unused}, and the model sent no response: "
                if not running_model().decoupled:
                    text += "return a list with one InferenceResponse for each request, or "
                text += "send it with request.get_response_sender() and the flag TRITONSERVER_RESPONSE_COMPLETE_FINAL"
            response = InferenceResponse(error=TritonError(text))
        with suppress(Exception):  # the server has gone
            current().send(number, response, True)


def _state_after(state: SenderState, has_response: bool, final: bool, decoupled: bool) -> SenderState:
    if not decoupled:
        if has_response and state is not SenderState.OPEN:
            raise TritonModelException(
                "Unable to send response. Non-decoupled model cannot send more than one response."
            )
        if not has_response and state is SenderState.OPEN:
            raise TritonModelException(
                "Unable to send response. Non-decoupled model cannot send complete final before sending a response."
            )
    if state is SenderState.CLOSED:
        raise TritonModelException("Unable to send response. Response sender has been closed.")
    if final:
        return SenderState.CLOSED
    return SenderState.OPEN if decoupled else SenderState.ANSWERED


# --- requests


class MemoryType(Choice):
    """Where a tensor is."""

    TRITONSERVER_MEMORY_GPU = 0
    TRITONSERVER_MEMORY_CPU = 1


class PreferredMemory:
    """Where the outputs of another model should be. This server always answers with CPU memory."""

    __slots__ = ("_device_id", "_type")

    def __init__(self, preferred_memory_type: MemoryType, preferred_device_id: int = 0) -> None:
        if not isinstance(preferred_memory_type, MemoryType):
            raise TypeError("PreferredMemory(): the type must be TRITONSERVER_MEMORY_CPU or TRITONSERVER_MEMORY_GPU")
        if type(preferred_device_id) is not int:
            raise TypeError("PreferredMemory(): the device id must be an int")
        self._type = preferred_memory_type
        self._device_id = preferred_device_id


class InferenceTrace:
    """The trace of a request, which its requests to other models can continue. Its number is 0 if there is none."""

    __slots__ = ("_context", "_number")

    def __init__(self, context: str | None = None, number: int = 0) -> None:
        self._context = context
        self._number = number

    @classmethod
    def _of(cls, field: list[Any] | None) -> InferenceTrace:
        return cls(field[1], field[0]) if field else cls()

    def _field(self) -> list[Any] | None:
        return [self._number, self._context] if self._number else None

    def get_context(self) -> str | None:
        """The context for other tracing libraries, as JSON; None if the request is not traced so."""
        return self._context


RELEASE_ALL = 1
RELEASE_RESCHEDULE = 2

_CPU = PreferredMemory(MemoryType.TRITONSERVER_MEMORY_CPU)
_NO_TRACE = InferenceTrace()


class InferenceRequest:
    """A request that arrived, or one for another model.

    `_number` is the server's number of a request that arrived, and MADE_HERE if the model made the request.
    """

    __slots__ = ("_fields", "_inputs", "_number", "_release_flags", "_requested", "_sender")

    _number: int
    _inputs: list[Tensor]
    _requested: Sequence[str]
    # Fields that few requests have and few models read: JSON until one is read.
    _fields: bytes | dict[str, Any]
    _release_flags: int
    _sender: InferenceResponseSender | None

    def __init__(
        self,
        request_id: str | bytes = "",
        correlation_id: int | str | bytes = 0,
        inputs: Sequence[Tensor] | None = None,
        requested_output_names: Sequence[str | bytes] | None = None,
        model_name: str | bytes | None = None,
        model_version: int = -1,
        flags: int = 0,
        timeout: int = 0,
        preferred_memory: PreferredMemory = _CPU,
        trace: InferenceTrace = _NO_TRACE,
        parameters: dict[str, Any] | None = None,
    ) -> None:
        """A request for another model, of which `inputs`, `requested_output_names` and `model_name` must be given.

        `timeout` is in µs. Raises TypeError for wrong types, TritonModelException for wrong parameters.
        """
        request_id = text_of(request_id, "InferenceRequest(): 'request_id'")
        if isinstance(correlation_id, int):
            correlation_id = _index("correlation_id", correlation_id)
        elif isinstance(correlation_id, (str, bytes)) or correlation_id is None:
            correlation_id = text_of(correlation_id, "InferenceRequest(): 'correlation_id', if not an int,")
        else:
            raise TritonModelException("Correlation ID must be integer or string")
        model_name = text_of(model_name, "InferenceRequest(): 'model_name'")
        numbers = {"model_version": model_version, "flags": flags, "timeout": timeout}
        for name, value, expected in (
            ("preferred_memory", preferred_memory, PreferredMemory),
            ("trace", trace, InferenceTrace),
        ):
            if not isinstance(value, expected):
                raise TypeError(
                    f"InferenceRequest(): '{name}' must be a {expected.__name__}, not {type(value).__name__}"
                )
        self._number = MADE_HERE
        if inputs is None:
            raise TypeError("InferenceRequest(): 'inputs' must be a list of Tensor objects")
        self._inputs = list(inputs)
        for tensor in self._inputs:
            if tensor is None:
                raise TritonModelException(
                    f"Input tensor for request with id '{request_id}' and model name '{model_name}' should not be "
                    "empty."
                )
            if not isinstance(tensor, Tensor):
                raise TypeError(f"InferenceRequest(): 'inputs' must be Tensor objects, not {type(tensor).__name__}")
        if requested_output_names is None or isinstance(requested_output_names, (str, bytes)):
            raise TypeError("InferenceRequest(): 'requested_output_names' must be a list of str")
        self._requested = [
            text_of(name, "InferenceRequest(): each of 'requested_output_names'") for name in requested_output_names
        ]
        if "" in self._requested:
            raise TritonModelException(
                f"Requested output name for request with id '{request_id}' and model name '{model_name}' should not be "
                "empty."
            )
        self._release_flags = RELEASE_ALL
        self._sender = None
        self._fields = {
            "id": request_id,
            "correlation_id": correlation_id,
            "model_name": model_name,
            **{name: _index(name, number) for name, number in numbers.items()},
            "trace": trace._field(),
            "parameters": checked_parameters(parameters),
        }

    @classmethod
    def _arrived(
        cls, number: int, inputs: list[Tensor], requested: Sequence[str], fields: bytes = b""
    ) -> InferenceRequest:
        """A request that arrived. Called by the stub's channel for each request of a batch.

        `requested` are the names of the requested outputs, or of all configured ones; requests may share it. `fields`
        is a JSON object with those that the request has of `id` (str), `correlation_id` (int or str), `flags`,
        `timeout` (µs), `parameters` (object) and `trace` (a list: its number, and its context as str or null); b"" if
        it has none. It is parsed when the model asks for one of them.
        """
        request = cls.__new__(cls)
        request._number = number
        request._inputs = inputs
        request._requested = requested
        request._fields = fields
        request._release_flags = RELEASE_ALL
        request._sender = None
        return request

    def _description(self) -> dict[str, Any]:
        """The fields of a request to another model, all of them JSON values.

        Called by the stub's channel in `Server.infer`: `model_name` (str), `model_version` (int, -1 for any), and as in
        `_arrived` those of `id`, `correlation_id`, `flags`, `timeout`, `parameters` and `trace` that it has.
        """
        fields = self._fields
        if not isinstance(fields, dict):
            fields = self._fields = from_json(fields) if fields else {}
        return fields

    def inputs(self) -> list[Tensor]:
        return self._inputs

    def requested_output_names(self) -> set[str]:
        return set(self._requested)

    def request_id(self) -> str:
        """The id that the client gave; "" if it gave none."""
        return self._description().get("id", "")  # type: ignore[no-any-return]

    def correlation_id(self) -> int | str:
        """The correlation id of the sequence; 0 if the request belongs to none."""
        return self._description().get("correlation_id", 0)  # type: ignore[no-any-return]

    def flags(self) -> int:
        """The sum of the sequence flags."""
        return self._description().get("flags", 0)  # type: ignore[no-any-return]

    def set_flags(self, flags: int) -> None:
        """Replace the flags. Raises TypeError for anything but an int."""
        self._description()["flags"] = _index("flags", flags)

    def timeout(self) -> int:
        """The timeout in µs; 0 for none."""
        return self._description().get("timeout", 0)  # type: ignore[no-any-return]

    def parameters(self) -> str:
        """The parameters as JSON, which is compact for a request that arrived, as in Triton."""
        parameters = self._description().get("parameters") or {}
        if self._number == MADE_HERE:
            return dumps(parameters)
        return dumps(parameters, ensure_ascii=False, separators=(",", ":"))

    def trace(self) -> InferenceTrace:
        return InferenceTrace._of(self._description().get("trace"))

    def is_cancelled(self) -> bool:
        """Return True if the client went away. The request must still be answered."""
        return self._number != MADE_HERE and current().is_cancelled(self._number)

    def set_release_flags(self, flags: int) -> None:
        """Set how the request ends: with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE it is queued again, not answered."""
        self._release_flags = _index("flags", flags)

    def get_response_sender(self) -> InferenceResponseSender:
        """The one sender of this request. The sender of a request that the model made sends nothing."""
        sender = self._open_sender()
        sender._unused = ""
        return sender

    def _open_sender(self) -> InferenceResponseSender:
        """The sender, which ends the request when it is dropped."""
        sender = self._sender
        if sender is None:
            if self._number != MADE_HERE:
                with _lock:
                    if not _ends_dropped:
                        thread = threading.Thread(target=_end_dropped, name="trident dropped senders", daemon=True)
                        thread.start()
                        _ends_dropped.append(thread)
            sender = self._sender = InferenceResponseSender(self._number, self._requested)
        return sender

    def exec(self, decoupled: bool = False) -> InferenceResponse | ResponseIterator:
        """Send the request to its model, and wait for the response; if `decoupled`, return the responses as they come.

        Errors of the call and of the model are in the response. Raises TritonModelException outside `execute`.
        """
        return _answer(_send(self, decoupled, _is_executing()), decoupled)

    def async_exec(self, decoupled: bool = False) -> asyncio.Future[Any]:
        """As `exec`, for `await`: sent at once; if `decoupled`, waits for the first response. Needs a running loop.

        Raises as `exec`, and RuntimeError outside an event loop.
        """
        import asyncio  # not at the start of every process, of which it would take a tenth

        loop = asyncio.get_running_loop()
        future: asyncio.Future[InferenceResponse | ResponseIterator] = loop.create_future()
        # The loop of a decoupled model goes on when `execute` has returned.
        stream = _send(self, decoupled, _is_executing() or not running_model().decoupled)

        def settle() -> None:
            if not future.done():
                future.set_result(_answer(stream, decoupled))

        def has_come() -> None:
            try:
                loop.call_soon_threadsafe(settle)
            except RuntimeError:
                # The loop ended without waiting for the answer. This thread reads, and must not send.
                threading.Thread(target=stream.cancel, daemon=True).start()

        future.add_done_callback(lambda settled: stream.cancel() if settled.cancelled() else None)
        stream.add_listener(has_come)
        return future


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None:
    """The input of that name; None if the request has none."""
    for tensor in inference_request._inputs:
        if tensor._name == name:
            return tensor
    return None


# The integers from the first to the last one, as Triton's library has them.
_RANGES = {
    "correlation_id": (0, (1 << 64) - 1),
    "model_version": (-(1 << 63), (1 << 63) - 1),
    "flags": (0, (1 << 32) - 1),
    "timeout": (0, (1 << 64) - 1),
}


def _index(name: str, value: SupportsIndex) -> int:
    """An integer of Python or numpy as an int. Raises TypeError, also for one that is out of range."""
    try:
        number = operator.index(value)
    except TypeError:
        raise TypeError(f"the argument '{name}' must be an int, not {type(value).__name__}") from None
    first, last = _RANGES[name]
    if not first <= number <= last:
        raise TypeError(f"the argument '{name}' must be an int from {first} to {last}, not {number}")
    return number


# --- requests to other models


class ResponseIterator:
    """The responses to a request with `decoupled=True`, in their order, as they come. One thread at a time.

    A model that ends its responses without another one gives a last response that is empty, as in Triton.
    After the end they can be iterated again from the beginning.
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
        if self._at >= len(self._responses):
            response = None if self._ended else self._stream.next()
            if response is None:
                self._ended = True
                raise StopIteration("Iteration is done for the responses.")
            self._responses.append(response)
        response = self._responses[self._at]
        self._at += 1
        return response

    def cancel(self) -> None:
        """Tell the other model that no more responses are wanted; it may still send some."""
        self._stream.cancel()


def _is_executing() -> bool:
    """Return True on the thread that calls the model's `execute`."""
    return threading.current_thread() is threading.main_thread()


def _send(request: InferenceRequest, decoupled: bool, within: bool) -> ResponseStream:
    decoupled = truth_of(decoupled, "decoupled")
    if running_model().phase is not Phase.SERVING:
        raise TritonModelException("BLS is only supported during the 'execute' function.")
    # A request that arrived here is sent to this model.
    request._description().setdefault("model_name", running_model().name)
    return current().infer(request, decoupled, within)


def _answer(stream: ResponseStream, decoupled: bool) -> InferenceResponse | ResponseIterator:
    if decoupled:
        return ResponseIterator(stream)
    return stream.next() or InferenceResponse(error=TritonError("An error occurred while performing BLS request."))
