"""InferenceTrace: the trace of a request, which its requests to other models can continue.

Source: docs/spec/python-backend.md section 4.3.
"""

from __future__ import annotations


class InferenceTrace:
    __slots__ = ("_context",)

    def __init__(self, context: str | None = None) -> None:
        self._context = context

    def get_context(self) -> str | None:
        """The context for other tracing libraries, as JSON; None if the request is not traced so."""
        return self._context
