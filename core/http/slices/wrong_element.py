"""An error for which it does not matter which part of an array was read."""

from __future__ import annotations

from core.errors import InvalidRequest


class WrongElement(InvalidRequest):
    """An element of another type than the tensor's. Whatever part of an array shows one, the whole array has it."""
