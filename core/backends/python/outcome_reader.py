"""Responses of a stub as outputs or errors. Source: the module `wire`, which both ends share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

import orjson

from core.backends.python.output_check import OutputCheck
from core.backends.python.stub.trident_stub.wire import AGAIN as MARKED_AGAIN
from core.backends.python.stub.trident_stub.wire import (
    EMPTY,
    FAILED,
    FINAL,
    RECORD,
    WAITS,
    BadFrame,
    Description,
    Layout,
    LayoutTable,
    Record,
    ViewOf,
    read_record,
    tensors_of,
)
from core.backends.python.stub.trident_stub.wire import LATER as MARKED_LATER
from core.backends.tensors.client_shape import client_shape
from core.config.model_spec import ModelSpec
from core.errors import (
    AlreadyLoaded,
    BackendFailed,
    InvalidRequest,
    ModelNotFound,
    ModelNotReady,
    RequestCancelled,
    ServerError,
    Unsupported,
)
from core.inference.layout import TensorLayout, layout_of
from core.inference.request import Parameter
from core.inference.response import Outputs, OutputTensor, PackedOutputs, ReceivedOutput
from core.inference.response_sender import AGAIN, LATER, Later
from core.inference.tensors import Shape

# By the numbers of TritonError.
_ERRORS: tuple[type[ServerError], ...] = (
    ServerError,
    BackendFailed,
    ModelNotFound,
    InvalidRequest,
    ModelNotReady,
    Unsupported,
    AlreadyLoaded,
    RequestCancelled,
)


# Numbers of rows that say something else.
ANY: Final = -1
UNEQUAL: Final = -2


class Outcome(NamedTuple):
    """What a record says of a request: outputs, an error, or neither. `waits`: its sender waits for credit."""

    outputs: Outputs | None
    error: ServerError | None
    parameters: dict[str, Parameter] | None
    is_final: bool
    waits: bool = False


class AskedRequest(NamedTuple):
    """A request of the model to another one: its record, its inputs, and the outputs that it wants."""

    record: Record
    inputs: list[tuple[Description, memoryview]]
    requested: tuple[str, ...]


class _Outputs:
    """A layout that the stub has sent; `judge` makes it one of outputs, as the client sees them.

    `packed` is that of outputs which follow each other in a record; None if some of them are not in the configuration
    and are dropped. `rows` is the number of rows of each; ANY if they need not have that of the batch, otherwise
    UNEQUAL if they differ. `fault` is why they are refused; "" if they are not.
    """

    def __init__(self, tensors: tuple[Description, ...], requested: tuple[str, ...]) -> None:
        self.layout = layout = Layout(tensors, requested)
        self.size = layout.size
        self.sizes = layout.sizes
        self.is_judged = False
        self.tensors: list[tuple[str, str, Shape] | None] = []
        self.packed: TensorLayout | None = None
        self.rows = ANY
        self.fault = ""

    def judge(self, spec: ModelSpec, check: OutputCheck) -> None:
        self.is_judged = True
        has_batch = spec.max_batch_size > 0
        rows: set[int] = set()
        for name, datatype, shape in self.layout.tensors:
            self.fault = self.fault or check.fault(name, datatype, shape)
            output = spec.outputs.get(name)
            known = None if output is None else (name, datatype, client_shape(output, shape, has_batch))
            self.tensors.append(known)
            if known is not None and has_batch and not spec.decoupled and shape:
                rows.add(shape[0])
        if rows:
            self.rows = rows.pop() if len(rows) == 1 else UNEQUAL
        described = [(*each, size) for each, size in zip(self.tensors, self.sizes, strict=True) if each is not None]
        if self.layout.size >= 0 and len(described) == len(self.tensors) and not self.fault:
            self.packed = layout_of(described)


class OutcomeReader:
    """Reads the records of one stub. One thread at a time."""

    def __init__(self, spec: ModelSpec, view_of: ViewOf, check: OutputCheck) -> None:
        self._model = spec.name
        self._spec = spec
        self._view_of = view_of
        self._check = check
        self._table = LayoutTable(_Outputs)

    def result(self, content: memoryview, batch_sizes: Sequence[int]) -> list[Outcome | Later]:
        """The outcome of each request of a batch, of which these are the sizes. Raises BadFrame."""
        records, at = self._table.read_head(content)
        if records != len(batch_sizes):
            raise BadFrame(f"{records} outcomes for {len(batch_sizes)} requests")
        layouts, unpack = self._table.layouts, RECORD.unpack_from
        found: list[Outcome | Later] = []
        end = len(content)
        for batch_size in batch_sizes:
            if end - at < 32:
                raise BadFrame("a result that ends too early")
            _, number, flags, places, text, fields, size = unpack(content, at)
            if flags == FINAL and not (places or text or fields):
                layout = layouts.get(number)
                if layout is not None and not layout.is_judged:
                    layout.judge(self._spec, self._check)
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
            if record.flags & (MARKED_LATER | MARKED_AGAIN):
                found.append(AGAIN if record.flags & MARKED_AGAIN else LATER)
            else:
                found.append(self.outcome(record, batch_size))
        return found

    def response(self, content: memoryview) -> Outcome:
        """The one record of a frame. Raises BadFrame."""
        _, at = self._table.read_head(content)
        return self.outcome(read_record(content, at)[0])

    def asked(self, content: memoryview) -> AskedRequest:
        """The request of the model to another one. Raises BadFrame."""
        _, at = self._table.read_head(content)
        record, _ = read_record(content, at)
        known = self._known(record)
        contents = self._contents(record, known)
        return AskedRequest(record, list(zip(known.layout.tensors, contents, strict=True)), known.layout.requested)

    def outcome(self, record: Record, batch_size: int = ANY) -> Outcome:
        is_final, waits = bool(record.flags & FINAL), bool(record.flags & WAITS)
        if record.flags & FAILED:
            return Outcome(None, self._error(record), None, is_final, waits)
        if record.flags & EMPTY:
            return Outcome(None, None, None, is_final)
        layout = self._known(record)
        if not layout.is_judged:
            layout.judge(self._spec, self._check)
        fault = layout.fault
        if not fault and batch_size != ANY and layout.rows not in (ANY, batch_size):
            fault = self._rows_fault(layout, batch_size)
        if fault:
            return Outcome(None, BackendFailed(fault, model=self._model), None, is_final, waits)
        parameters = orjson.loads(record.fields) if record.fields else None
        return Outcome(self._outputs(record, layout), None, parameters, is_final, waits)

    def _rows_fault(self, layout: _Outputs, batch_size: int) -> str:
        fault = ""
        for name, _, shape in layout.layout.tensors:
            if name in self._spec.outputs and shape and shape[0] != batch_size:
                fault = fault or self._check.rows_fault(name, shape[0], batch_size)
        return fault

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

    def _known(self, record: Record) -> _Outputs:
        found: _Outputs | None = self._table.layouts.get(record.layout)
        if found is None:
            raise BadFrame(f"the unknown layout {record.layout}")
        return found

    def _contents(self, record: Record, known: _Outputs) -> list[memoryview]:
        if record.places:
            return tensors_of(record, known.sizes, self._view_of)
        if known.size != len(record.run):
            raise BadFrame(f"{len(record.run)} bytes of tensors that have {known.size}")
        return [record.run[start:end] for _, _, _, start, end in known.layout.spans]

    def _error(self, record: Record) -> ServerError:
        kind = _ERRORS[record.layout] if record.layout < len(_ERRORS) else BackendFailed
        return kind(record.text, model=self._model)
