"""Cuts the bytes of a ModelInferRequest at its tensors, without reading what stands before them.

Clients write the fields of a message by their numbers, and `raw_input_contents` has the highest. A message that is
written in another way is not cut: protobuf reads it as a whole.
Source: docs/spec/grpc.md section 1.
"""

from __future__ import annotations

from typing import NamedTuple

from core.grpc.messages.wire import read_length
from core.inference.tensors import Buffer

_ID_TAG = 3 << 3 | 2
TENSOR = 7
_TENSOR_TAG = TENSOR << 3 | 2
# The fields before the tensors: all are strings or messages.
_HEAD = frozenset(number << 3 | 2 for number in (1, 2, 3, 4, 5, 6))


class MessageHead(NamedTuple):
    """`text` is all before the tensors, without the field of the id; `id` its content. `end` is where tensors begin."""

    text: bytes
    id: bytes
    end: int


def head_of(message: Buffer) -> MessageHead | None:
    """What stands before the tensors; None if only protobuf can read the message, or nobody."""
    at = id_start = id_content = id_end = 0
    size = len(message)
    try:
        while at < size:
            tag = message[at]
            if tag == _TENSOR_TAG:
                break
            if tag not in _HEAD:
                return None
            length = message[at + 1]
            start = at + 2
            if length > 127:
                length, start = read_length(message, at + 1)
            if tag == _ID_TAG:
                if id_end:
                    return None
                id_start, id_content, id_end = at, start, start + length
            at = start + length
    except (IndexError, ValueError):
        return None
    if at > size:
        return None
    if not id_end:
        return MessageHead(bytes(message[:at]), b"", at)
    text = bytes(message[:id_start]) + bytes(message[id_end:at])
    return MessageHead(text, bytes(message[id_content:id_end]), at)


def tensors_from(message: Buffer, at: int) -> list[memoryview] | None:
    """The tensors that stand from `at` to the end, as views; None if something else follows, or the end is missing."""
    view = memoryview(message)
    size = len(view)
    tensors: list[memoryview] = []
    try:
        while at < size:
            if view[at] != _TENSOR_TAG:
                return None
            length, start = read_length(view, at + 1)
            at = start + length
            tensors.append(view[start:at])
    except (IndexError, ValueError):
        return None
    return tensors if at == size else None
