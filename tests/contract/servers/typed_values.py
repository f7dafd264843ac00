"""Values of every datatype, as NVIDIA's clients send and return them."""

from __future__ import annotations

from typing import Any

import ml_dtypes
import numpy as np

from trident.core.inference.tensors import Array

TYPES: dict[str, Any] = {
    "BOOL": np.bool_,
    "UINT8": np.uint8,
    "UINT16": np.uint16,
    "UINT32": np.uint32,
    "UINT64": np.uint64,
    "INT8": np.int8,
    "INT16": np.int16,
    "INT32": np.int32,
    "INT64": np.int64,
    "FP16": np.float16,
    "FP32": np.float32,
    "FP64": np.float64,
    "BYTES": np.object_,
    "BF16": ml_dtypes.bfloat16,
}
STRINGS = [b"", b"a\0b\0", "\xff\x80\x00".encode(), "größer 漢".encode(), b"x" * 3000, b'\n"\\']


def values_of(datatype: str) -> Array:
    """Six values of a datatype with its extremes, as a batch of two."""
    dtype = np.dtype(TYPES[datatype])
    if datatype == "BYTES":
        flat = np.array(STRINGS, np.object_)
    elif datatype == "BOOL":
        flat = np.array([True, False, True, True, False, False])
    elif dtype.kind in "iu":
        limits = np.iinfo(dtype)
        flat = np.array([0, 1, 2, 127, limits.min, limits.max], dtype)
    else:
        flat = np.array([0.0, -0.0, 1.5, -0.1, np.inf, 1e-7], dtype)
    return flat.reshape(2, 3)
