"""String tensors: the wire form, in which each element follows its length, and arrays of bytes.

Source: docs/spec/python-backend.md section 4.3.
"""

from __future__ import annotations

from struct import Struct
from typing import Any

import numpy as np

from .errors import TritonModelException

_LENGTH = Struct("<I")


def serialize_byte_tensor(input_tensor: np.ndarray[Any, Any]) -> bytes:
    """The wire form of an array of `bytes`, of `str`, or of objects, whose texts are then taken; in C order.

    Raises UnicodeEncodeError for a text that UTF-8 does not have.
    """
    pack = _LENGTH.pack
    parts: list[bytes] = []
    for item in input_tensor.ravel().tolist():
        element = item if isinstance(item, bytes) else str(item).encode()
        parts.append(pack(len(element)))
        parts.append(element)
    return b"".join(parts)


def deserialize_bytes_tensor(encoded_tensor: bytes | bytearray | memoryview) -> np.ndarray[Any, Any]:
    """The elements of a wire form as an array of objects with one dimension. Raises TritonModelException."""
    # An array of numpy would give single numbers instead of bytes.
    wire = memoryview(encoded_tensor).cast("B") if not isinstance(encoded_tensor, bytes) else encoded_tensor
    read = _LENGTH.unpack_from
    elements: list[bytes] = []
    at, end = 0, len(wire)
    while at < end:
        start = at + 4
        if start > end:
            raise TritonModelException(f"the string tensor ends inside the length of its element {len(elements)}")
        at = start + read(wire, at)[0]
        if at > end:
            raise TritonModelException(f"the string tensor ends inside its element {len(elements)}")
        elements.append(bytes(wire[start:at]))
    array = np.empty(len(elements), np.object_)
    array[:] = elements
    return array
