"""InferenceResponseSender: answers a request from any thread, during `execute` or later, once or many times.

Source: docs/spec/python-backend.md section 4.3.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from contextlib import suppress
from enum import Enum

from . import server
from .errors import TritonError, TritonModelException
from .inference_response import InferenceResponse
from .running_model import running_model

NO_FLAGS = 0
FINAL = 1
MADE_HERE = -1
"""The number of a request that did not arrive: the model made it for another model."""


class SenderState(Enum):
    """OPEN -> CLOSED; of a model that is not decoupled also OPEN -> ANSWERED -> CLOSED."""

    OPEN = "open"
    ANSWERED = "answered"
    """The one response was sent without the flag FINAL, which must follow."""
    CLOSED = "closed"


# One for all senders: it is held for a few comparisons, and most requests have no sender at all.
_lock = threading.Lock()


class InferenceResponseSender:
    """Made when the model asks a request for it, or leaves a request without an answer. Any thread.

    A model that drops it before the end of the responses can never end them: the request is ended with an error, or
    without one if it has the one response that its client waits for. (In Triton the client waits for ever.)
    """

    __slots__ = ("_number", "_requested", "_state", "_unused")

    def __init__(self, number: int, requested: Sequence[str], state: SenderState = SenderState.OPEN) -> None:
        """`number` is the request's at the server; MADE_HERE: the model made it, and nobody can answer it."""
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
        """Whether the client went away. The request must be ended nevertheless."""
        return self._number != MADE_HERE and server.current().is_cancelled(self._number)

    def __del__(self) -> None:
        if self._number >= 0 and self._state is not SenderState.CLOSED:
            # The garbage collector may have come in the middle of anything, where this thread must not send.
            with suppress(RuntimeError):
                threading.Thread(
                    target=_end_dropped, args=(self._number, self._state, self._unused), daemon=True
                ).start()

    def _advance(self, has_response: bool, final: bool) -> None:
        """Note a response, or raise TritonModelException."""
        with _lock:
            self._state = _state_after(self._state, has_response, final, running_model().decoupled)

    def _close(self) -> SenderState:
        """Close it. Returns its state before."""
        with _lock:
            was, self._state = self._state, SenderState.CLOSED
        return was


CLOSED_SENDER = InferenceResponseSender(-2, (), SenderState.CLOSED)
"""That of every request that `execute` answered without a sender."""


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
