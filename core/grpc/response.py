"""An InferenceResponse as a ModelInferResponse, alone or in a ModelStreamInferResponse.

The bytes before the tensors are written once for all responses of a model whose outputs have one form: only the id
differs. Large tensors are sent from where they are.
Source: docs/spec/grpc.md section 3 "Response", section 4.
"""

from __future__ import annotations

from collections.abc import Mapping
from struct import Struct
from typing import Final

from trident.core.config.spec import ModelSpec
from trident.core.errors import BackendFailed, InvalidRequest
from trident.core.frontend.classification import classified
from trident.core.grpc.protobuf import length_field, length_prefix, packed_integers, string_field, varint
from trident.core.grpc.request import ResponsePlan
from trident.core.inference.request import Parameter
from trident.core.inference.response import InferenceResponse, Outputs, PackedOutputs
from trident.core.inference.tensors import Buffer, Shape, TensorLayout, layout_of
from trident.core.memo import Memo

# The parts of a message, and their size in bytes together.
Encoded = tuple[list[Buffer], int]

LARGEST_MESSAGE: Final = 2**31 - 1
_MOST_HEADS = 1024
# Joining smaller tensors is faster than sending them apart.
_LARGE: Final = 32768

_ID: Final = 3
_PARAMETERS: Final = 4
_OUTPUTS: Final = 5
_CONTENTS: Final = 6
_INFER_RESPONSE: Final = 2
_INT64: Final = range(-(2**63), 2**63)
_DOUBLE: Final = Struct("<d")


def _entry(key: str, value: bytes) -> bytes:
    """An entry of a map of InferParameter."""
    return length_field(_PARAMETERS, string_field(1, key) + length_field(2, value))


# A `oneof` keeps its false.
_FINAL: Final = {final: _entry("triton_final_response", bytes((1 << 3, final))) for final in (False, True)}


class _Head:
    """The bytes before and between the tensors of responses that have the same layout. Any thread."""

    __slots__ = ("names", "outputs", "pieces", "size")

    def __init__(self, model_name: str, model_version: int, layout: TensorLayout) -> None:
        self.names = string_field(1, model_name) + string_field(2, str(model_version))
        self.outputs = b"".join([_output(*entry[:3]) for entry in layout.entries])
        # What stands before each tensor, and the place of the tensor in a run.
        self.pieces = [(length_prefix(_CONTENTS, end - start), start, end) for *_, start, end in layout.entries]
        # That of a message without an id and parameters.
        self.size = len(self.names) + len(self.outputs) + layout.size + sum([len(piece[0]) for piece in self.pieces])


# By the model, its version, and the layout of the outputs.
_heads: Final[Memo[tuple[str, int, TensorLayout], _Head]] = Memo(_MOST_HEADS)


def encode_response(response: InferenceResponse, plan: ResponsePlan, spec: ModelSpec) -> Encoded:
    """A ModelInferResponse. Raises InvalidRequest for an output that cannot be classified, or if it is too large."""
    return _encoded(response, plan, spec, b"")


def encode_stream_response(response: InferenceResponse, plan: ResponsePlan, spec: ModelSpec, *, final: bool) -> Encoded:
    """A ModelStreamInferResponse with the response, and whether it is the last one to its request.

    Raises InvalidRequest as `encode_response`.
    """
    return in_stream(_encoded(response, plan, spec, _FINAL[final]))


def encode_empty_final(request_id: str, model_name: str, model_version: str) -> Encoded:
    """The message that ends the responses to a request in a stream. `model_version` is the text in the request."""
    return in_stream(_without_outputs(request_id, model_name, model_version, _FINAL[True]))


def encode_stream_error(message: str, request_id: str) -> Encoded:
    """A ModelStreamInferResponse for a request that was refused before it ran: it has the id alone."""
    return in_stream(_without_outputs(request_id, "", "", b""), message)


def encode_stream_failure(message: str, request_id: str, model_name: str, model_version: str) -> Encoded:
    """A ModelStreamInferResponse for a request that failed as it ran. `model_version` is the text in the request."""
    return in_stream(_without_outputs(request_id, model_name, model_version, _FINAL[True]), message)


def in_stream(encoded: Encoded, error: str = "") -> Encoded:
    """A ModelInferResponse as the `infer_response` of a ModelStreamInferResponse."""
    parts, size = encoded
    head = length_prefix(_INFER_RESPONSE, size)
    if error:
        head = string_field(1, error) + head
    elif size <= _LARGE and len(parts) == 1:
        return [b"".join((head, *parts))], len(head) + size
    return _limited([head, *parts], len(head) + size)


def _without_outputs(request_id: str, model_name: str, model_version: str, parameters: bytes) -> Encoded:
    message = string_field(1, model_name) + string_field(2, model_version) + string_field(_ID, request_id) + parameters
    return [message], len(message)


def _encoded(response: InferenceResponse, plan: ResponsePlan, spec: ModelSpec, parameters: bytes) -> Encoded:
    middle = string_field(_ID, response.id) + parameters if response.id else parameters
    if response.parameters:
        middle += encode_parameters(response.parameters)
    outputs: Outputs = response.outputs
    if plan.classes is not None:
        outputs = [classified(output, plan.classes.get(output.name, 0), spec) for output in outputs]
    contents: list[Buffer] = []
    if type(outputs) is PackedOutputs:
        layout = outputs.layout
    else:
        contents = [output.content() for output in outputs]
        named = zip(outputs, contents, strict=True)
        layout = layout_of([(each.name, each.datatype, each.shape, len(content)) for each, content in named])
    key = (response.model_name, response.model_version, layout)
    head = _heads.get(key)
    if head is None:
        head = _heads[key] = _Head(*key)
    parts: list[Buffer] = [head.names + middle + head.outputs]
    if type(outputs) is PackedOutputs:
        run = outputs.content
        for prefix, start, end in head.pieces:
            parts += (prefix, run[start:end])
    else:
        for (prefix, _, _), content in zip(head.pieces, contents, strict=True):
            parts += (prefix, content)
    size = head.size + len(middle)
    if layout.size <= _LARGE:
        return [b"".join(parts)], size
    return _limited(parts, size)


def _limited(parts: list[Buffer], size: int) -> Encoded:
    if size > LARGEST_MESSAGE:
        raise InvalidRequest(
            f"Response has byte size {size} which exceeds gRPC's byte size limit {LARGEST_MESSAGE}.",
            hint="ask for fewer outputs, or send fewer items at once",
        )
    return parts, size


def _output(name: str, datatype: str, shape: Shape) -> bytes:
    return length_field(_OUTPUTS, string_field(1, name) + string_field(2, datatype) + packed_integers(3, shape))


def encode_parameters(parameters: Mapping[str, Parameter]) -> bytes:
    """The parameters that the model gave its response. Raises BackendFailed for a number that no field can hold."""
    return b"".join([_entry(key, _parameter(key, value)) for key, value in parameters.items()])


def _parameter(key: str, value: Parameter) -> bytes:
    # The fields of a `oneof` are written though they have their default value.
    if isinstance(value, bool):
        return bytes((1 << 3, value))
    if isinstance(value, int):
        if value not in _INT64:
            raise BackendFailed(
                f"the model gave its response the parameter '{key}', which is no 64-bit integer: {value}"
            )
        return bytes((2 << 3,)) + varint(value & 0xFFFF_FFFF_FFFF_FFFF)
    if isinstance(value, float):
        return bytes((4 << 3 | 1,)) + _DOUBLE.pack(value)
    return length_field(3, value.encode("utf-8", "replace"))
