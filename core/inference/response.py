"""The inference response: plain data, with outputs or an error.

Source: docs/spec/http.md section 6.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

import numpy as np

from core.errors import ServerError
from core.inference.packed import PackedTensors
from core.inference.request import InferenceRequest, Parameter
from core.inference.tensors import (
    BY_NAME,
    BYTES,
    Array,
    Buffer,
    Shape,
    array_of,
    bytes_array,
    element_count,
    unpack_bytes,
    wire_bytes,
)
from core.inference.times import InferenceTimes

# The parameters of an ensemble's response outside of sequences. They are written once for all.
NO_SEQUENCE: Final[dict[str, Parameter]] = {"sequence_id": 0, "sequence_start": False, "sequence_end": False}
# What an output has that makes its array later, or never.
NO_ARRAY: Final[Array] = np.empty(0, np.uint8)


class OutputTensor:
    """One output of a response. `array` is C-contiguous, in the shape that the client sees."""

    __slots__ = ("_array", "datatype", "name", "shape")

    def __init__(self, name: str, datatype: str, shape: Shape, array: Array) -> None:
        self.name = name
        self.datatype = datatype
        self.shape = shape
        self._array = array

    @property
    def array(self) -> Array:
        return self._array

    @property
    def nbytes(self) -> int:
        """The size in bytes; strings that are not in wire form count as references."""
        return self._array.nbytes

    def content(self) -> Buffer:
        """The elements as the v2 protocol sends them."""
        return wire_bytes(self._array)


class ReceivedOutput(OutputTensor):
    """An output that arrived as bytes. Its array is made on each use: an output that is only sent on needs none."""

    __slots__ = ("_content",)

    def __init__(self, name: str, datatype: str, shape: Shape, content: memoryview) -> None:
        super().__init__(name, datatype, shape, NO_ARRAY)
        self._content = content

    @property
    def array(self) -> Array:
        datatype = BY_NAME[self.datatype]
        if datatype is BYTES:
            count = element_count(self.shape)
            return bytes_array(unpack_bytes(self._content, count, name=self.name, model=""), self.shape)
        return array_of(self._content, datatype.dtype, self.shape)

    @property
    def nbytes(self) -> int:
        return len(self._content)

    def content(self) -> memoryview:
        return self._content


class PackedOutputs(PackedTensors[OutputTensor]):
    """All outputs of one response as one run of bytes, as the v2 protocol sends them."""

    __slots__ = ()

    def _cut(self) -> list[OutputTensor]:
        content = self.content
        return [
            ReceivedOutput(name, datatype, shape, content[start:end])
            for name, datatype, shape, start, end in self.layout.entries
        ]


# The outputs that a backend returns for one request. A list of ReceivedOutput is a list of outputs, too.
Outputs = list[OutputTensor] | PackedOutputs


class InferenceResponse:
    """One response to a request: outputs or an error. `final` is false while more may follow (decoupled models).

    `times` is None unless the engine was asked to note them; a response with an error has none. `trace` is the number
    of the request's trace, 0 unless it is traced.
    """

    __slots__ = ("error", "final", "id", "model_name", "model_version", "outputs", "parameters", "times", "trace")

    def __init__(
        self,
        model_name: str,
        model_version: int,
        outputs: Outputs,
        *,
        id: str = "",
        parameters: dict[str, Parameter] | None = None,
        error: ServerError | None = None,
        final: bool = True,
    ) -> None:
        self.model_name = model_name
        self.model_version = model_version
        self.outputs = outputs
        self.id = id
        self.parameters = parameters
        self.error = error
        self.final = final
        self.times: InferenceTimes | None = None
        self.trace = 0

    @property
    def nbytes(self) -> int:
        """The size of the outputs in bytes, as theirs is counted."""
        outputs = self.outputs
        return outputs.layout.size if type(outputs) is PackedOutputs else sum([output.nbytes for output in outputs])

    @classmethod
    def failed(cls, origin: InferenceRequest | InferenceResponse, error: ServerError) -> InferenceResponse:
        """The final response with `error`, to the request `origin` or in place of the response `origin`."""
        return cls(origin.model_name, origin.model_version, [], id=origin.id, error=error)


OnResponse = Callable[[InferenceResponse], None]
# Gives the whole response to a request, or None: then it has to be submitted.
AnswerAtHand = Callable[[InferenceRequest], InferenceResponse | None]
