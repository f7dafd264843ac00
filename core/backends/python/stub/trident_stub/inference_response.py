"""InferenceResponse: output tensors or an error, and parameters.

Source: docs/spec/python-backend.md section 4.3.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from .errors import TritonError, TritonModelException
from .parameters import Parameters, checked_parameters
from .running_model import running_model
from .tensor import Tensor

_NO_PARAMETERS: Parameters = {}


class InferenceResponse:
    """The response to a request: of this model, or of another one that the model asked.

    The server side encodes it from `output_tensors()`, `error()` and `_parameters`, a dict that is empty if there are
    none; it makes the responses of other models with the plain constructor. With an error, the outputs do not count.
    """

    __slots__ = ("_error", "_outputs", "_parameters")

    def __init__(
        self,
        output_tensors: Sequence[Tensor] = (),
        error: TritonError | None = None,
        parameters: dict[str, Any] | None = None,
    ) -> None:
        """Raises TypeError for other types, and TritonModelException for a tensor that is None."""
        self._outputs = outputs = list(output_tensors)
        for tensor in outputs:
            if tensor.__class__ is not Tensor:
                _check_output(tensor)
        if error is not None and not isinstance(error, TritonError):
            raise TypeError(f"InferenceResponse(): the error must be a TritonError, not {type(error).__name__}")
        self._error = error
        self._parameters = checked_parameters(parameters) if parameters is not None else _NO_PARAMETERS

    def output_tensors(self) -> list[Tensor]:
        return self._outputs

    def has_error(self) -> bool:
        return self._error is not None

    def error(self) -> TritonError | None:
        return self._error

    def parameters(self) -> str:
        """The parameters as JSON."""
        return json.dumps(self._parameters)

    def _with_outputs(self, requested: Sequence[str]) -> InferenceResponse:
        """This response without the outputs that were not requested. Nothing else of it is copied.

        One that the configuration does not have stays: the server says so.
        """
        for tensor in self._outputs:
            if tensor._name not in requested:
                break
        else:
            return self
        known = running_model().outputs
        outputs = [tensor for tensor in self._outputs if tensor._name in requested or tensor._name not in known]
        kept = InferenceResponse(outputs, self._error)
        kept._parameters = self._parameters
        return kept


def _check_output(tensor: object) -> None:
    if tensor is None:
        raise TritonModelException("Output tensor for inference response should not be empty.")
    if not isinstance(tensor, Tensor):
        raise TypeError(f"InferenceResponse(): the outputs must be Tensor objects, not {type(tensor).__name__}")
