"""How the caller of an infer request wants its response.

Source: docs/spec/http.md section 4 (`outputs[].parameters`, `binary_data_output`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from core.inference.layout import TensorLayout

if TYPE_CHECKING:
    from core.http.v2.response_text import ResponseText

_TEXTS_AT_MOST = 64
_NOT_LISTED = (False, 0)

# The version that answered, and the outputs.
TextKey = tuple[int, TensorLayout]


@dataclass(frozen=True, slots=True)
class ResponsePlan:
    """`binary` is for outputs that are not listed; `outputs` maps a listed one to (binary, classification).

    `outputs` is None if the request listed none; a classification of 0 is none. `texts` are those of the last responses
    to such requests, None where there was nothing to be had by one; the plan of a single request has no place for any.
    """

    binary: bool = False
    outputs: dict[str, tuple[bool, int]] | None = None
    texts: dict[TextKey, ResponseText | None] | None = field(default=None, compare=False)

    def form_of(self, name: str) -> tuple[bool, int]:
        """Whether an output is to be bytes, and how many classes of it are wanted."""
        return (self.binary, 0) if self.outputs is None else self.outputs.get(name, _NOT_LISTED)

    def remember(self, key: TextKey, text: ResponseText | None) -> None:
        if self.texts is not None:
            if len(self.texts) >= _TEXTS_AT_MOST:
                self.texts.clear()
            self.texts[key] = text
