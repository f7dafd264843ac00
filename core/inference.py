"""Inference requests and responses: plain data, with nothing of a front end in them.

A request can be sent over a process boundary as it is: strings, numbers, buffers and arrays. What the engine notes on it
while it runs (times, the version that serves it) stands below the line in the class.
Source: spec/http.md section 4, spec/schedulers.md sections 3.2 and 3.3.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from core.errors import ServerError
from core.tensors import Array, Buffer, Shape

Parameter = str | int | bool | float


class InputTensor:
    """One input of a request.

    `data` is either the raw little-endian row-major bytes as they came (BYTES: length-prefixed elements), or an array of
    the datatype's numpy type with as many elements as `shape` says. `array` is set by the engine's validation: what the
    backend reads, in the shape that the model sees.
    """

    __slots__ = ("array", "data", "datatype", "name", "shape")

    array: Array

    def __init__(self, name: str, datatype: str, shape: Shape, data: Buffer | Array) -> None:
        self.name = name
        self.datatype = datatype
        self.shape = shape
        self.data = data


class InferenceRequest:
    """A request for one model. Made by a front end; the engine owns it from `submit` to the final response.

    `model_version` -1 means the policy's latest ready version. `outputs` empty means all. `timeout_us` is microseconds,
    0 for none. `cancelled` may be set from any thread; queued requests that carry it leave the queue unrun.
    """

    __slots__ = (
        "batch_key",
        "batch_size",
        "cancelled",
        "compute_start_ns",
        "correlation_id",
        "enqueue_ns",
        "expires_ns",
        "id",
        "inputs",
        "model_name",
        "model_version",
        "on_response",
        "outputs",
        "parameters",
        "priority",
        "sequence_end",
        "sequence_start",
        "start_ns",
        "timeout_us",
    )

    on_response: Callable[[InferenceResponse], None]

    def __init__(
        self,
        model_name: str,
        inputs: list[InputTensor],
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
        self.model_version = model_version
        self.id = id
        self.inputs = inputs
        self.outputs = outputs
        self.parameters = parameters
        self.priority = priority
        self.timeout_us = timeout_us
        self.correlation_id = correlation_id
        self.sequence_start = sequence_start
        self.sequence_end = sequence_end
        self.cancelled = False
        # --- noted by the engine: monotonic ns, the number of items, and what must be equal within a batch (None: nothing)
        self.batch_size = 1
        self.batch_key: tuple[object, ...] | None = None
        self.start_ns = 0
        self.enqueue_ns = 0
        self.expires_ns = 0
        self.compute_start_ns = 0

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
class ServingPhase:
    """How far the server is, for readiness bodies and the log: `loading`, model `simple`, 3 of 7."""

    name: str
    model: str = ""
    done: int = 0
    total: int = 0
    failures: dict[str, str] = field(default_factory=dict)
