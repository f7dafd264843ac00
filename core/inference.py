"""Inference requests and responses: plain data, with nothing of a front end in them.

A request can be sent over a process boundary as it is: strings, numbers, buffers and arrays. What the engine notes on
it while it runs (times, the number of items) stands below the line in the class.
Source: spec/http.md section 4, spec/schedulers.md sections 3.2 and 3.3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from core.errors import ServerError
from core.tensors import Array, Buffer, Shape, wire_bytes

Parameter = str | int | bool | float


class InputTensor:
    """One input of a request.

    `data` is either a view of the raw little-endian row-major bytes as they came (BYTES: length-prefixed elements), or
    an array of the datatype's numpy type with as many elements as `shape` says. `array` is set by the engine's
    validation: what the backend reads, in the shape that the model sees.
    """

    __slots__ = ("array", "data", "datatype", "name", "shape")

    array: Array

    def __init__(self, name: str, datatype: str, shape: Shape, data: memoryview | Array) -> None:
        self.name = name
        self.datatype = datatype
        self.shape = shape
        self.data = data


class InferenceRequest:
    """A request for one model. Made by a front end; the engine owns it from `submit` to the final response.

    `model_version` -1 means the policy's latest ready version. `outputs` empty means all. `timeout_us` is microseconds,
    0 for none. `cancelled` may be set from any thread; queued requests that carry it leave the queue unrun.
    """

    # Defaults stand on the class: most requests set few of these, and setting twenty costs 2 µs a request.
    parameters: dict[str, Parameter] | None = None
    correlation_id: int | str = 0
    sequence_start: bool = False
    sequence_end: bool = False
    cancelled: bool = False
    # --- noted by the engine: monotonic ns, the number of items, what must be equal within a batch (None: nothing)
    on_response: Callable[[InferenceResponse], None]
    batch_size: int = 1
    batch_key: tuple[object, ...] | None = None
    start_ns: int = 0
    enqueue_ns: int = 0
    expires_ns: int = 0
    compute_start_ns: int = 0
    # --- where front end and engine are two processes: its number between them, and what sends the responses that were
    # collected, called when all of a batch were given
    number: int = 0
    flush: Callable[[], None] | None = None

    def __init__(
        self,
        model_name: str,
        inputs: list[InputTensor],
        *,
        model_version: int = -1,
        id: str = "",
        outputs: tuple[str, ...] = (),
        priority: int = 0,
        timeout_us: int = 0,
    ) -> None:
        self.model_name = model_name
        self.inputs = inputs
        self.model_version = model_version
        self.id = id
        self.outputs = outputs
        self.priority = priority
        self.timeout_us = timeout_us

    @property
    def log_prefix(self) -> str:
        """What Triton puts before the errors of a request, so that a log line finds its caller."""
        return f"[request id: {self.id or '<id_unknown>'}] "


class OutputTensor:
    """One output of a response. `array` is C-contiguous, in the shape that the client sees."""

    __slots__ = ("array", "datatype", "name", "shape")

    def __init__(self, name: str, datatype: str, shape: Shape, array: Array) -> None:
        self.name = name
        self.datatype = datatype
        self.shape = shape
        self.array = array

    def content(self) -> Buffer:
        """The elements as the v2 protocol sends them."""
        return wire_bytes(self.array)


class InferenceResponse:
    """One response to a request: outputs or an error. `final` is false while more may follow (decoupled models)."""

    __slots__ = ("error", "final", "id", "model_name", "model_version", "outputs", "parameters")

    def __init__(
        self,
        model_name: str,
        model_version: int,
        outputs: list[OutputTensor],
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


OnResponse = Callable[[InferenceResponse], None]


@dataclass(frozen=True, slots=True, kw_only=True)
class DownloadPhase:
    """How far the downloads of models are that go on now. `seconds` since the first of them began."""

    bytes_done: int
    bytes_total: int
    objects_done: int
    objects_total: int
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class ServingPhase:
    """How far the server is, for readiness bodies and the log: `loading`, model `simple`, 3 of 7."""

    name: str
    model: str = ""
    done: int = 0
    total: int = 0
    failures: dict[str, str] = field(default_factory=dict)
    download: DownloadPhase | None = None
