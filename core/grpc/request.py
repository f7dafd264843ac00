"""A ModelInferRequest as an InferenceRequest for the model that it names.

The checks are in Triton's order. Tensors that stand in `raw_input_contents` are views of the message.
Source: docs/spec/grpc.md sections 1 and 3.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from struct import Struct
from typing import Any, Final, TypeAlias

import numpy as np

from trident.core.engine.protocol import ServedModel
from trident.core.errors import InvalidRequest
from trident.core.frontend.dataplane import (
    Lookup,
    ParameterForm,
    ResponsePlan,
    find_model,
    one_response,
    read_parameters,
)
from trident.core.frontend.request import check_rank, forward_header
from trident.core.grpc.messages import length_prefix, parse, read_length
from trident.core.grpc.status import MalformedMessage
from trident.core.inference.request import InferenceRequest, Inputs, InputTensor, PackedInputs, Parameter
from trident.core.inference.response import RegionInput, RegionReference, RegionRequest
from trident.core.inference.tensors import (
    BY_NAME,
    INVALID_DATATYPE,
    Array,
    Buffer,
    Shape,
    bytes_array,
    layout_of,
)
from trident.core.memo import AdaptiveMemo, Memo

# Messages of protobuf. Their module is loaded when the first one is parsed.
ModelInferRequest: TypeAlias = Any
InferTensorContents: TypeAlias = Any
InferParameter: TypeAlias = Any
# Names and values of request headers that become parameters.
Forwarded = Sequence[tuple[str, str]]


_NOT_BY_MODEL_INFER: Final = "ModelInfer RPC doesn't support models with decoupled transaction policy"
_MOST: Final = 4096


class DecodedRequest:
    """The model that was found, the request for it, and what its caller wants of the response."""

    __slots__ = ("model", "plan", "request")

    def __init__(self, model: ServedModel, request: InferenceRequest, plan: ResponsePlan) -> None:
        self.model = model
        self.request = request
        self.plan = plan


class MessageDecoder:
    """Decodes requests for the models that `lookup` finds; its errors are passed on. Any thread."""

    def __init__(self, lookup: Lookup) -> None:
        self._lookup = lookup
        # Decoded requests without their tensors and their id, by what stands before the tensors, up to 2 KB each; and
        # where the first tensor began in large messages, by their sizes.
        self._known: AdaptiveMemo[_Template] = AdaptiveMemo()
        self._offsets: Memo[int, int] = Memo(512)

    def decode(self, message: Buffer, forwarded: Forwarded = (), *, stream: bool = False) -> DecodedRequest:
        """The request in `message`, which it keeps if tensors are in it. `stream` allows models that answer many times.

        It arrived when this is called. Raises MalformedMessage, InvalidRequest, Unsupported and the lookup errors of
        `Engine.model`.
        """
        arrived_ns = time.monotonic_ns()
        decoded = self._decode_message(message, forwarded, stream)
        if decoded.model.spec.counts_arrival:
            decoded.request.arrived_ns = arrived_ns
        return decoded

    def _decode_message(self, message: Buffer, forwarded: Forwarded, stream: bool) -> DecodedRequest:
        known = self._fill(message)
        if known is not None:
            request, plan = known
            model = self._lookup(request.model_name, request.model_version)
            if not stream:
                one_response(model, _NOT_BY_MODEL_INFER)
            for name, value in forwarded:
                forward_header(request, name, value)
            return DecodedRequest(model, request, plan)
        head = head_of(message)
        tensors = None if head is None else tensors_from(message, head[2])
        if head is None or tensors is None:
            parsed = parse("ModelInferRequest", message)
            return self._decode(None, parsed, parsed.raw_input_contents, forwarded, stream)
        return self._decode(head, parse("ModelInferRequest", message[: head[2]]), tensors, forwarded, stream)

    def _fill(self, message: Buffer) -> tuple[InferenceRequest, ResponsePlan] | None:
        """The request in `message`; None if it has no template, or only protobuf can tell."""
        head = head_of(message)
        if head is None:
            return None
        text, content, end = head
        template = self._known.get(text)
        if template is None:
            return None
        try:
            request = template.fill(content.decode() if content else "", message, end)
        except UnicodeDecodeError:
            return None
        if request is None:
            return None
        self._known.hits += 1
        size = len(message)
        if size > _LARGE:
            self._offsets[size] = end + template.prefix_size
        return request, template.plan

    def tensor_offset(self, size: int) -> int:
        """Where in a message of `size` bytes the first tensor probably begins, from earlier ones; 0 if unknown.

        A tensor that lies at a multiple of its element size in memory is not copied. Copying 600 KB takes 13 us.
        """
        return self._offsets.get(size, 0)

    def _decode(
        self,
        head: MessageHead | None,
        parsed: ModelInferRequest,
        tensors: Sequence[Buffer],
        forwarded: Forwarded,
        stream: bool,
    ) -> DecodedRequest:
        name = parsed.model_name
        model, version = find_model(self._lookup, name, parsed.model_version)
        if not stream:
            one_response(model, _NOT_BY_MODEL_INFER)
        for kind in ("parameters", "inputs", "outputs"):
            count = len(getattr(parsed, kind))
            if count > _MOST:  # reading them one by one would hold everything up
                text = f"the request has {count} {kind}, which are more than the maximum of {_MOST}"
                raise InvalidRequest(text)
        request = InferenceRequest(name, [], model_version=version, id=parsed.id)
        empty_final = read_parameters(parsed.parameters, request, PARAMETERS)
        own = request.parameters
        # First of all, whatever else is wrong with them.
        for kind, listed in (("input", parsed.inputs), ("output", parsed.outputs)):
            names: set[str] = set()
            for each in listed:
                if each.name in names:
                    raise InvalidRequest(f"{request.log_prefix}{kind} '{each.name}' already exists in request")
                names.add(each.name)
        if forwarded:
            request.parameters = None if own is None else own.copy()
            for header, value in forwarded:
                forward_header(request, header, value)
        request.inputs = _read_inputs(parsed, tensors)
        regions: dict[str, RegionReference] = {}
        outputs = _read_outputs(parsed, request, regions)
        plan = ResponsePlan(True, outputs, model_version=parsed.model_version, empty_final=empty_final)
        if regions or any(type(tensor) is RegionInput for tensor in request.inputs):
            request = RegionRequest.of(request, regions)
        elif (
            head is not None
            and len(head[0]) <= _MAX_HEAD_SIZE
            and len(request.inputs) == len(tensors) > 0
            and self._known.is_learning()
        ):
            # Each input has one of the tensors. The parameters of request headers are not part of a template.
            self._known[head[0]] = _Template(request, own, list(map(len, tensors)), plan)
        return DecodedRequest(model, request, plan)


def request_id(message: Buffer) -> str:
    """Return the id of a request that `MessageDecoder.decode` refused; "" if it has none or is not a message."""
    head = head_of(message)
    try:
        found: str = parse("ModelInferRequest", message if head is None else message[: head[2]]).id
    except MalformedMessage:
        return ""
    return found


# --- tensors

_NOTHING = memoryview(b"")


def _read_inputs(parsed: ModelInferRequest, tensors: Sequence[Buffer]) -> list[InputTensor]:
    inputs: list[InputTensor] = []
    model = parsed.model_name
    next_tensor = 0
    for tensor in parsed.inputs:
        name = tensor.name
        datatype = tensor.datatype
        check_rank(len(tensor.shape))
        shape = tuple(tensor.shape)
        if tensor.parameters:
            region = region_of(tensor.parameters, name)
            if region is not None:
                if tensor.HasField("contents"):
                    raise InvalidRequest(
                        f"unexpected 'content' provided when using shared memory for input tensor '{name}' "
                        f"for model '{model}'"
                    )
                inputs.append(RegionInput(name, datatype, shape, region))
                continue
        if tensor.HasField("contents"):
            if tensors:
                raise InvalidRequest(
                    f"contents field must not be specified when using raw_input_contents for '{name}' "
                    f"for model '{model}'"
                )
            array = array_of_contents(tensor.contents, datatype, name, model)
            inputs.append(InputTensor(name, datatype, shape, _NOTHING if array is None else array))
            continue
        if next_tensor == len(tensors):
            raise InvalidRequest(f"unable to find data for input tensor '{name}' for model '{model}' in request.")
        inputs.append(InputTensor(name, datatype, shape, memoryview(tensors[next_tensor])))
        next_tensor += 1
    return inputs


# The fields in Triton's order, the datatype of their elements, and the narrower ones that they stand for as well.
_FIELDS: tuple[tuple[str, str, tuple[str, ...]], ...] = (
    ("bool_contents", "BOOL", ()),
    ("int_contents", "INT32", ("INT8", "INT16")),
    ("int64_contents", "INT64", ()),
    ("uint_contents", "UINT32", ("UINT8", "UINT16")),
    ("uint64_contents", "UINT64", ()),
    ("fp32_contents", "FP32", ()),
    ("fp64_contents", "FP64", ()),
    ("bytes_contents", "BYTES", ()),
)
# Their elements have a fixed size on the wire; a flag is written as one byte.
_COPIED: Final = frozenset({"BOOL", "FP32", "FP64"})


def array_of_contents(contents: InferTensorContents, datatype: str, name: str, model: str) -> Array | None:
    """The elements as a flat array; None without elements.

    Raises InvalidRequest for elements of another type or beyond `datatype`, and for more than one field with elements.
    """
    array: Array | None = None
    for field, own, narrower in _FIELDS:
        elements = getattr(contents, field)
        if not elements:
            continue
        given = datatype if datatype in narrower else own
        where = f"unexpected explicit tensor data for input tensor '{name}' for model '{model}'"
        if array is not None:
            raise InvalidRequest(f"{where}, binary data was already supplied.")
        if given != datatype:
            expected = datatype if datatype in BY_NAME else INVALID_DATATYPE
            raise InvalidRequest(f"{where} of type '{given}', expected datatype '{expected}'")
        if own == "BYTES":
            array = bytes_array(elements, (len(elements),))
        elif own in _COPIED:
            # The elements of the first field that has any, whose wire format is that of the array. Protobuf gives its
            # elements one by one, but it writes a field of 600 KB in 50 us.
            content = contents.SerializeToString()
            size, start = read_length(content, 1)
            aligned = content[start : start + size]  # a slice is a copy
            array = np.frombuffer(aligned, BY_NAME[own].dtype, len(elements))
        else:
            wide = np.fromiter(elements, BY_NAME[own].dtype, len(elements))
            array = wide.astype(BY_NAME[given].dtype, copy=False)
            if given != own and not np.array_equal(array, wide):
                at = int(np.argmax(array != wide))
                raise InvalidRequest(f"{where}: element {at} is {wide[at]}, which {datatype} cannot hold")
    return array


def _read_outputs(
    parsed: ModelInferRequest, request: InferenceRequest, regions: dict[str, RegionReference]
) -> dict[str, tuple[bool, int]] | None:
    """Set the requested outputs; returns their forms for the plan, None if no classes are wanted of any.

    Adds to `regions` the places of those that shall lie in shared memory.
    """
    if not parsed.outputs:
        return None
    classes: dict[str, int] = {}
    for output in parsed.outputs:
        name = output.name
        classes[name] = 0
        if output.parameters:
            region = region_of(output.parameters, name)
            classes[name] = classes_of(output.parameters)
            if region is not None:
                if classes[name]:
                    raise InvalidRequest("output can't set both 'shared_memory_region' and 'classification'")
                regions[name] = region
    request.outputs = tuple(classes)
    return {name: (True, wanted) for name, wanted in classes.items()} if any(classes.values()) else None


# --- parameters. Source: docs/spec/grpc.md section 3 "Request parameters" and "Outputs".

EMPTY_FINAL: Final = "triton_enable_empty_final_response"
_REGION: Final = "shared_memory_region"
_OFFSET: Final = "shared_memory_offset"
_BYTE_SIZE: Final = "shared_memory_byte_size"
_CHOICE: Final = "parameter_choice"
_UNSIGNED: Final = 0xFFFF_FFFF_FFFF_FFFF
_CUSTOM: Final = frozenset({"bool_param", "int64_param", "string_param", "double_param"})


def _boolean(key: str, parameter: InferParameter) -> bool:
    if parameter.WhichOneof(_CHOICE) != "bool_param":
        raise _wrong_type(key, "bool_param.")
    value: bool = parameter.bool_param
    return value


def _priority(key: str, parameter: InferParameter) -> int:
    choice = parameter.WhichOneof(_CHOICE)
    if choice not in ("int64_param", "uint64_param"):
        raise _wrong_type(key, "int64_param or uint64_param.")
    priority: int = getattr(parameter, choice)
    if priority < 0:
        raise InvalidRequest("invalid value for 'priority', expected value >= 0.")
    return priority


def _timeout(key: str, parameter: InferParameter) -> int:
    if parameter.WhichOneof(_CHOICE) != "int64_param":
        raise _wrong_type(key, "int64_param.")
    timeout_us: int = parameter.int64_param & _UNSIGNED
    return timeout_us


def _correlation_id(key: str, parameter: InferParameter) -> int | str:
    choice = parameter.WhichOneof(_CHOICE)
    if choice not in ("int64_param", "string_param"):
        raise _wrong_type(key, "int64_param or string_param.")
    number: int = parameter.int64_param & _UNSIGNED
    text: str = parameter.string_param
    return number if choice == "int64_param" else text


def _custom(key: str, parameter: InferParameter) -> Parameter:
    choice = parameter.WhichOneof(_CHOICE)
    if choice not in _CUSTOM:
        raise _wrong_type(key, "int64_param, bool_param, or string_param.")
    value: Parameter = getattr(parameter, choice)
    return value


PARAMETERS: Final = ParameterForm(
    flag=EMPTY_FINAL,
    reserved="parameter keys starting with 'triton_' are reserved for Triton usage. Only the following keys starting "
    f"with 'triton_' are allowed: {EMPTY_FINAL}",
    boolean=_boolean,
    priority=_priority,
    timeout=_timeout,
    correlation_id=_correlation_id,
    custom=_custom,
)


def region_of(parameters: Mapping[str, InferParameter], tensor: str) -> RegionReference | None:
    """Return the region of a tensor in shared memory; None for a tensor in the message. Raises InvalidRequest."""
    region = parameters.get(_REGION)
    if region is not None and region.WhichOneof(_CHOICE) != "string_param":
        raise _wrong_type_of(tensor, _REGION, "string_param.")
    for key in (_OFFSET, _BYTE_SIZE):
        if key not in parameters:
            continue
        if region is None:
            raise InvalidRequest(f"'{key}' can not be specified without '{_REGION}' parameter for tensor '{tensor}'")
        if parameters[key].WhichOneof(_CHOICE) != "int64_param":
            raise _wrong_type_of(tensor, key, "int64_param.")
    if region is None:
        return None
    if _BYTE_SIZE not in parameters:
        raise InvalidRequest(f"'{_BYTE_SIZE}' must be specified along with '{_REGION}' parameter for tensor '{tensor}'")
    offset = parameters[_OFFSET].int64_param & _UNSIGNED if _OFFSET in parameters else 0
    return RegionReference(region.string_param, offset, parameters[_BYTE_SIZE].int64_param & _UNSIGNED)


def classes_of(parameters: Mapping[str, InferParameter]) -> int:
    """The number of classes wanted of an output; 0 for its values. Raises InvalidRequest."""
    if "classification" not in parameters:
        return 0
    parameter = parameters["classification"]
    if parameter.WhichOneof(_CHOICE) != "int64_param":
        raise _wrong_type("classification", "int64_param")
    classes: int = parameter.int64_param
    if classes <= 0:
        raise InvalidRequest("invalid value for 'classification' parameter, expected >= 0")
    return classes


def _wrong_type(key: str, expected: str) -> InvalidRequest:
    return InvalidRequest(f"invalid value type for '{key}' parameter, expected {expected}")


def _wrong_type_of(tensor: str, key: str, expected: str) -> InvalidRequest:
    return InvalidRequest(f"invalid value type for '{key}' parameter for tensor '{tensor}', expected {expected}")


# --- templates

# A client sends the same bytes before its tensors again and again. Parsing and checking them takes 20 µs for a small
# request, finding them here 3. Clients write the fields of a message by their numbers, and `raw_input_contents` has the
# highest. A message that is written in another way has no head: protobuf reads it as a whole.

TENSOR: Final = 7
_TENSOR_TAG: Final = TENSOR << 3 | 2
_ID_TAG: Final = 3 << 3 | 2
# The fields before the tensors: all are strings or messages.
_HEAD_TAGS: Final = frozenset(number << 3 | 2 for number in (1, 2, 3, 4, 5, 6))
_ONE_BYTE: Final = 127
# A hostile message may consist of empty fields. Protobuf passes over them in a tenth of the time.
_MOST_FIELDS: Final = 4096

# All before the tensors without the field of the id, the content of that field, and where the tensors begin.
MessageHead = tuple[bytes, bytes, int]


def head_of(message: Buffer) -> MessageHead | None:
    """The part before the tensors; None if only protobuf can read the message, if at all."""
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


_MAX_HEAD_SIZE: Final = 2048
# Copying smaller tensors together takes less time than an array for each of them.
_LARGE: Final = 16384


class _Template:
    """A decoded request without its id and its tensors. Any thread."""

    __slots__ = ("_layout", "_named", "_prefixes", "_request", "_size", "_unpack", "plan", "prefix_size")

    def __init__(
        self, request: InferenceRequest, own: dict[str, Parameter] | None, sizes: list[int], plan: ResponsePlan
    ) -> None:
        """`own` are the parameters in the message, `sizes` the sizes of its tensors in bytes."""
        self.plan = plan
        # A copy without the tensors: they are views of a message whose memory must become free.
        self._request = request.with_inputs([], model_version=request.model_version, id="")
        self._request.parameters = own
        self._named: list[tuple[str, str, Shape]] = [(t.name, t.datatype, t.shape) for t in request.inputs]
        prefixes = [length_prefix(TENSOR, size) for size in sizes]
        self._prefixes = tuple(prefixes)
        self.prefix_size = len(prefixes[0])
        self._layout = layout_of([(*named, size) for named, size in zip(self._named, sizes, strict=True)])
        # Of small tensors with the sizes of the first ones, all are cut out at once.
        self._size = sum(map(len, prefixes)) + sum(sizes)
        self._unpack: Callable[[Buffer, int], tuple[bytes, ...]] | None = None
        if self._size <= _LARGE:
            formats = zip(prefixes, sizes, strict=True)
            self._unpack = Struct("".join(f"{len(prefix)}s{size}s" for prefix, size in formats)).unpack_from

    def fill(self, request_id: str, message: Buffer, end: int) -> InferenceRequest | None:
        """The same request with the tensors that stand from `end` in `message`; None if their number is wrong."""
        inputs: Inputs | None = None
        unpack = self._unpack
        if unpack is not None and len(message) - end == self._size:
            parts = unpack(message, end)
            if parts[::2] == self._prefixes:
                inputs = PackedInputs(self._layout, memoryview(b"".join(parts[1::2])))
        if inputs is None:
            tensors = tensors_from(message, end)
            if tensors is None or len(tensors) != len(self._named):
                return None
            inputs = [InputTensor(*named, tensor) for named, tensor in zip(self._named, tensors, strict=True)]
        request = self._request
        return request.with_inputs(inputs, model_version=request.model_version, id=request_id)
