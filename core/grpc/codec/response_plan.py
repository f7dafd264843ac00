"""What the caller of an infer request wants of its response."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class ResponsePlan:
    """`classes` maps an output to the number of classes wanted of it; None if no output is to be classified.

    `model_version` is the text that the request gave, "" for none: errors in a stream repeat it. `empty_final` asks
    for a message at the end of a stream of responses, where that is told apart from the last one.
    """

    classes: Mapping[str, int] | None = None
    model_version: str = ""
    empty_final: bool = False
