"""The errors of the library, the text of a model's exception, and the check of texts that a model passes.

Source: docs/spec/python-backend.md sections 4.2 and 4.3.
"""

from __future__ import annotations

import os
import traceback


class TritonModelException(Exception):
    """Raised when a call of the library fails. Its text is the reason."""


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
        """Raises TypeError for a message that is not text, and for an unknown code."""
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


def text_of(value: object, what: str) -> str:
    """Return a str, or bytes in UTF-8, as a str. `what` names the argument in errors.

    Triton's library takes bytes wherever it takes a str: elements of `as_numpy()` are bytes.

    Raises TypeError for anything but str and bytes, ValueError for bytes that are not UTF-8.
    """
    if isinstance(value, str):
        return value
    if not isinstance(value, (bytes, bytearray)):
        raise TypeError(f"{what} must be a str, not {type(value).__name__}")
    try:
        return value.decode()
    except UnicodeDecodeError as error:
        raise ValueError(f"{what} must be text, and the bytes {bytes(value)!r} are not UTF-8: {error.reason}") from None


_LIBRARY = os.path.dirname(__file__)
_IMPORTLIB = os.path.join("importlib", "__init__.py")
# Folders of code that may stand between the library and the model.
_BETWEEN = (
    _LIBRARY,
    os.path.join(os.path.dirname(os.__file__), "asyncio"),
    os.path.join(os.path.dirname(os.__file__), "concurrent", "futures"),
)


def exception_text(error: BaseException) -> str:
    """The text of an exception that the model raised, as Triton writes it: type, text, and frames, deepest first.

        TypeError: unsupported operand

        At:
          /models/m/1/model.py(12): scale
          /models/m/1/model.py(31): execute

    The frames above the model and those of the library are left out.
    """
    try:
        message = str(error)
    except Exception as failure:
        message = f"<{type(failure).__name__} when its text was made>"
    text = f"{type(error).__name__}: {message}"
    frames = list(traceback.extract_tb(error.__traceback__))
    while frames and _is_above(frames[0].filename):
        del frames[0]
    if isinstance(error, SyntaxError) and error.filename and error.lineno:
        # Its frames are those of the import; the error itself has the place in the text.
        source = (error.text or "").strip()
        return f"{text}\n\nAt:\n  {error.filename}({error.lineno}): column {error.offset or 0} of {source!r}\n"
    lines = [
        f"  {frame.filename}({frame.lineno}): {frame.name}\n"
        for frame in reversed(frames)
        if os.path.dirname(frame.filename) != _LIBRARY
    ]
    return f"{text}\n\nAt:\n{''.join(lines)}" if lines else text


def _is_above(file: str) -> bool:
    return os.path.dirname(file) in _BETWEEN or file.startswith("<frozen importlib") or file.endswith(_IMPORTLIB)
