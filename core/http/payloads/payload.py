"""What a body was decoded to: arrays by input name, and the requests that they make."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

from core.config.model_spec import ModelSpec
from core.http.payloads.json.document_form import DocumentForm
from core.inference.request import InputTensor
from core.inference.tensors import Array

DEFAULT_MAX_SIZE = 64 << 20


@dataclass(frozen=True, slots=True, kw_only=True)
class DecodeRules:
    """What an adapter allows. `max_input_size`: bytes that compressed content may have once it is inflated.

    `ignored_fields` are members of object instances that are no inputs (a key); an input of that name goes first.
    """

    ignored_fields: frozenset[str] = frozenset()
    max_input_size: int = DEFAULT_MAX_SIZE


@dataclass(slots=True, kw_only=True, eq=False)
class DecodedPayload:
    """`arrays` are C-contiguous, of their datatypes' numpy types, all with `count` rows.

    `stacked`: the rows are a batch that the model takes as it is. Otherwise each row is a request of its own, and where
    they are of different shapes `rows` has them, without a dimension for their number, and `arrays` is empty.
    `count` None: the arrays are whole tensors without rows, one request. `parameters` come with JSON documents only.
    """

    arrays: dict[str, Array]
    count: int | None
    stacked: bool
    rows: list[dict[str, Array]] | None = None
    form: DocumentForm | None = None
    parameters: dict[str, Any] = field(default_factory=dict)


def split_instances(payload: DecodedPayload, spec: ModelSpec) -> list[list[InputTensor]]:
    """The inputs of each request that the payload makes, in order; views, nothing is copied.

    One request for a batch that the model takes at once, several of at most `max_batch_size` rows for a larger one,
    one for each instance of a model that does not batch (docs/spec/vertex.md section D point 3).
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
        # A slice and not an index: that of a flat array would be a number, not an array.
        [_tensor(spec, name, array[i : i + 1].reshape(array.shape[1:])) for name, array in payload.arrays.items()]
        for i in range(count)
    ]


def _tensor(spec: ModelSpec, name: str, array: Array) -> InputTensor:
    return InputTensor(name, spec.inputs[name].datatype.name, array.shape, array)
