"""The inference request as it arrived: plain data, which can be sent over a process boundary as it is.

Source: docs/spec/http.md section 4, docs/spec/schedulers.md sections 3.2 and 3.3.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from core.inference.caller import Caller
from core.inference.packed import PackedTensors
from core.inference.request_trace import RequestTrace
from core.inference.tensors import BY_NAME, Array, Shape, array_of

Parameter = str | int | bool | float
# Writable bytes of a size, from which an output is sent without a copy; None if there are none left. Any thread.
OutputMemory = Callable[[int], Array | None]

# Bytes of an array of strings, which counts references, or of strings in wire form.
_MANY_STRINGS: Final = 1 << 16


class InputTensor:
    """One input of a request.

    `data` is either a view of the raw little-endian row-major bytes as they arrived (BYTES: length-prefixed elements),
    or an array of the datatype's numpy type with as many elements as `shape` has. `array` is valid after the engine has
    validated the request: the array that the backend reads, in the shape that the model sees.
    """

    __slots__ = ("_array", "_data", "datatype", "name", "shape")

    def __init__(self, name: str, datatype: str, shape: Shape, data: memoryview | Array) -> None:
        self._array: Array | None = None
        self.name = name
        self.datatype = datatype
        self.shape = shape
        self._data = data

    @property
    def data(self) -> memoryview | Array:
        return self._data

    @property
    def array(self) -> Array:
        array = self._array
        if array is None:  # validation did not need it
            array = self._array = array_of(self._data, BY_NAME[self.datatype].dtype, self.shape)
        return array

    @array.setter
    def array(self, array: Array) -> None:
        self._array = array

    @property
    def nbytes(self) -> int:
        """The size of `data` in bytes."""
        return self.data.nbytes


class PackedInputs(PackedTensors[InputTensor]):
    """All inputs of one request as one run of bytes."""

    __slots__ = ()

    def _cut(self) -> list[InputTensor]:
        content = self.content
        return [
            InputTensor(name, datatype, shape, content[start:end])
            for name, datatype, shape, start, end in self.layout.entries
        ]


Inputs = list[InputTensor] | PackedInputs


class InferenceRequest:
    """A request for one model, made by a front end.

    `model_version` -1 means the latest ready version, a lower number the result of `Engine.hold_version`. `outputs`
    empty means all. `timeout_us` is microseconds, 0 for none. `correlation_id` 0 or "" means that the request belongs
    to no sequence. `arrived_ns` is when the front end had all of its bytes, monotonic nanoseconds of the machine, so
    that it means the same in every process of the server; 0 where nobody noted it. `caller` is who sends nothing more
    before it has the answer, known in the process of its connection alone; otherwise None.
    `trace` is None unless the request is traced, or its client traces it. `output_memory` is None unless large outputs
    can be written where they are sent from; it belongs to the process that executes the request. `needs_regions`: the
    engine has to find regions of shared memory for it (`RegionRequest`).
    """

    __slots__ = (
        "arrived_ns",
        "caller",
        "correlation_id",
        "id",
        "inputs",
        "model_name",
        "model_version",
        "needs_regions",
        "output_memory",
        "outputs",
        "parameters",
        "priority",
        "sequence_end",
        "sequence_start",
        "timeout_us",
        "trace",
    )

    def __init__(
        self,
        model_name: str,
        inputs: Inputs,
        *,
        model_version: int = -1,
        id: str = "",
        outputs: tuple[str, ...] = (),
        parameters: dict[str, Parameter] | None = None,
        priority: int = 0,
        timeout_us: int = 0,
        correlation_id: int | str = 0,
        sequence_start: bool = False,
        sequence_end: bool = False,
    ) -> None:
        self.model_name = model_name
        self.inputs = inputs
        self.model_version = model_version
        self.id = id
        self.outputs = outputs
        self.parameters = parameters
        self.priority = priority
        self.timeout_us = timeout_us
        self.correlation_id = correlation_id
        self.sequence_start = sequence_start
        self.sequence_end = sequence_end
        self.arrived_ns = 0
        self.caller: Caller | None = None
        self.trace: RequestTrace | None = None
        self.output_memory: OutputMemory | None = None
        self.needs_regions = False

    def with_inputs(self, inputs: Inputs, *, model_version: int, id: str) -> InferenceRequest:
        """The same request for other inputs, under another id."""
        # Known requests are made this way. Setting the attributes takes a third of the time of naming them in the call.
        made = InferenceRequest(self.model_name, inputs)
        parameters = self.parameters
        made.model_version = model_version
        made.id = id
        made.outputs = self.outputs
        if parameters is not None:
            made.parameters = parameters.copy()
        made.priority = self.priority
        made.timeout_us = self.timeout_us
        made.correlation_id = self.correlation_id
        made.sequence_start = self.sequence_start
        made.sequence_end = self.sequence_end
        return made

    @property
    def nbytes(self) -> int:
        """The size of the inputs in bytes; strings that arrived as JSON count as references."""
        inputs = self.inputs
        return inputs.layout.size if type(inputs) is PackedInputs else sum([tensor.nbytes for tensor in inputs])

    @property
    def has_many_strings(self) -> bool:
        """Whether an input has so many strings that to pack or unpack them takes milliseconds."""
        return any(tensor.datatype == "BYTES" and tensor.nbytes >= _MANY_STRINGS for tensor in self.inputs)

    @property
    def may_be_passed(self) -> bool:
        """Whether others should be submitted before it. The requests of a sequence stay in their order."""
        return self.has_many_strings and not self.correlation_id

    @property
    def log_prefix(self) -> str:
        """The text that Triton puts before the errors of a request, so that a log line leads to its caller."""
        return f"[request id: {self.id or '<id_unknown>'}] "
