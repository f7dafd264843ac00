"""InferenceResponse, output tensors or an error; and InferenceResponseSender, which sends responses from any thread.

Source: docs/spec/python-backend.md section 4.3.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum
from typing import Any, Union

from . import server
from .errors import TritonError, TritonModelException
from .model import running_model
from .tensor import Tensor

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
            if tensor.__class__ is not Tensor:
                _check_output(tensor)
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
        return json.dumps(self._parameters)

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


def _check_output(tensor: object) -> None:
    if tensor is None:
        raise TritonModelException("Output tensor for inference response should not be empty.")
    if not isinstance(tensor, Tensor):
        raise TypeError(f"InferenceResponse(): the outputs must be Tensor objects, not {type(tensor).__name__}")


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


# Shared by all senders: it is held for a few comparisons, and most requests have no sender.
_lock = threading.Lock()


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
        if not isinstance(flags, int):
            raise TypeError(f"send(): the flags must be an int, not {type(flags).__name__}")
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
        server.current().send(self._number, response, flags == FINAL)

    def is_cancelled(self) -> bool:
        """Whether the client went away. The request must still be ended."""
        return self._number != MADE_HERE and server.current().is_cancelled(self._number)

    def is_full(self) -> bool:
        """Whether `send` would wait for the client. Not in Triton's library: for models that have more to do."""
        return self._number != MADE_HERE and server.current().is_full(self._number)

    def __del__(self) -> None:
        if self._number >= 0 and self._state is not SenderState.CLOSED:
            # The garbage collector may run in the middle of anything, where this thread must not send.
            with suppress(RuntimeError):
                threading.Thread(
                    target=_end_dropped, args=(self._number, self._state, self._unused), daemon=True
                ).start()

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


def _end_dropped(number: int, state: SenderState, unused: str) -> None:
    response = None
    if state is SenderState.OPEN:
        text = "the model dropped its response sender before the final response"
        if unused:
            text = f"execute {unused}, and the model sent no response: "
            if not running_model().decoupled:
                text += "return a list with one InferenceResponse for each request, or "
            text += "send it with request.get_response_sender() and the flag TRITONSERVER_RESPONSE_COMPLETE_FINAL"
        response = InferenceResponse(error=TritonError(text))
    with suppress(RuntimeError):
        server.current().send(number, response, True)


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
