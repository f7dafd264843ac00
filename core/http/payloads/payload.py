"""A decoded body: arrays by input name, and their division into requests."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from core.config.model_spec import ModelSpec
from core.http.payloads.json.document_form import DocumentForm
from core.http.slices.slicing import Slicing
from core.inference.request import InputTensor
from core.inference.tensors import Array

DEFAULT_MAX_SIZE = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRules:
    """An adapter's rules. `max_input_size` is the limit of compressed content in bytes after inflation.

    With `slicing`, a long text is decoded in slices.
    `ignored_fields` are members of object instances that are not inputs, such as a key, unless an input has that name.
    """

    ignored_fields: frozenset[str] = frozenset()
    max_input_size: int = DEFAULT_MAX_SIZE
    slicing: Slicing | None = None


@dataclass(slots=True, kw_only=True, eq=False)
class DecodedPayload:
    """`arrays` are C-contiguous, of their datatypes' numpy types, and have `count` rows each.

    `stacked`: the rows are a batch. Otherwise each row is a separate request; if rows have different shapes, `rows`
    has them, without a batch dimension, and `arrays` is empty. `count` None: the arrays are whole tensors of one
    request. Only JSON documents have `form` and `parameters`.
    """

    arrays: dict[str, Array]
    count: int | None
    stacked: bool
    rows: list[dict[str, Array]] | None = None
    form: DocumentForm | None = None
    parameters: dict[str, Any] = field(default_factory=dict)


def split_instances(payload: DecodedPayload, spec: ModelSpec) -> list[list[InputTensor]]:
    """The inputs of each request of the payload, in order, as views of its arrays.

    A batch is one request, or several of at most `max_batch_size` rows. Of a model that does not batch, each instance
    is one request (docs/spec/vertex.md section D point 3).
    """
    count = payload.count
    if payload.rows is not None:
        return [[_tensor(spec, name, array) for name, array in row.items()] for row in payload.rows]
    if count is None or (payload.stacked and (spec.max_batch_size == 0 or count <= spec.max_batch_size)):
        return [[_tensor(spec, name, array) for name, array in payload.arrays.items()]]
    if payload.stacked:
        size = spec.max_batch_size
        return [
            [_tensor(spec, name, array[start : start + size]) for name, array in payload.arrays.items()]
            for start in range(0, count, size)
        ]
    return [
        # A slice, because an index into a flat array gives a number.
        [_tensor(spec, name, array[i : i + 1].reshape(array.shape[1:])) for name, array in payload.arrays.items()]
        for i in range(count)
    ]


def _tensor(spec: ModelSpec, name: str, array: Array) -> InputTensor:
    return InputTensor(name, spec.inputs[name].datatype.name, array.shape, array)
