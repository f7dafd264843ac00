"""Batches as frames: requests to the process of a Python model, its outcomes, and the check of its outputs.

Source: docs/spec/python-backend.md section 4.2.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any, Final, NamedTuple

import numpy as np

from trident.core.backends.python.stub.trident_stub import wire
from trident.core.backends.python.stub.trident_stub.wire import (
    EMPTY,
    FAILED,
    FINAL,
    RECORD,
    WAITS,
    Description,
    KnownLayouts,
    MessageLayout,
    Record,
    Records,
    ViewOf,
    check_end,
    from_json,
    read_only_record,
    read_record,
    tensors_of,
    to_json,
)
from trident.core.backends.tensors import client_shape
from trident.core.config.spec import ModelSpec
from trident.core.errors import BackendFailed, ErrorCode, InvalidRequest, ServerError, readable
from trident.core.inference.pending_request import AGAIN, LATER, DeferredOutcome
from trident.core.inference.request import InferenceRequest, InputTensor, PackedInputs, Parameter
from trident.core.inference.response import Outputs, OutputTensor, PackedOutputs, ReceivedOutput, RegionInput
from trident.core.inference.tensors import BYTES, Buffer, Shape, TensorLayout, layout_of, wire_bytes
from trident.core.interprocess.frames import LARGE, PADDING, BadFrame

_log = logging.getLogger("trident.backends.python")

SEQUENCE_START, SEQUENCE_END = 1, 2


def write_batch(
    records: Records,
    first: int,
    requests: Sequence[InferenceRequest],
    model: str,
    names: tuple[str, ...],
    reshaped: frozenset[str],
) -> dict[int, ServerError]:
    """Write the records of a batch whose requests are numbered from `first` on.

    `names` are the outputs of the model, `reshaped` the inputs that have another shape there. Inputs keep their bytes
    as they arrived. A request whose inputs cannot be read, or are too large, fails alone: the errors of those that are
    not in the records are returned by index.
    """
    refused: dict[int, ServerError] = {}
    numbers, parts, packs = records.numbers, records.parts, not reshaped
    number = first
    for index, request in enumerate(requests):
        inputs = request.inputs
        try:
            if packs and type(inputs) is PackedInputs and inputs.layout.size < LARGE:
                layout = inputs.layout
                requested = request.outputs or names
                found = numbers.find((layout, requested))
                if found is None:
                    found = numbers.add((layout, requested), [each[:3] for each in layout.entries], requested)
                if found[1]:
                    fields = request_fields(request)
                    size = layout.size
                    room = records.room - (size + len(fields) + 96)
                    if room > 0:
                        records.room = room
                        records.count += 1
                        parts.append(RECORD.pack(number, found[0], size, 0, len(fields), 0, 0))
                        if fields:
                            parts += (fields, PADDING[len(fields) & 15])
                        parts.append(inputs.content)
                        if size & 15:
                            parts.append(PADDING[size & 15])
                        number += 1
                        continue
            shapes = [each.array.shape if each.name in reshaped else each.shape for each in inputs]
            tensors = tuple([(each.name, each.datatype, shape) for each, shape in zip(inputs, shapes, strict=True)])
            contents = [_content(each) for each in inputs]
            records.add_tensors(number, tensors, contents, request.outputs or names, fields=request_fields(request))
            number += 1
        except ServerError as error:
            refused[index] = error
        except ValueError as error:  # TooLarge, or an integer that JSON cannot have
            refused[index] = InvalidRequest(f"the request cannot be sent to the model: {error}", model=model)
        except Exception as error:
            _log.exception("a request for model '%s' could not be sent to its process", model)
            refused[index] = BackendFailed(str(error), model=model)
    return refused


def _content(tensor: InputTensor) -> Buffer:
    content = tensor.data
    if type(tensor) is RegionInput and tensor.datatype == BYTES.name:
        _ = tensor.array  # checks the strings: those that arrived with a request were checked then
    return content if type(content) is memoryview else wire_bytes(np.ascontiguousarray(content))


def request_fields(request: InferenceRequest) -> bytes:
    """The JSON object of what few requests have; empty for a request without any of it."""
    if not (
        request.id
        or request.parameters
        or request.correlation_id
        or request.timeout_us
        or request.sequence_start
        or request.sequence_end
        or request.trace
    ):
        return b""
    flags = (SEQUENCE_START if request.sequence_start else 0) | (SEQUENCE_END if request.sequence_end else 0)
    given: list[tuple[str, object]] = [
        ("id", request.id),
        ("parameters", request.parameters),
        ("correlation_id", request.correlation_id),
        ("timeout", request.timeout_us),
        ("flags", flags),
    ]
    fields = {name: value for name, value in given if value}
    trace = request.trace
    if trace is not None:
        fields["trace"] = [trace.number, trace.context_json()]
    return to_json(fields)


# By the numbers of TritonError.
_CODES: Final = tuple(ErrorCode)


# Numbers of rows that say something else.
ANY: Final = -1
UNEQUAL: Final = -2


class Outcome(NamedTuple):
    """Outcome of a request: outputs, an error, or neither. `waits`: its sender waits for credit."""

    outputs: Outputs | None
    error: ServerError | None
    parameters: dict[str, Parameter] | None
    is_final: bool
    waits: bool = False


class ModelRequest(NamedTuple):
    """A request of the model to another one: its record, its inputs, and the outputs that it wants."""

    record: Record
    inputs: list[tuple[Description, memoryview]]
    requested: tuple[str, ...]


class _Outputs:
    """A layout that the stub has sent; `check` makes it one of outputs, as the client sees them.

    `packed` is that of outputs which follow each other in a record; None if some of them are not in the configuration
    and are dropped. `rows` is the number of rows of each; ANY if they need not have that of the batch, otherwise
    UNEQUAL if they differ. `problem` is why they are refused; "" if they are not.
    """

    def __init__(self, tensors: tuple[Description, ...], requested: tuple[str, ...]) -> None:
        self.layout = layout = MessageLayout(tensors, requested)
        self.size = layout.size
        self.sizes = layout.sizes
        self.is_checked = False
        self.tensors: list[tuple[str, str, Shape] | None] = []
        self.packed: TensorLayout | None = None
        self.rows = ANY
        self.problem = ""

    def check(self, spec: ModelSpec, check: OutputCheck) -> None:
        self.is_checked = True
        has_batch = spec.max_batch_size > 0
        rows: set[int] = set()
        for name, datatype, shape in self.layout.tensors:
            self.problem = self.problem or check.problem(name, datatype, shape)
            output = spec.outputs.get(name)
            known = None if output is None else (name, datatype, client_shape(output, shape, has_batch))
            self.tensors.append(known)
            if known is not None and has_batch and not spec.decoupled and shape:
                rows.add(shape[0])
        if rows:
            self.rows = rows.pop() if len(rows) == 1 else UNEQUAL
        described = [(*each, size) for each, size in zip(self.tensors, self.sizes, strict=True) if each is not None]
        if self.layout.size >= 0 and len(described) == len(self.tensors) and not self.problem:
            self.packed = layout_of(described)


class OutcomeReader:
    """Reads the records of one stub. One thread at a time."""

    def __init__(self, spec: ModelSpec, view_of: ViewOf, check: OutputCheck) -> None:
        self._model = spec.name
        self._spec = spec
        self._view_of = view_of
        self._check = check
        self._table = KnownLayouts(_Outputs)

    def result(self, first: int, content: memoryview, batch_sizes: Sequence[int]) -> list[Outcome | DeferredOutcome]:
        """Return the outcome of each request of the batch `first`, whose requests have these sizes. Raises BadFrame."""
        records, at = self._table.read_head(content)
        if records != len(batch_sizes):
            raise BadFrame(f"{records} outcomes for {len(batch_sizes)} requests")
        layouts, unpack = self._table.layouts, RECORD.unpack_from
        found: list[Outcome | DeferredOutcome] = []
        end = len(content)
        due = first
        for batch_size in batch_sizes:
            if end - at < 32:
                raise BadFrame("a result that ends too early")
            number, layout_number, size, places, text, flags, _ = unpack(content, at)
            if number != due:
                raise BadFrame(f"an outcome of request {number} where that of {due} follows")
            due += 1
            if flags == FINAL and not (places or text):
                layout = layouts.get(layout_number)
                if layout is not None and not layout.is_checked:
                    layout.check(self._spec, self._check)
                if (
                    layout is not None
                    and layout.packed is not None
                    and layout.size == size
                    and (layout.rows == batch_size or layout.rows == ANY)
                ):
                    start = at + 32
                    at = (start + size + 15) & -16
                    if at > end:
                        raise BadFrame("a result that is shorter than its outputs")
                    found.append(Outcome(PackedOutputs(layout.packed, content[start : start + size]), None, None, True))
                    continue
            record, at = read_record(content, at)
            if record.flags & (wire.LATER | wire.AGAIN):
                found.append(AGAIN if record.flags & wire.AGAIN else LATER)
            elif record.flags & FINAL:
                found.append(self.outcome(record, batch_size))
            else:
                raise BadFrame(f"an outcome of request {number} that is not final")
        check_end(content, at, first)
        return found

    def response(self, number: int, content: memoryview) -> Outcome:
        count, at = self._table.read_head(content)
        return self.outcome(read_only_record(content, at, number, count))

    def model_request(self, number: int, content: memoryview) -> ModelRequest:
        count, at = self._table.read_head(content)
        record = read_only_record(content, at, number, count)
        known: _Outputs = self._table.find(record.layout)
        contents = self._contents(record, known)
        return ModelRequest(record, list(zip(known.layout.tensors, contents, strict=True)), known.layout.requested)

    def outcome(self, record: Record, batch_size: int = ANY) -> Outcome:
        is_final, waits = bool(record.flags & FINAL), bool(record.flags & WAITS)
        if record.flags & FAILED:
            code = _CODES[record.layout] if record.layout < len(_CODES) else ErrorCode.INTERNAL
            return Outcome(None, BackendFailed(record.text, model=self._model, code=code), None, is_final, waits)
        if record.flags & EMPTY:
            return Outcome(None, None, None, is_final)
        layout: _Outputs = self._table.find(record.layout)
        if not layout.is_checked:
            layout.check(self._spec, self._check)
        problem = layout.problem
        if not problem and batch_size != ANY and layout.rows not in (ANY, batch_size):
            for name, _, shape in layout.layout.tensors:
                if name in self._spec.outputs and shape and shape[0] != batch_size:
                    text = f"has {shape[0]} rows, but its request has a batch of {batch_size}"
                    problem = problem or self._check.found(name, "rows", text)
        parameters: dict[str, Parameter] | None = None
        if record.fields:
            given: Any = from_json(record.fields)
            if type(given) is not dict or not all(isinstance(each, str | int | float) for each in given.values()):
                raise BadFrame(f"{record.fields!r} are no parameters")
            parameters = given
            problem = problem or _problem_of(parameters)
        if problem:
            return Outcome(None, BackendFailed(problem, model=self._model), None, is_final, waits)
        return Outcome(self._outputs(record, layout), None, parameters, is_final, waits)

    def _outputs(self, record: Record, layout: _Outputs) -> Outputs:
        if not record.places and layout.packed is not None and layout.size == len(record.run):
            return PackedOutputs(layout.packed, record.run)
        contents = self._contents(record, layout)
        outputs: list[OutputTensor] = []
        for described, content in zip(layout.tensors, contents, strict=True):
            if described is not None:
                name, datatype, shape = described
                outputs.append(ReceivedOutput(name, datatype, shape, content))
        return outputs

    def _contents(self, record: Record, known: _Outputs) -> list[memoryview]:
        if record.places:
            return tensors_of(record, known.sizes, self._view_of)
        if known.size != len(record.run):
            raise BadFrame(f"{len(record.run)} bytes of tensors that have {known.size}")
        return [record.run[start:end] for _, _, _, start, end in known.layout.spans]


def _problem_of(parameters: dict[str, Parameter]) -> str:
    """Return the reason why a client cannot get them; "" if it can."""
    for name, value in parameters.items():
        for text in (name, value):
            if type(text) is str and not text.isascii() and readable(text) != text:
                return f"the model gave its response the parameter '{readable(name)}', which is not UTF-8: {text!r}"
        if type(value) is int and not -(1 << 63) <= value < 1 << 64:
            return f"the model gave its response the parameter '{name}', which is not a 64-bit integer: {value}"
    return ""


_OPTION = "--strict-python-outputs"


# A model may give its outputs any names.
_MOST_SAID = 100


class OutputCheck:
    """Checks the outputs of all processes of one model version. Any thread.

    `strict`: what is wrong is an error of the request. Otherwise it is logged, once for each of the first tensors and
    kinds, and the client gets the output as it is, unless the configuration does not have it.
    """

    def __init__(self, spec: ModelSpec, strict: bool = False) -> None:
        self._spec = spec
        self._strict = strict
        self._said: set[tuple[str, str]] = set()

    def problem(self, name: str, datatype: str, shape: Shape) -> str:
        """Return why an output of the model fails its request, or ""."""
        spec = self._spec
        output = spec.outputs.get(name)
        if output is None:
            known = ", ".join(f"'{each}'" for each in spec.outputs) or "none"
            return self.found(name, "name", f"is not in the configuration, whose outputs are: {known}", "it is dropped")
        if datatype != output.datatype.name:
            return self.found(
                name, "datatype", f"has the datatype {datatype}, but the configuration says {output.datatype.name}"
            )
        dims = output.dims if output.model_dims is None else output.model_dims
        if spec.max_batch_size > 0:
            dims = (-1, *dims)
        if len(dims) != len(shape) or any(dim not in (-1, size) for dim, size in zip(dims, shape, strict=True)):
            return self.found(name, "shape", f"has the shape {list(shape)}, but the configuration says {list(dims)}")
        return ""

    def found(self, name: str, kind: str, text: str, what: str = "clients get it as it is") -> str:
        """Return the error for a fault of an output, or "" where it is only logged, once for each `kind`."""
        text = f"output '{name}' of model '{self._spec.name}' {text}"
        if self._strict:
            return f"{text} ({_OPTION})"
        if (name, kind) not in self._said and len(self._said) < _MOST_SAID:
            self._said.add((name, kind))
            _log.warning(
                "%s; %s, and it is not said again: %s makes it an error",
                text,
                what,
                _OPTION,
                extra={"model": self._spec.name},
            )
        return ""
