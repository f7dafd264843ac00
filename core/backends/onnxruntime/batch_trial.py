"""Finds outputs that grow with the batch although the graph declares another first dimension.

Some exporters declare the outputs as they are for one row: LightGBM's label is [1]. ONNX Runtime does not enforce it.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import onnxruntime

from core.backends.onnxruntime.session import FAILURES
from core.config.signature import ModelSignature, TensorSignature
from core.inference.tensors import BY_NAME, BYTES, Array

_BATCH_SIZES = (2, 3)
_FATAL = 4


def tried_signature(session: Any, signature: ModelSignature) -> ModelSignature:
    """`signature` with -1 as the first dimension of all outputs, if only outputs prevent batching and all of them grow.

    Runs the session on batches of two sizes: rows of zeros and empty strings, with 1 for each variable dimension. A
    graph that fails on them keeps its signature.
    """
    if not _is_worth_a_trial(signature):
        return signature
    options = onnxruntime.RunOptions()
    options.log_severity_level = _FATAL  # it warns of every result that is not as the graph declares it
    names = [tensor.name for tensor in signature.outputs]
    for size in _BATCH_SIZES:
        feed = {tensor.name: _rows(tensor, size) for tensor in signature.inputs}
        try:
            results = session.run(names, feed, options)
        except FAILURES:
            return signature
        if any(result.shape[:1] != (size,) for result in results):
            return signature
    outputs = tuple(replace(tensor, shape=(-1, *tensor.shape[1:])) for tensor in signature.outputs)
    return replace(signature, outputs=outputs)


def _is_worth_a_trial(signature: ModelSignature) -> bool:
    inputs, outputs = signature.inputs, signature.outputs
    return (
        len(inputs) > 0
        and all(tensor.shape[:1] == (-1,) and tensor.datatype not in ("", "BF16") for tensor in inputs)
        and all(tensor.shape and tensor.datatype not in ("", "BF16") for tensor in outputs)
        and any(tensor.shape[0] != -1 for tensor in outputs)
    )


def _rows(tensor: TensorSignature, size: int) -> Array:
    shape = (size, *(1 if dim == -1 else dim for dim in tensor.shape[1:]))
    datatype = BY_NAME[tensor.datatype]
    return np.full(shape, "", object) if datatype is BYTES else np.zeros(shape, datatype.dtype)
