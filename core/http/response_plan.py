"""How the caller of an infer request wants its response.

Source: spec/http.md section 4 (`outputs[].parameters`, `binary_data_output`).
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ResponsePlan:
    """`binary` is for outputs that are not listed; `outputs` maps a listed one to (binary, classification).

    `outputs` is None if the request listed none; a classification of 0 is none.
    """

    binary: bool = False
    outputs: dict[str, tuple[bool, int]] | None = None
