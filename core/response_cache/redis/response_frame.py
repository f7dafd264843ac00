"""A response as the bytes that Redis keeps, and the checks of such bytes: anybody may have written them.

    magic     8s   of this version of the format
    head      u32  size of the head in bytes
    content   u64  size of the content in bytes
    checksum  u32  CRC-32 of the name that the value is kept under, the head and the content

The head is JSON: the name, datatype, shape and size of each output, and the parameters. The content is the outputs, one
after the other, as the v2 protocol sends them. Nothing in it is ever executed.
"""

from __future__ import annotations

import json
from struct import Struct
from typing import Any
from zlib import crc32

from core.errors import InvalidRequest
from core.inference.layout import TensorLayout, layout_of
from core.inference.request import Parameter
from core.inference.tensors import BY_NAME, BYTES, Shape, element_count, unpack_bytes
from core.response_cache.cached_response import CachedResponse

_MAGIC = b"TRIDENT1"
_START = Struct("<8sIQI")
LARGEST_HEAD = 1 << 16
LARGEST = 16 << 20
"""The largest value in bytes that is written, and the most that is read of one."""


class BadFrame(ValueError):
    """The value is damaged, or something else wrote it; the argument says how it can be seen."""


def encode(name: bytes, response: CachedResponse) -> bytes | None:
    """The value to keep under `name`; None for a response that is too large."""
    outputs = [[each, datatype, shape, end - start] for each, datatype, shape, start, end in response.layout.entries]
    head = json.dumps([outputs, response.parameters or {}], separators=(",", ":")).encode()
    content = response.content
    if len(head) > LARGEST_HEAD or _START.size + len(head) + len(content) > LARGEST:
        return None
    return b"".join((_START.pack(_MAGIC, len(head), len(content), _checksum(name, head, content)), head, content))


def decode(name: bytes, value: bytes) -> CachedResponse:
    """The response that `encode` made of `name`. Raises BadFrame."""
    if len(value) < _START.size or not value.startswith(_MAGIC):
        raise BadFrame("something else wrote it")
    _, head_size, content_size, checksum = _START.unpack_from(value)
    if head_size > LARGEST_HEAD or _START.size + head_size + content_size != len(value):
        raise BadFrame(f"it has {len(value)} bytes and says otherwise")
    head = value[_START.size : _START.size + head_size]
    content = value[_START.size + head_size :]
    if _checksum(name, head, content) != checksum:
        raise BadFrame("its checksum is wrong")
    try:
        outputs, parameters = json.loads(head)
        return CachedResponse(_layout(outputs, content), content, _parameters(parameters))
    except (ValueError, TypeError, RecursionError, InvalidRequest) as error:
        raise BadFrame(f"its head is wrong: {error}") from None


def _checksum(name: bytes, head: bytes, content: bytes) -> int:
    return crc32(content, crc32(head, crc32(name)))


def _layout(outputs: Any, content: bytes) -> TensorLayout:
    """Raises ValueError, TypeError or InvalidRequest unless the outputs are exactly the content."""
    tensors: list[tuple[str, str, Shape, int]] = []
    at = 0
    for name, datatype, dims, size in outputs:
        if type(name) is not str or type(size) is not int or any(type(dim) is not int or dim < 0 for dim in dims):
            raise ValueError("an output has values of wrong types")
        shape = tuple(dims)
        found = BY_NAME.get(datatype)
        if found is None:
            raise ValueError("an output has an unknown datatype")
        if found is BYTES:
            unpack_bytes(memoryview(content)[at : at + size], element_count(shape), name=name, model="")
        elif element_count(shape) * found.size != size:
            raise ValueError("the size of an output is not that of its shape")
        tensors.append((name, datatype, shape, size))
        at += size
    if at != len(content):
        raise ValueError("the outputs are not as long as the content")
    return layout_of(tensors)


def _parameters(parameters: Any) -> dict[str, Parameter] | None:
    if type(parameters) is not dict or any(type(each) not in (bool, int, float, str) for each in parameters.values()):
        raise ValueError("the parameters have values of wrong types")
    return parameters or None
