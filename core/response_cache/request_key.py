"""The key of a request in the response cache: everything that decides its answer.

Triton hashes the names and the bytes of the inputs only. Here datatypes, shapes, requested outputs, parameters and the
marks of a sequence count, too: a request that differs in one of them can have another answer. The id, the priority and
the timeout do not decide it.
Source: docs/spec/schedulers.md section 3.7.
"""

from __future__ import annotations

from hashlib import blake2b
from struct import Struct

from core.inference.layout import TensorLayout
from core.inference.packed import PackedTensors
from core.inference.request import InferenceRequest, InputTensor
from core.inference.tensors import Buffer, Shape, wire_bytes
from core.memo import Memo

DIGEST_SIZE = 32
# A longer key is replaced by its digest. Up to this size the bytes themselves cost less than a digest.
LONGEST_PLAIN = 256
_LENGTH = Struct("<Q")
_PLAIN, _DIGEST = b"=", b"#"
_NOTHING_ELSE = _LENGTH.pack(0)

# The description of the inputs by their layout, and whether their bytes are in the order of their names.
_described: Memo[TensorLayout, tuple[bytes, bool]] = Memo(1024)


def request_key(scope: bytes, request: InferenceRequest) -> bytes:
    """The key of a validated `request`. `scope` begins it and must have the same length in every key.

    Two requests have the same key if and only if all that decides the answer is equal, in whichever form the inputs
    arrived. (Keys of large requests are digests, so equal keys of different requests are possible in theory.)
    """
    inputs = request.inputs
    contents: list[Buffer] = []
    if isinstance(inputs, PackedTensors):
        known = _described.get(inputs.layout)
        if known is None:
            known = _described[inputs.layout] = _describe_layout(inputs.layout)
        description, is_sorted = known
        if is_sorted:
            contents.append(inputs.content)
        else:
            entries = sorted(inputs.layout.entries)
            contents += [inputs.content[start:end] for _, _, _, start, end in entries]
    else:
        tensors = sorted(inputs, key=_name)
        contents += [_content(tensor) for tensor in tensors]
        sizes = map(len, contents)
        description = _describe([(t.name, t.datatype, t.shape, size) for t, size in zip(tensors, sizes, strict=True)])
    parts = [description, _other(request), *contents]
    size = sum(map(len, parts))
    if size <= LONGEST_PLAIN:
        return b"".join((scope, _PLAIN, *parts))
    digest = blake2b(digest_size=DIGEST_SIZE)
    for part in parts:
        digest.update(part)
    return b"".join((scope, _DIGEST, digest.digest()))


def _name(tensor: InputTensor) -> str:
    return tensor.name


def _content(tensor: InputTensor) -> Buffer:
    content = tensor.data
    return content if type(content) is memoryview else wire_bytes(content)


def _describe_layout(layout: TensorLayout) -> tuple[bytes, bool]:
    entries = sorted(layout.entries)
    is_sorted = entries == list(layout.entries)
    return _describe([(name, datatype, shape, end - start) for name, datatype, shape, start, end in entries]), is_sorted


def _describe(tensors: list[tuple[str, str, Shape, int]]) -> bytes:
    text = repr([(name, datatype, tuple(shape), size) for name, datatype, shape, size in tensors]).encode()
    return _LENGTH.pack(len(text)) + text


def _other(request: InferenceRequest) -> bytes:
    """What decides the answer besides the inputs; most requests have nothing of it."""
    parameters = request.parameters
    if not (parameters or request.outputs or request.correlation_id or request.sequence_start or request.sequence_end):
        return _NOTHING_ELSE
    text = repr(
        (
            request.outputs,
            sorted(parameters.items()) if parameters else [],
            request.correlation_id,
            request.sequence_start,
            request.sequence_end,
        )
    ).encode("utf-8", "surrogatepass")
    return _LENGTH.pack(len(text)) + text
