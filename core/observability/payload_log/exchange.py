"""A request and its responses: copies of their tensors while the engine works, and later the document of the log.

The copies are made on the threads that submit and answer, everything else on the thread that writes.
"""

from __future__ import annotations

import time
from base64 import b64encode
from collections.abc import Collection
from functools import lru_cache
from typing import Any, Final, NamedTuple

import numpy as np

from trident.core.errors import InvalidRequest, readable
from trident.core.inference.request import InferenceRequest, Inputs, InputTensor, PackedInputs, Parameter
from trident.core.inference.response import (
    InferenceResponse,
    Outputs,
    OutputTensor,
    PackedOutputs,
    ReceivedOutput,
    RegionInput,
    RegionRequest,
)
from trident.core.inference.tensors import BY_NAME, Array, Shape, TensorLayout, element_count, pack_bytes, unpack_bytes

SIZE, SHARED_MEMORY, REDACTED, UNREADABLE = "size", "shared_memory", "redacted", "unreadable"
"""Why a tensor is in the log without its elements."""

# The memory of a message beside its tensors.
OVERHEAD: Final = 1024
# Elements of tensors up to this size are numbers that a person can read; writing them takes ten times as long.
_MOST_READABLE: Final = 4096
# JSON has no form for them in the v2 protocol.
_NOT_JSON: Final = frozenset({"FP16", "BF16"})


class KeptTensor(NamedTuple):
    """`content` is the elements as the v2 protocol sends them, or an array of strings; None if they are omitted."""

    name: str
    datatype: str
    shape: Shape
    content: bytes | Array | None
    left_out: str = ""


# All tensors of a message in one run, or each by itself.
Kept = tuple[TensorLayout, bytes] | list[KeptTensor]


def _size(content: memoryview | Array) -> int:
    if isinstance(content, np.ndarray) and content.dtype.kind == "O":
        return sum(map(len, content.reshape(-1).tolist()))
    return content.nbytes


def keep(tensors: Inputs | Outputs, most: int, in_regions: Collection[str] = ()) -> tuple[Kept, int]:
    """Copies of `tensors`, and their size in bytes. Above `most` bytes, and in shared memory, elements are omitted."""
    if isinstance(tensors, (PackedInputs, PackedOutputs)) and not in_regions:
        size = tensors.layout.size
        if size <= most:
            return (tensors.layout, bytes(tensors.content)), size
        return [
            KeptTensor(name, datatype, shape, None, SIZE) for name, datatype, shape, *_ in tensors.layout.entries
        ], 0
    contents: list[memoryview | Array | None] = []
    listed: list[InputTensor | OutputTensor] = list(tensors)
    for tensor in listed:
        if isinstance(tensor, RegionInput) or tensor.name in in_regions:
            contents.append(None)
        elif isinstance(tensor, ReceivedOutput):
            contents.append(tensor.content())
        else:
            contents.append(tensor.data if isinstance(tensor, InputTensor) else tensor.array)
    size = sum(_size(content) for content in contents if content is not None)
    kept = []
    for tensor, content in zip(listed, contents, strict=True):
        copied: bytes | Array | None = None
        why = SHARED_MEMORY
        if content is not None and size > most:
            why = SIZE
        elif isinstance(content, np.ndarray) and content.dtype == np.object_:
            copied, why = content.copy(), ""
        elif content is not None:
            copied, why = content.tobytes(), ""
        kept.append(KeptTensor(tensor.name, tensor.datatype, tensor.shape, copied, why))
    return kept, size if size <= most else 0


def _documents(kept: Kept, redacted: Collection[str]) -> list[dict[str, Any]]:
    if isinstance(kept, tuple):
        layout, run = kept
        kept = [
            KeptTensor(name, datatype, shape, run[start:end]) for name, datatype, shape, start, end in layout.entries
        ]
    found = []
    for name, datatype, shape, content, left_out in kept:
        entry: dict[str, Any] = {"name": name, "datatype": datatype, "shape": shape}
        if content is None or name.lower() in redacted:
            entry["left_out"] = left_out if content is None else REDACTED
        else:
            try:
                entry |= _elements(content, datatype, shape)
            except (TypeError, AttributeError):  # a model's strings are something else, which its caller was told
                entry["left_out"] = UNREADABLE
        found.append(entry)
    return found


def _elements(content: bytes | Array, datatype: str, shape: Shape) -> dict[str, Any]:
    """`data` as in a v2 request; where JSON would not have the same elements, or very many, `base64` of their bytes."""
    if not isinstance(content, bytes):
        content = bytes(pack_bytes(content.reshape(-1).tolist()))
    try:
        if datatype == "BYTES":
            strings = unpack_bytes(content, element_count(shape), name="", model="")
            return {"data": [each.decode() for each in strings]}
        if len(content) <= _MOST_READABLE and datatype not in _NOT_JSON:
            numbers = np.frombuffer(content, BY_NAME[datatype].dtype)
            is_finite = numbers.dtype.kind != "f" or np.isfinite(numbers).all()
            if is_finite and (datatype != "BOOL" or max(content, default=0) <= 1):
                return {"data": numbers}
    except (ValueError, KeyError, InvalidRequest):  # not text; or the request is refused for its sizes or datatype
        pass
    return {"base64": b64encode(content).decode()}


class Exchange:
    """`size` is what it takes in memory. `responses` are the kept ones, `responses_left_out` counts the others. One
    that `is_lost` gets no more responses."""

    __slots__ = (
        "_began_ns",
        "_id",
        "_inputs",
        "_lasted_ns",
        "_outputs",
        "_parameters",
        "_placed",
        "_responses",
        "_responses_left_out",
        "_room",
        "_time_ns",
        "is_lost",
        "model",
        "size",
        "version",
    )

    def __init__(self, request: InferenceRequest, model: str, version: int, most: int) -> None:
        """`most`: bytes of tensors that are kept of the request, and as many of its responses."""
        self.model = model
        self.version = version
        self._time_ns = time.time_ns()
        self._began_ns = time.monotonic_ns()
        self._lasted_ns = 0
        self._id = request.id
        self._outputs = request.outputs
        self._placed = tuple(request.output_regions) if isinstance(request, RegionRequest) else ()
        parameters: dict[str, Parameter] = dict(request.parameters or {})
        if request.correlation_id:
            parameters["sequence_id"] = request.correlation_id
            parameters["sequence_start"] = request.sequence_start
            parameters["sequence_end"] = request.sequence_end
        if request.priority:
            parameters["priority"] = request.priority
        if request.timeout_us:
            parameters["timeout"] = request.timeout_us
        self._parameters = parameters
        self._inputs, size = keep(request.inputs, most)
        self.size = size + OVERHEAD
        self._responses: list[tuple[Kept, dict[str, Parameter] | None, str]] = []
        self._responses_left_out = 0
        self._room = most
        self.is_lost = False

    def add(self, response: InferenceResponse) -> int:
        """Keep a response. Returns how many bytes it takes."""
        if response.final:
            self._lasted_ns = time.monotonic_ns() - self._began_ns
        if response.error is None and not response.outputs and self._responses:
            return 0  # only the end of the responses
        if self._room <= 0 and self._responses:
            self._responses_left_out += 1
            return 0
        kept, size = keep(response.outputs, max(0, self._room), self._placed)
        error = readable(response.error.message) if response.error is not None else ""
        self._responses.append((kept, response.parameters, error))
        # A stream of many small responses ends here, too.
        self._room -= size + OVERHEAD // 4 if not response.final else 0
        self.size += size + OVERHEAD
        return size + OVERHEAD

    @property
    def time(self) -> str:
        """When the request came to its model, in UTC, as RFC 3339 has it."""
        return utc(self._time_ns)

    def request(self, redacted: Collection[str]) -> dict[str, Any]:
        """As a request of the v2 protocol. `redacted` are names in lower case."""
        found: dict[str, Any] = {"id": self._id} if self._id else {}
        found["inputs"] = _documents(self._inputs, redacted)
        if self._outputs:
            found["outputs"] = [{"name": name} for name in self._outputs]
        return found | _parameters(self._parameters, redacted)

    def responses(self, redacted: Collection[str]) -> list[dict[str, Any]]:
        """As the v2 protocol has them: each with outputs, or with an error."""
        found: list[dict[str, Any]] = []
        for kept, parameters, error in self._responses:
            content = {"error": error} if error else {"outputs": _documents(kept, redacted)}
            found.append({**content, **_parameters(parameters or {}, redacted)})
        return found

    def document(self, redacted: Collection[str]) -> dict[str, Any]:
        found: dict[str, Any] = {
            "time": self.time,
            "duration_us": self._lasted_ns // 1000,
            "model_name": self.model,
            "model_version": str(self.version),
            "request": self.request(redacted),
            "responses": self.responses(redacted),
        }
        if self._responses_left_out:
            found["responses_left_out"] = self._responses_left_out
        return found


def _parameters(parameters: dict[str, Parameter], redacted: Collection[str]) -> dict[str, Any]:
    if not parameters:
        return {}
    hidden = sorted(name for name in parameters if name.lower() in redacted)
    found: dict[str, Any] = {"parameters": {name: parameters[name] for name in parameters if name not in hidden}}
    return found | {"redacted_parameters": hidden} if hidden else found


@lru_cache(16)
def _second(seconds: int) -> str:
    return time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(seconds))


def utc(time_ns: int) -> str:
    """A time of the wall clock as RFC 3339 has it, with microseconds."""
    seconds, rest = divmod(time_ns, 1_000_000_000)
    return f"{_second(seconds)}.{rest // 1000:06}Z"
