"""Triton's datatypes: their names, numbers and numpy types.

Source: docs/spec/python-backend.md section 4.3; numbers of TRITONSERVER_DataType.
"""

from __future__ import annotations

from typing import Any

import numpy as np

NUMBERS = {
    "BOOL": 1,
    "UINT8": 2,
    "UINT16": 3,
    "UINT32": 4,
    "UINT64": 5,
    "INT8": 6,
    "INT16": 7,
    "INT32": 8,
    "INT64": 9,
    "FP16": 10,
    "FP32": 11,
    "FP64": 12,
    "BYTES": 13,
    "BF16": 14,
}

# Of datatypes with a fixed size that numpy has.
NUMPY_DTYPES: dict[str, np.dtype[Any]] = {
    name: np.dtype(code)
    for name, code in {
        "BOOL": "?",
        "UINT8": "<u1",
        "UINT16": "<u2",
        "UINT32": "<u4",
        "UINT64": "<u8",
        "INT8": "<i1",
        "INT16": "<i2",
        "INT32": "<i4",
        "INT64": "<i8",
        "FP16": "<f2",
        "FP32": "<f4",
        "FP64": "<f8",
    }.items()
}

DATATYPES: dict[np.dtype[Any], str] = {dtype: name for name, dtype in NUMPY_DTYPES.items()}

# In a configuration string tensors are of TYPE_STRING; Python's own type stands for booleans, as in Triton.
TRITON_STRING_TO_NUMPY: dict[str, Any] = {
    **{f"TYPE_{name}": dtype.type for name, dtype in NUMPY_DTYPES.items()},
    "TYPE_BOOL": bool,
    "TYPE_STRING": np.object_,
}


def triton_string_to_numpy(triton_type_string: str) -> Any:
    """The numpy type of a datatype of a configuration, such as TYPE_FP32. Raises KeyError if numpy has none."""
    return TRITON_STRING_TO_NUMPY[triton_type_string]


def triton_to_numpy_type(data_type: int) -> Any:
    """The numpy type of what `Tensor.triton_dtype` returns; None if numpy has none."""
    return _TYPES.get(data_type)


def numpy_to_triton_type(data_type: Any) -> int | None:
    """The number of a numpy type's datatype; None if it has none."""
    dtype = np.dtype(data_type)
    return NUMBERS["BYTES"] if dtype.kind in "OSU" else NUMBERS.get(DATATYPES.get(dtype, ""))


_TYPES: dict[int, Any] = {
    **{NUMBERS[name]: dtype.type for name, dtype in NUMPY_DTYPES.items()},
    NUMBERS["BYTES"]: np.object_,
}
