"""How the caller of an infer request wants its response.

Source: spec/http.md section 4 (`outputs[].parameters`, `binary_data_output`).
"""

from __future__ import annotations

from dataclasses import dataclass, field

from core.tensor_layout import TensorLayout
from core.tensors import Buffer

_TEXTS_AT_MOST = 64

# The version that answered, the request's id, and the outputs.
TextKey = tuple[int, str, TensorLayout]


@dataclass(frozen=True, slots=True)
class ResponsePlan:
    """`binary` is for outputs that are not listed; `outputs` maps a listed one to (binary, classification).

    `outputs` is None if the request listed none; a classification of 0 is none. `texts` are the JSON parts of responses
    whose outputs all went as bytes; None where the plan is for one request only.
    """

    binary: bool = False
    outputs: dict[str, tuple[bool, int]] | None = None
    texts: dict[TextKey, Buffer] | None = field(default=None, compare=False)

    def remember(self, key: TextKey, text: Buffer) -> None:
        if self.texts is not None:
            if len(self.texts) >= _TEXTS_AT_MOST:
                self.texts.clear()
            self.texts[key] = text
