"""Models for the tests of payloads, in short notation."""

from __future__ import annotations

from typing import Any

import numpy as np

from trident.core.config.spec import InputSpec, ModelSpec, OutputSpec
from trident.core.http.payloads.payload import DecodeRules, OutputColumn
from trident.core.inference.tensors import BY_NAME, Array, Shape, bytes_array

RULES = DecodeRules()

Signature = dict[str, tuple[str, Shape]]


def model(inputs: Signature, outputs: Signature | None = None, batch: int = 1000, optional: str = "") -> ModelSpec:
    """A model; inputs and outputs by name have a datatype and dims. `optional` names an optional input."""
    return ModelSpec(
        name="m",
        version=1,
        platform="onnxruntime_onnx",
        backend="onnxruntime",
        max_batch_size=batch,
        inputs={
            name: InputSpec(name=name, datatype=BY_NAME[datatype], dims=dims, optional=name == optional)
            for name, (datatype, dims) in inputs.items()
        },
        outputs={
            name: OutputSpec(name=name, datatype=BY_NAME[datatype], dims=dims)
            for name, (datatype, dims) in (outputs or {"OUT": ("FP32", (1,))}).items()
        },
    )


def one(datatype: str, *dims: int, batch: int = 1000) -> ModelSpec:
    """A model with the input IN and an output of the same datatype and dims."""
    return model({"IN": (datatype, dims)}, {"OUT": (datatype, dims)}, batch)


def column(name: str, datatype: str, values: Any, whole: bool = False) -> OutputColumn:
    """An output of one part. Values for BYTES are a list of `bytes`, one per row; for BF16 they are numbers."""
    row = BY_NAME[datatype]
    if datatype == "BYTES":
        array: Array = bytes_array(values, (len(values), 1))
    else:
        array = np.array(values, np.float32 if datatype == "BF16" else row.dtype)
    return OutputColumn(name, row, [array], whole)
