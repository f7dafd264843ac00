"""TritonError, the error that a response carries, and TritonModelException, which the library raises.

Source: docs/spec/python-backend.md section 4.3.
"""

from __future__ import annotations

from .text import text_of


class TritonModelException(Exception):
    """A call of the library failed. Its text is the reason."""


class TritonError:
    """An error of one response: a message for the client and one of Triton's codes.

    The server reads `message()` and `code()` when it encodes a response.
    """

    __slots__ = ("_code", "_message")

    # The numbers of TRITONSERVER_Error_Code.
    UNKNOWN = 0
    INTERNAL = 1
    NOT_FOUND = 2
    INVALID_ARG = 3
    UNAVAILABLE = 4
    UNSUPPORTED = 5
    ALREADY_EXISTS = 6
    CANCELLED = 7

    def __init__(self, message: str | bytes, code: int = INTERNAL) -> None:
        """Raises TypeError for a message that is no text, and for an unknown code."""
        if type(code) is not int or not 0 <= code <= 7:
            raise TypeError("TritonError(): the code must be one of TritonError's, such as TritonError.INTERNAL")
        self._message = text_of(message, "TritonError(): the message")
        self._code = code

    def code(self) -> int:
        return self._code

    def message(self) -> str:
        return self._message

    def __repr__(self) -> str:
        return f"TritonError({self._message!r}, {self._code})"
