"""Cuts the bytes of a ModelInferRequest at its tensors, without reading what stands before them.

Clients write the fields of a message by their numbers, and `raw_input_contents` has the highest. A message that is
written in another way is not cut: protobuf reads it as a whole.
Source: docs/spec/grpc.md section 1.
"""

from __future__ import annotations

from typing import Final

from core.grpc.messages.wire import read_length
from core.inference.tensors import Buffer
from core.memo import Memo

TENSOR: Final = 7
_TENSOR_TAG: Final = TENSOR << 3 | 2
_VERSION_TAG: Final = 2 << 3 | 2
_ID_TAG: Final = 3 << 3 | 2
# The fields before the tensors: all are strings or messages.
_HEAD_TAGS: Final = frozenset(number << 3 | 2 for number in (1, 2, 3, 4, 5, 6))
_ONE_BYTE: Final = 127
# A hostile message may consist of empty fields. Protobuf passes over them in a tenth of the time.
_MOST_FIELDS: Final = 4096
_MOST_SIZES: Final = 512

# All before the tensors without the field of the id, the content of that field, and where the tensors begin.
MessageHead = tuple[bytes, bytes, int]


def head_of(message: Buffer) -> MessageHead | None:
    """What stands before the tensors; None if only protobuf can read the message, or nobody."""
    at = id_start = id_content = id_end = fields = 0
    size = len(message)
    try:
        while at < size:
            tag = message[at]
            if tag == _TENSOR_TAG:
                break
            fields += 1
            if tag not in _HEAD_TAGS or fields > _MOST_FIELDS:
                return None
            length = message[at + 1]
            start = at + 2
            if length > _ONE_BYTE:
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
        return bytes(message[:at]), b"", at
    return bytes(message[:id_start]) + bytes(message[id_end:at]), bytes(message[id_content:id_end]), at


def tensors_from(message: Buffer, at: int) -> list[memoryview] | None:
    """The tensors that stand from `at` to the end, as views; None if something else follows, or the end is missing."""
    view = memoryview(message)
    size = len(view)
    tensors: list[memoryview] = []
    try:
        while at < size:
            if view[at] != _TENSOR_TAG or len(tensors) == _MOST_FIELDS:
                return None
            length, start = read_length(view, at + 1)
            at = start + length
            tensors.append(view[start:at])
    except (IndexError, ValueError):
        return None
    return tensors if at == size else None


class HeadSizes:
    """The sizes of the heads of earlier messages, by the size of the message, both without the id. Any thread.

    Cutting a message where one of its size was cut takes a fifth of the time of reading its fields.
    """

    def __init__(self) -> None:
        self._sizes: Memo[int, int] = Memo(_MOST_SIZES)

    def learn(self, message: Buffer, head: MessageHead) -> None:
        text, _, end = head
        self._sizes[len(message) - end + len(text)] = len(text)

    def guess(self, message: Buffer) -> MessageHead | None:
        """What `head_of` returns, if the message is like the last one of its size; None if it cannot be.

        It is right if a message without an id begins with the returned text, or did so once. Then the first field, and
        a version after it, end where they end here, and the id stands between two fields.
        """
        try:
            length = message[1]
            if length > _ONE_BYTE:
                return None
            at = length + 2
            tag = message[at]
            if tag == _VERSION_TAG:
                length = message[at + 1]
                if length > _ONE_BYTE:
                    return None
                at += length + 2
                tag = message[at]
            if tag != _ID_TAG:
                end = self._sizes.get(len(message))
                return None if end is None else (bytes(message[:end]), b"", end)
            length = message[at + 1]
            end = self._sizes.get(len(message) - length - 2)
            if length > _ONE_BYTE or end is None:
                return None
            after = at + length + 2
            end += length + 2
            return bytes(message[:at]) + bytes(message[after:end]), bytes(message[at + 2 : after]), end
        except IndexError:
            return None
