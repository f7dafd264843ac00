"""InferenceTrace: the trace of a request, which its requests to other models can continue.

Source: docs/spec/python-backend.md section 4.3.
"""

from __future__ import annotations

from typing import Any


class InferenceTrace:
    """`number` is the server's, 0 for a request that is not traced."""

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
