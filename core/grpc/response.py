"""An InferenceResponse as a ModelInferResponse, alone or in a ModelStreamInferResponse.

The bytes before the tensors are written once for all responses of a model whose outputs have one form: only the id
differs. Large tensors are sent from where they are.
Source: docs/spec/grpc.md section 3 "Response", section 4.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from struct import Struct
from typing import Final

from trident.core.config.spec import ModelSpec
from trident.core.errors import BackendFailed, InvalidRequest
from trident.core.frontend.classification import classified
from trident.core.grpc.messages import length_field, length_prefix, packed_integers, string_field, varint
from trident.core.grpc.request import ResponsePlan
from trident.core.inference.request import Parameter
from trident.core.inference.response import NO_SEQUENCE, InferenceResponse, OutputTensor, PackedOutputs
from trident.core.inference.tensors import Buffer, Shape, TensorLayout
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
    """What stands before and between the tensors of responses that have the same outputs. Any thread."""

    __slots__ = ("_pieces", "names", "outputs")

    def __init__(self, model_name: str, model_version: int, outputs: Iterable[tuple[str, str, Shape]]) -> None:
        self.names = string_field(1, model_name) + string_field(2, str(model_version))
        self.outputs = b"".join([_output(*output) for output in outputs])
        self._pieces: list[tuple[bytes, int, int]] = []

    @staticmethod
    def of_layout(model_name: str, model_version: int, layout: TensorLayout) -> _Head:
        head = _Head(model_name, model_version, [entry[:3] for entry in layout.entries])
        head._pieces = [(length_prefix(_CONTENTS, end - start), start, end) for *_, start, end in layout.entries]
        return head

    def write(self, middle: bytes, content: memoryview) -> bytes:
        """The message with outputs that have a layout. `middle` are the id and the parameters."""
        parts: list[Buffer] = [self.names, middle, self.outputs]
        for prefix, start, end in self._pieces:
            parts += (prefix, content[start:end])
        return b"".join(parts)


# The key is the model, its version, and the layout of the outputs, or the name, datatype and shape of each.
_heads: Final[Memo[tuple[object, ...], _Head]] = Memo(_MOST_HEADS)


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
    outputs = response.outputs
    if type(outputs) is PackedOutputs and plan.classes is None and outputs.layout.size <= _LARGE:
        key = (response.model_name, response.model_version, outputs.layout)
        head = _heads.get(key)
        if head is None:
            head = _heads[key] = _Head.of_layout(*key)
        message = head.write(middle, outputs.content)
        return [message], len(message)
    return _separate(response, plan, spec, middle)


def _separate(response: InferenceResponse, plan: ResponsePlan, spec: ModelSpec, middle: bytes) -> Encoded:
    outputs: Iterable[OutputTensor] = response.outputs
    if plan.classes is not None:
        outputs = [classified(output, plan.classes.get(output.name, 0), spec) for output in outputs]
    described = tuple([(output.name, output.datatype, output.shape) for output in outputs])
    key = (response.model_name, response.model_version, described)
    head = _heads.get(key)
    if head is None:
        head = _heads[key] = _Head(*key)
    parts: list[Buffer] = [head.names + middle + head.outputs]
    size = len(parts[0])
    for output in outputs:
        content = output.content()
        prefix = length_prefix(_CONTENTS, len(content))
        parts += (prefix, content)
        size += len(prefix) + len(content)
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
    return _NO_SEQUENCE if parameters is NO_SEQUENCE else _written(parameters)


def _written(parameters: Mapping[str, Parameter]) -> bytes:
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


_NO_SEQUENCE: Final = _written(NO_SEQUENCE)
