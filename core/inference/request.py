"""The inference request as it arrived: plain data, which can be sent over a process boundary as it is.

Source: docs/spec/http.md section 4, docs/spec/schedulers.md sections 3.2 and 3.3.
"""

from __future__ import annotations

import json
from collections.abc import Iterable
from enum import IntEnum
from typing import Final, NamedTuple

from trident.core.errors import InvalidRequest, Unsupported
from trident.core.inference.tensors import BY_NAME, Array, PackedTensors, Shape, array_of

LATEST: Final = -1
_LARGEST: Final = 2**63 - 1
_DIGITS_OF_LARGEST: Final = 19


def version_number(text: str) -> int:
    """The version that `text` names, LATEST for empty text. Raises InvalidRequest with Triton's texts."""
    if not text:
        return LATEST
    # The length is checked first: converting a very long text takes long, and a client could send many.
    negative = text.startswith("-")
    digits = text.removeprefix("-")
    significant = digits.lstrip("0")
    if (
        not (digits.isascii() and digits.isdigit())
        or len(significant) > _DIGITS_OF_LARGEST
        or int(significant or "0") > _LARGEST + negative
    ):
        raise InvalidRequest(
            f"failed to get model version from specified version string '{text}' (details: stol), "
            "version should be an integral value > 0"
        )
    if negative and significant:
        raise InvalidRequest(f"invalid model version specified '{text}' , version should be an integral value > 0")
    return int(significant or "0")


_LONGEST_ID: Final = 128


def check_correlation_id(correlation_id: int | str, prefix: str) -> None:
    """Raise Unsupported for a text that is too long, and InvalidRequest, whose text begins with `prefix`, for a number
    beyond 64 bits."""
    if isinstance(correlation_id, str):
        if len(correlation_id.encode("utf-8", "surrogatepass")) > _LONGEST_ID:
            raise Unsupported(f"string correlation ID cannot be longer than {_LONGEST_ID} characters")
    elif not 0 <= correlation_id < 1 << 64:
        raise InvalidRequest(f"{prefix}the correlation ID {correlation_id} is not an unsigned 64-bit integer")


# Source: docs/spec/trace-and-log.md sections 2 and 4.


class RequestTrace(NamedTuple):
    """`number` identifies a trace in the engine: the request's own if `has_begun`, otherwise its parent's; 0 if the
    request only carries the W3C context of its client. `traceparent` and `tracestate` are that context, and later that
    of the request's own trace, "" without one.
    """

    number: int = 0
    has_begun: bool = False
    traceparent: str = ""
    tracestate: str = ""

    def context_json(self) -> str | None:
        """The W3C context as Triton gives it to models; None without one."""
        if not self.traceparent:
            return None
        context = {"traceparent": self.traceparent}
        if self.tracestate:
            context["tracestate"] = self.tracestate
        return json.dumps(context, separators=(",", ":"))

    def child(self) -> RequestTrace:
        return RequestTrace(self.number)


# Source: docs/spec/schedulers.md section 3.2, "Why a batch was closed".


class CloseReason(IntEnum):
    """The values are consecutive and begin at 0, so that they index counters."""

    IDLE = 0
    """An instance was free, and there was nothing to wait for."""
    FULL = 1
    """The batch had the maximum size, or the next request did not fit."""
    PREFERRED = 2
    """The batch had a preferred size, or the next request would have exceeded all of them."""
    DELAY = 3
    """The queue delay of its oldest request was over."""
    DEADLINE = 4
    """One of its requests would have outlived its queue timeout."""
    PRIORITY = 5
    """It reached its size, and newer requests of a higher priority level displaced one that still waits."""
    SHAPE = 6
    """The next request has other shapes or inputs, and cannot be in the same batch."""
    SEQUENCE = 7
    """The sequence batcher closed it."""

    @property
    def label(self) -> str:
        return self.name.lower()


# In Python 3.11 a member costs a function call when it is looked up on its class.
IDLE: Final = CloseReason.IDLE
FULL: Final = CloseReason.FULL
PREFERRED: Final = CloseReason.PREFERRED
DELAY: Final = CloseReason.DELAY
DEADLINE: Final = CloseReason.DEADLINE
PRIORITY: Final = CloseReason.PRIORITY
SHAPE: Final = CloseReason.SHAPE
SEQUENCE: Final = CloseReason.SEQUENCE


# Source: docs/spec/statistics-and-metrics.md section A (`queue`, `compute_input`, `compute_infer`, `compute_output`).


ASKS = "timing"
"""The request parameter by which a client asks for the times as parameters of its response."""


class InferenceTimes(NamedTuple):
    """Nanoseconds. `batch_size` is the number of items in the execution, those of other requests included.

    `close_reason` is why the batch was closed; None for a request that was in no batch of its model.
    """

    queue_ns: int
    compute_input_ns: int
    compute_infer_ns: int
    compute_output_ns: int
    batch_size: int
    close_reason: CloseReason | None = None

    @classmethod
    def of(cls, numbers: Iterable[int], close_reason: CloseReason | None) -> InferenceTimes:
        """The times with those `numbers`. Raises TypeError unless there are five."""
        return cls._make((*numbers, close_reason))

    @property
    def numbers(self) -> tuple[int, ...]:
        return self[:5]

    @classmethod
    def longest(cls, found: Iterable[InferenceTimes | None]) -> InferenceTimes | None:
        """The longest of each time and the largest batch, of requests that belong together; None without any times.

        The reason is that of the request which was queued for the longest time.
        """
        known = [times for times in found if times is not None]
        if not known:
            return None
        last = max(known, key=lambda times: times.queue_ns)
        return cls.of(map(max, zip(*[times.numbers for times in known], strict=True)), last.close_reason)

    def parameters(self) -> dict[str, Parameter]:
        """The times in whole microseconds and the reason, as parameters of a response."""
        parameters: dict[str, Parameter] = {
            "timing_queue_us": self.queue_ns // 1000,
            "timing_compute_input_us": self.compute_input_ns // 1000,
            "timing_compute_infer_us": self.compute_infer_ns // 1000,
            "timing_compute_output_us": self.compute_output_ns // 1000,
            "timing_batch_size": self.batch_size,
        }
        if self.close_reason is not None:
            parameters["timing_batch_close"] = self.close_reason.label
        return parameters


def asks_for_times(request: InferenceRequest) -> bool:
    """Return True if the client wants the times as parameters. Any value other than true belongs to the model."""
    return request.parameters is not None and request.parameters.get(ASKS) is True


Parameter = str | int | bool | float

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

    def copy_to(self, array: Array) -> None:
        """Copy the tensor into `array`, which has the shape of `array` here. Raises ValueError if it does not fit."""
        array[...] = self.array

    def forget_array(self) -> None:
        """Drop the array; it is made from `data` when next needed."""
        self._array = None

    @property
    def nbytes(self) -> int:
        return self._data.nbytes


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
    that it means the same in every process of the server; 0 if unknown.
    `trace` is None unless the request is traced, or its client traces it. `needs_regions`: the engine has to find
    regions of shared memory for it (`RegionRequest`). `wants_arrays`: its outputs are read as arrays in this process,
    so packing them for a connection would be wasted.
    """

    __slots__ = (
        "_nbytes",
        "arrived_ns",
        "correlation_id",
        "id",
        "inputs",
        "model_name",
        "model_version",
        "needs_regions",
        "outputs",
        "parameters",
        "priority",
        "sequence_end",
        "sequence_start",
        "timeout_us",
        "trace",
        "wants_arrays",
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
        self.trace: RequestTrace | None = None
        self.needs_regions = False
        self.wants_arrays = False
        self._nbytes = -1

    def with_inputs(self, inputs: Inputs, *, model_version: int, id: str) -> InferenceRequest:
        # Remembered requests are made here. Setting attributes takes a third of the time of keyword arguments.
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
        """Total size of the inputs in bytes, as first asked; strings that arrived as JSON count as references."""
        size = self._nbytes
        if size < 0:
            inputs = self.inputs
            size = inputs.layout.size if type(inputs) is PackedInputs else sum([tensor.nbytes for tensor in inputs])
            self._nbytes = size
        return size

    @property
    def has_many_strings(self) -> bool:
        """True if packing or unpacking the strings of an input takes milliseconds."""
        return any(tensor.datatype == "BYTES" and tensor.nbytes >= _MANY_STRINGS for tensor in self.inputs)

    @property
    def may_be_passed(self) -> bool:
        """True if other requests may be submitted before it. The requests of a sequence stay in order."""
        return self.has_many_strings and not self.correlation_id

    @property
    def log_prefix(self) -> str:
        """The text that Triton puts before the errors of a request, so that a log line leads to its caller."""
        return f"[request id: {self.id or '<id_unknown>'}] "
