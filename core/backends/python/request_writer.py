"""Requests as records of a frame. Source: the module `wire`, which both ends share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import numpy as np
import orjson

from core.backends.python.stub.trident_stub.wire import (
    EXECUTE,
    LARGE,
    PADDING,
    RECORD,
    LayoutNumbers,
    Share,
    frame_of,
    write_record,
)
from core.config.model_spec import ModelSpec
from core.inference.request import InferenceRequest, InputTensor, PackedInputs
from core.inference.tensors import Buffer, Shape, wire_bytes

_SEQUENCE_START, _SEQUENCE_END = 1, 2


class RequestWriter:
    """Makes the frame of a batch. Under the lock under which frames get their order.

    Inputs have the shapes that the model sees, and their bytes as they arrived.
    """

    def __init__(self, spec: ModelSpec, numbers: LayoutNumbers, share: Share) -> None:
        self._numbers = numbers
        self._share = share
        self._names = tuple(spec.outputs)
        self._reshaped = frozenset(name for name, tensor in spec.inputs.items() if tensor.model_dims is not None)

    def write(self, batch: int, first: int, requests: Sequence[InferenceRequest]) -> bytes:
        """The frame of batch number `batch`, whose requests are numbered from `first` on."""
        records: list[Any] = []
        find, packs = self._numbers.find, not self._reshaped
        for number, request in enumerate(requests, first):
            inputs = request.inputs
            if packs and type(inputs) is PackedInputs and inputs.layout.size < LARGE:
                layout = inputs.layout
                found = find((layout, request.outputs))
                if found is None:
                    found = self._add((layout, request.outputs), request, [each[:3] for each in layout.entries])
                if found[1]:
                    fields = request_fields(request)
                    size = layout.size
                    records.append(RECORD.pack(number, found[0], 0, 0, 0, len(fields), size))
                    if fields:
                        records += (fields, PADDING[len(fields) & 15])
                    records.append(inputs.content)
                    if size & 15:
                        records.append(PADDING[size & 15])
                    continue
            self._write(records, number, request)
        return frame_of(EXECUTE, batch, [self._numbers.head(len(requests)), *records])

    def _write(self, records: list[Any], number: int, request: InferenceRequest) -> None:
        tensors = [(tensor.name, tensor.datatype, self._shape(tensor)) for tensor in request.inputs]
        key = (*tensors, request.outputs)
        found = self._numbers.find(key)
        if found is None:
            found = self._add(key, request, tensors)
        contents = [_content(tensor) for tensor in request.inputs]
        write_record(records, number, found, contents, self._share, fields=request_fields(request))

    def _add(
        self, key: tuple[object, ...], request: InferenceRequest, tensors: list[tuple[str, str, Shape]]
    ) -> tuple[int, bool]:
        return self._numbers.add(key, tensors, request.outputs or self._names)

    def _shape(self, tensor: InputTensor) -> Shape:
        return tensor.array.shape if tensor.name in self._reshaped else tensor.shape


def _content(tensor: InputTensor) -> Buffer:
    content = tensor.data
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
    fields: dict[str, object] = {}
    if request.id:
        fields["id"] = request.id
    if request.parameters:
        fields["parameters"] = request.parameters
    if request.correlation_id:
        fields["correlation_id"] = request.correlation_id
    if request.timeout_us:
        fields["timeout"] = request.timeout_us
    flags = (_SEQUENCE_START if request.sequence_start else 0) | (_SEQUENCE_END if request.sequence_end else 0)
    if flags:
        fields["flags"] = flags
    trace = request.trace
    if trace is not None:
        fields["trace"] = [trace.number, trace.context_json()]
    try:
        return orjson.dumps(fields)
    except TypeError:  # half a surrogate pair, an integer of more than 64 bits
        return json.dumps(fields).encode()
