"""Batch inputs: tensors that tell a model about the requests in its batch.

Source: docs/spec/model-config.md section 2.7.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import accumulate
from typing import Any

import numpy as np

from core.config.schema import BatchInput, ModelConfig, datatype_of
from core.errors import BackendFailed, ConfigInvalid
from core.inference.request import InferenceRequest, InputTensor
from core.inference.tensors import Array, Shape, element_count


@dataclass(frozen=True, slots=True)
class BatchInputSpec:
    """One batch input. Its tensor is made from the shapes of the input `source` and fed to all of `target_names`."""

    kind: int
    source: str
    target_names: tuple[str, ...]
    dtype: np.dtype[Any]

    def array(self, requests: Sequence[InferenceRequest]) -> Array:
        """The tensor for a batch of R requests: R or R+1 counts, [largest count], or one row for each item."""
        shapes = [input_named(request, self.source).array.shape for request in requests]
        return np.asarray(_values(self.kind, shapes), self.dtype)


def batch_inputs(config: ModelConfig, model_name: str) -> tuple[BatchInputSpec, ...]:
    """The batch inputs of a validated configuration. Raises ConfigInvalid for an unknown kind."""
    specs = []
    for entry in config.batch_input:
        datatype = datatype_of(entry.data_type)
        if entry.kind not in BatchInput.Kind.values() or datatype is None:
            raise ConfigInvalid(f"batch input of kind {entry.kind} is not supported for {model_name}")
        specs.append(BatchInputSpec(entry.kind, entry.source_input[0], tuple(entry.target_name), datatype.dtype))
    return tuple(specs)


def _values(kind: int, shapes: Sequence[Shape]) -> Array | list[int]:
    counts = [element_count(shape) for shape in shapes]
    if kind == BatchInput.BATCH_ELEMENT_COUNT:
        return counts
    if kind == BatchInput.BATCH_ACCUMULATED_ELEMENT_COUNT:
        return list(accumulate(counts))
    if kind == BatchInput.BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO:
        return list(accumulate(counts, initial=0))
    if kind == BatchInput.BATCH_MAX_ELEMENT_COUNT_AS_SHAPE:
        return np.zeros(max(counts))
    rows = np.array([shape[1:] for shape in shapes for _ in range(shape[0])])
    return rows if kind == BatchInput.BATCH_ITEM_SHAPE else rows.reshape(-1)


def input_named(request: InferenceRequest, name: str) -> InputTensor:
    """Raises BackendFailed if the request has no such input; then it should not be in this batch."""
    for tensor in request.inputs:
        if tensor.name == name:
            return tensor
    raise BackendFailed(f"a request in the batch has no input '{name}'", model=request.model_name)
