"""The place in a sequence of a request for an ensemble, which a step's response may change for the steps after it.

Each response of an ensemble names it, as in Triton.

Source: docs/spec/schedulers.md section 3.5.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

from core.errors import InvalidRequest
from core.inference.request import InferenceRequest, Parameter
from core.inference.response import NO_SEQUENCE

_NAMES = ("sequence_id", "sequence_start", "sequence_end")


class SequencePart(NamedTuple):
    """As in a request."""

    correlation_id: int | str
    start: bool
    end: bool

    def parameters(self) -> dict[str, Parameter]:
        """The place as parameters of a response: a large number as the signed one with the same bits, as in Triton."""
        id = self.correlation_id
        if not (id or self.start or self.end):
            return NO_SEQUENCE
        if type(id) is int and id >= 1 << 63:
            id -= 1 << 64
        return {"sequence_id": id, "sequence_start": self.start, "sequence_end": self.end}


def place_of(request: InferenceRequest) -> SequencePart:
    return SequencePart(request.correlation_id, request.sequence_start, request.sequence_end)


def sequence_part(parameters: Mapping[str, Parameter], request: InferenceRequest) -> SequencePart | None:
    """The place that the parameters of a response to `request` give; None if they give none. Raises InvalidRequest."""
    if not any(name in parameters for name in _NAMES):
        return None
    correlation_id = parameters.get("sequence_id", request.correlation_id)
    if type(correlation_id) not in (int, str):
        raise InvalidRequest(
            "expected parameter 'sequence_id' to be TRITONSERVER_PARAMETER_INT or TRITONSERVER_PARAMETER_STRING"
        )
    flags = []
    for name in _NAMES[1:]:
        flag = parameters.get(name, False)
        if type(flag) is not bool:
            raise InvalidRequest(f"expect parameter '{name}' to be TRITONSERVER_PARAMETER_BOOL")
        flags.append(flag)
    return SequencePart(correlation_id, *flags)  # type: ignore[arg-type]
