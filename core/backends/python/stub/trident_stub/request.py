"""InferenceRequest: a request that arrived at the model, or one that the model makes for another model.

Source: docs/spec/python-backend.md sections 4.3, 4.4 and 4.8.
"""

from __future__ import annotations

import json
import operator
from collections.abc import Sequence
from enum import Enum
from typing import TYPE_CHECKING, Any, SupportsIndex

from . import business_logic, server
from .errors import TritonModelException, text_of
from .response import MADE_HERE, InferenceResponse, InferenceResponseSender, checked_parameters
from .tensor import Tensor

if TYPE_CHECKING:
    from asyncio import Future


class MemoryType(Enum):
    """Where a tensor is."""

    TRITONSERVER_MEMORY_GPU = 0
    TRITONSERVER_MEMORY_CPU = 1


class PreferredMemory:
    """Where the outputs of another model should be. This server always answers with CPU memory."""

    __slots__ = ("_device_id", "_type")

    def __init__(self, preferred_memory_type: MemoryType, preferred_device_id: int = 0) -> None:
        """Raises TypeError for other types."""
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
        """The trace in the field of a request that arrived."""
        return cls(field[1], field[0]) if field else cls()

    def _field(self) -> list[Any] | None:
        """The field of a request to another model."""
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
        if not isinstance(correlation_id, (int, str)):
            correlation_id = text_of(correlation_id, "InferenceRequest(): 'correlation_id', if not an int,")
        model_name = text_of(model_name, "InferenceRequest(): 'model_name'")
        numbers = {"model_version": model_version, "flags": flags, "timeout": timeout}
        _check("preferred_memory", preferred_memory, PreferredMemory)
        _check("trace", trace, InferenceTrace)
        self._number = MADE_HERE
        self._inputs = _checked_inputs(inputs, request_id, model_name)
        self._requested = _checked_names(requested_output_names)
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
            fields = self._fields = json.loads(fields) if fields else {}
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
        """The parameters as JSON."""
        return json.dumps(self._description().get("parameters") or {})

    def trace(self) -> InferenceTrace:
        return InferenceTrace._of(self._description().get("trace"))

    def is_cancelled(self) -> bool:
        """Whether the client went away. The request must still be answered."""
        return self._number != MADE_HERE and server.current().is_cancelled(self._number)

    def set_release_flags(self, flags: int) -> None:
        """Set how the request ends: with TRITONSERVER_REQUEST_RELEASE_RESCHEDULE it is queued again, not answered."""
        self._release_flags = _index("flags", flags)

    def get_response_sender(self) -> InferenceResponseSender:
        """The one sender of this request. The sender of a request that the model made sends nothing."""
        sender = self._sender
        if sender is None:
            sender = self._sender = InferenceResponseSender(self._number, self._requested)
        return sender

    def exec(self, decoupled: bool = False) -> InferenceResponse | business_logic.ResponseIterator:
        """Send the request to its model, and wait for the response; if `decoupled`, return the responses as they come.

        Errors of the call and of the model are in the response. Raises TritonModelException outside `execute`.
        """
        return business_logic.execute(self, decoupled)

    def async_exec(self, decoupled: bool = False) -> Future[Any]:
        """As `exec`, for `await`: sent at once; if `decoupled`, waits for the first response. Needs a running loop.

        Raises as `exec`, and RuntimeError outside an event loop.
        """
        return business_logic.execute_async(self, decoupled)


def get_input_tensor_by_name(inference_request: InferenceRequest, name: str) -> Tensor | None:
    """The input of that name; None if the request has none."""
    for tensor in inference_request._inputs:
        if tensor._name == name:
            return tensor
    return None


def _check(name: str, value: object, expected: type) -> None:
    if not isinstance(value, expected):
        raise TypeError(f"InferenceRequest(): '{name}' must be a {expected.__name__}, not {type(value).__name__}")


def _index(name: str, value: SupportsIndex) -> int:
    """An integer of Python or numpy as an int."""
    try:
        return operator.index(value)
    except TypeError:
        raise TypeError(f"InferenceRequest(): '{name}' must be an int, not {type(value).__name__}") from None


def _checked_inputs(inputs: Sequence[Tensor] | None, request_id: str, model_name: str) -> list[Tensor]:
    if inputs is None:
        raise TypeError("InferenceRequest(): 'inputs' must be a list of Tensor objects")
    checked = list(inputs)
    for tensor in checked:
        if tensor is None:
            raise TritonModelException(
                f"Input tensor for request with id '{request_id}' and model name '{model_name}' should not be empty."
            )
        if not isinstance(tensor, Tensor):
            raise TypeError(f"InferenceRequest(): 'inputs' must be Tensor objects, not {type(tensor).__name__}")
    return checked


def _checked_names(names: Sequence[str | bytes] | None) -> list[str]:
    if names is None or isinstance(names, (str, bytes)):
        raise TypeError("InferenceRequest(): 'requested_output_names' must be a list of str")
    return [text_of(name, "InferenceRequest(): each of 'requested_output_names'") for name in names]
