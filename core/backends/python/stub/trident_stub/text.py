"""Texts that a model passes to the library: str or, wherever Triton's library takes them, bytes in UTF-8.

Source: docs/spec/python-backend.md section 4.3.
"""

from __future__ import annotations


def text_of(value: object, what: str) -> str:
    """`value` as a str. `what` names the argument in errors.

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
