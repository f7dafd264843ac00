"""Decodes the body of an infer request: JSON, with or without binary tensors after it.

The checks are in Triton's order, and no memory is allocated for a size that the client merely states. Binary tensors
are views of the body. Headers that clients repeat are remembered: one is parsed and checked in 12 µs, and found again
in 3.
Source: docs/spec/http.md sections 4 to 7.
"""

from __future__ import annotations

from math import prod
from struct import Struct, pack
from struct import error as StructError
from typing import Any, Final

import orjson
from numpy import ndarray

from trident.core.config.spec import ModelSpec
from trident.core.errors import InvalidRequest
from trident.core.frontend.dataplane import ParameterForm, ResponsePlan, read_parameters
from trident.core.frontend.request import (
    NON_BOOLEAN,
    NON_STRING,
    NON_UNSIGNED,
    boolean,
    check_rank,
    json_parameter,
    string,
    unable,
    unsigned,
)
from trident.core.http.body import raw_too_large, too_large
from trident.core.http.v2_json import (
    BINARY_WITHOUT_HEADER,
    ELEMENT_TYPES,
    array_from_json,
    json_datatype,
    parse_document,
)
from trident.core.inference.request import InferenceRequest, Inputs, InputTensor, PackedInputs
from trident.core.inference.response import (
    NO_SEQUENCE,
    InferenceResponse,
    PackedOutputs,
    RegionInput,
    RegionReference,
    RegionRequest,
)
from trident.core.inference.tensors import (
    BYTES,
    MAX_ELEMENTS,
    NUMBER_CODES,
    Buffer,
    Datatype,
    Shape,
    TensorLayout,
    element_count,
    layout_of,
)
from trident.core.memo import AdaptiveMemo

_NON_ARRAY: Final = "attempt to access JSON non-array as array"
_NON_OBJECT: Final = "attempt to access JSON non-object as object"
_ONE_SOURCE: Final = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
    "'shared_memory_region' in 'parameters'. But "
)
_INSTANCES: Final = 'POST /v1/models/{0}:predict takes {{"instances":[...]}}; for this route '
_NOTHING: Final = memoryview(b"")
_NO_PARAMETERS: Final[dict[str, Any]] = {}
# Of an array. Copying smaller ones together takes less time than an array for each of them.
_PACKED: Final = 4096


def decode_request(
    body: Buffer,
    header_length: int | None,
    version: int,
    spec: ModelSpec,
    max_input_size: int,
) -> Decoded:
    """The request in `body`, whose first `header_length` bytes are JSON (None: all bytes; 0: raw tensor bytes).

    Raises InvalidRequest with Triton's texts.
    """
    if header_length == 0 or (header_length is None and not body):
        return _raw_request(body, version, spec, max_input_size), ResponsePlan(binary=True)
    size = len(body) if header_length is None else header_length
    if size > max_input_size:
        raise too_large(str(size), max_input_size)
    if header_length is None:
        text = body if type(body) is bytes else memoryview(body)
        return _decode(parse_document(text, binary_follows=False), None, version, spec, max_input_size)
    view = memoryview(body)
    # A small body is `bytes`, whose slice costs less than one of a view.
    header, tail = body[:size] if type(body) is bytes else bytes(view[:size]), view[size:]
    known = _known_headers.get((spec.name, header))
    if known is not None and known[1].size == len(tail):
        request, layout, plan = known
        _known_headers.hits += 1
        return request.with_inputs(PackedInputs(layout, tail), model_version=version, id=request.id), plan
    request, plan = decoded = _decode(parse_document(header, binary_follows=True), tail, version, spec, max_input_size)
    is_binary = type(request) is InferenceRequest and request.nbytes == len(tail)  # no input has its data in the JSON
    if is_binary and len(header) <= _MAX_SIZE and _known_headers.is_learning():
        layout = layout_of([(t.name, t.datatype, t.shape, len(t.data)) for t in request.inputs])
        copy = request.with_inputs([], model_version=request.model_version, id=request.id)
        _known_headers[spec.name, header] = copy, layout, plan
    return decoded


def _decode(
    document: dict[str, Any], tail: memoryview | None, version: int, spec: ModelSpec, max_input_size: int
) -> Decoded:
    request = InferenceRequest(spec.name, [], model_version=version)
    request_id = document.get("id")
    if request_id is not None:
        request.id = string("id", request_id)
    parameters = document.get("parameters")
    binary = read_json_parameters(parameters, request) if parameters is not None else False
    request.inputs = _read_inputs(document, tail, request, spec, max_input_size)
    outputs = document.get("outputs")
    regions: dict[str, RegionReference] = {}
    if outputs is None or outputs == []:
        plan = _BINARY if binary else _JSON
    else:
        # A listed output has its own form.
        listed = _read_outputs(outputs, request, regions)
        request.outputs = tuple(listed)
        plan = ResponsePlan(False, listed, frozenset(regions))
    # Looking at packed inputs one by one would unpack them.
    inputs = request.inputs
    if regions or (type(inputs) is not PackedInputs and any(type(tensor) is RegionInput for tensor in inputs)):
        request = RegionRequest.of(request, regions)
    return request, plan


def _correlation_id(key: str, value: Any) -> int | str:
    if type(value) is not str and not (type(value) is int and 0 <= value < 1 << 64):
        raise unable(key, NON_STRING)  # Triton tries a string last
    return value


_PARAMETERS: Final = ParameterForm(
    flag="binary_data_output",
    reserved="parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.",
    boolean=boolean,
    priority=unsigned,
    timeout=unsigned,
    correlation_id=_correlation_id,
    custom=json_parameter,
)


def read_json_parameters(parameters: Any, request: InferenceRequest) -> bool:
    """Set the parameters in `request`; returns `binary_data_output`. Raises InvalidRequest."""
    if type(parameters) is not dict:
        text = "failed to get request params.: attempt to get members for non-object"
        raise InvalidRequest(text, hint="'parameters' must be an object")
    return read_parameters(parameters, request, _PARAMETERS)


def _missing(field: str) -> InvalidRequest:
    return unable(field, f"attempt to access non-existing object member '{field}'")


# --- inputs ----------------------------------------------------------------------------------------------------------


def _read_inputs(
    document: dict[str, Any],
    tail: memoryview | None,
    request: InferenceRequest,
    spec: ModelSpec,
    max_input_size: int,
) -> Inputs:
    if "inputs" not in document:
        error = _missing("inputs")
        other = "" if document and "instances" not in document else _INSTANCES.format(spec.name)
        error.hint = f"{other}GET /v2/models/{spec.name}/request?form=curl shows a request"
        raise error
    items = document["inputs"]
    if type(items) is not list:
        error = unable("inputs", _NON_ARRAY)
        error.hint = _input_hint(None, spec)
        raise error
    inputs: list[InputTensor] = []
    names: set[str] = set()
    rest = _NOTHING if tail is None else tail
    offset = 0
    packs = tail is None
    for item in items:
        try:
            parameters = _source_parameters(item)
            name, datatype, shape = _read_header(item)
        except InvalidRequest as wrong:
            wrong.hint = wrong.hint or _input_hint(item, spec)
            raise
        if name in names:
            raise InvalidRequest(f"{request.log_prefix}input '{name}' already exists in request")
        names.add(name)
        if "binary_data_size" not in parameters:
            region = _place(parameters) if parameters else None
            if region is not None:
                packs = False
                inputs.append(RegionInput(name, datatype, shape, region))
                continue
            tensor = _json_input(item["data"], name, datatype, shape, max_input_size)
            packs = packs and tensor.nbytes <= _PACKED and datatype != "BYTES"
            inputs.append(tensor)
            continue
        size = unsigned("binary_data_size", parameters["binary_data_size"])
        end = offset + size
        if end > len(rest):
            raise InvalidRequest(
                f"unexpected size for input '{name}', expecting {end - len(rest)} additional bytes "
                f"for model '{spec.name}'",
                hint=BINARY_WITHOUT_HEADER if tail is None else None,
            )
        inputs.append(InputTensor(name, datatype, shape, rest[offset:end]))
        offset = end
    if offset != len(rest):
        raise InvalidRequest(f"unexpected additional input data for model '{spec.name}'")
    if not (packs and inputs):
        return inputs
    # Small arrays as one run of bytes cost less from here on than an array for each of them.
    described = [(each.name, each.datatype, each.shape, each.data.nbytes) for each in inputs]
    return PackedInputs(layout_of(described), memoryview(b"".join([each.data.tobytes() for each in inputs])))


def _input_hint(item: Any, spec: ModelSpec) -> str:
    """The form of the input that `item` names; of the model's first one if it names none."""
    name = item.get("name") if type(item) is dict else None
    known = spec.inputs.get(name) if type(name) is str else None
    expected = known or next(iter(spec.inputs.values()), None)
    if expected is None:
        return "the model has no inputs: send an empty list"
    has_batch = spec.max_batch_size > 0 and not expected.is_shape_tensor
    shape = ",".join(["1"] * has_batch + ["N" if dim < 0 else str(dim) for dim in expected.dims])
    is_in_json = expected.datatype.name not in ("FP16", "BF16")
    content = '"data":[...]' if is_in_json else '"parameters":{"binary_data_size":...}'
    text = f'{{"name":"{expected.name}","datatype":"{expected.datatype.name}","shape":[{shape}],{content}}}'
    return f"'inputs' is a list of objects such as {text}"


def _source_parameters(item: Any) -> dict[str, Any]:
    """The parameters of an input, whose data is in the JSON, after it, or in shared memory.

    Raises InvalidRequest unless it is in exactly one of these.
    """
    if type(item) is not dict:
        raise InvalidRequest(_ONE_SOURCE + "no field is set")
    parameters: Any = item.get("parameters")
    if parameters is None:
        if "data" in item:
            return _NO_PARAMETERS
        raise InvalidRequest(_ONE_SOURCE + "no field is set")
    if type(parameters) is not dict:
        raise unable("parameters", _NON_OBJECT)
    given = ["'data'"] if "data" in item else []
    given += [f"'{key}'" for key in ("binary_data_size", "shared_memory_region") if key in parameters]
    if len(given) != 1:
        raise InvalidRequest(_ONE_SOURCE + (f"set {' '.join(given)}" if given else "no field is set"))
    return parameters


def _place(parameters: dict[str, Any]) -> RegionReference | None:
    """Return the range of a tensor in shared memory; None if it is not there."""
    region = parameters.get("shared_memory_region")
    if "shared_memory_region" in parameters:
        string("shared_memory_region", region)
    offset, size = [
        unsigned(key, parameters.get(key, 0)) for key in ("shared_memory_offset", "shared_memory_byte_size")
    ]
    return None if region is None else RegionReference(region, offset, size)


def _read_header(item: dict[str, Any]) -> tuple[str, str, Shape]:
    try:
        name = string("name", item["name"])
        datatype = string("datatype", item["datatype"])
        dims = item["shape"]
    except KeyError as error:
        raise _missing(error.args[0]) from None
    if type(dims) is not list:
        raise unable("shape", _NON_ARRAY)
    check_rank(len(dims))
    for dim in dims:
        if type(dim) is not int or dim < 0:
            raise unable("shape", NON_UNSIGNED)
    return name, datatype, tuple(dims)


def _json_input(content: Any, name: str, datatype_name: str, shape: Shape, max_input_size: int) -> InputTensor:
    count = prod(shape) if shape else 0  # Triton ignores a scalar's data, too
    if count == 0:
        return InputTensor(name, datatype_name, shape, _NOTHING)
    if not isinstance(content, (list, ndarray)):
        error = unable("data", _NON_ARRAY)
        error.hint = f"'data' of '{name}' must be a list: array.tolist() makes one"
        raise error
    datatype = json_datatype(datatype_name, name)
    size = count * datatype.size
    if max(count, size) > MAX_ELEMENTS:
        return InputTensor(name, datatype_name, shape, _NOTHING)  # validation refuses the size
    if size > max_input_size:
        raise InvalidRequest(
            f"JSON input '{name}' has a byte_size ({size} bytes) that exceeds the maximum allowed value of "
            f"{max_input_size} bytes. Use --http-max-input-size to increase the limit."
        )
    if type(content) is list and count <= _PACKED:
        numbers = _numbers(content, datatype, count)
        if numbers is not None:
            return InputTensor(name, datatype_name, shape, numbers)
    return InputTensor(name, datatype_name, shape, array_from_json(content, datatype, count, name))


def _numbers(content: list[Any], datatype: Datatype, count: int) -> memoryview | None:
    """The bytes of `count` numbers, in a third of the time of an array; None for a list that is nested or wrong."""
    code = NUMBER_CODES.get(datatype.name)
    if code is None or len(content) != count or not set(map(type, content)) <= ELEMENT_TYPES[datatype.kind]:
        return None
    try:
        return memoryview(pack(f"<{count}{code}", *content))
    except (StructError, OverflowError):
        return None


# --- outputs ---------------------------------------------------------------------------------------------------------


def _read_outputs(
    outputs: Any, request: InferenceRequest, regions: dict[str, RegionReference]
) -> dict[str, tuple[bool, int]]:
    """The forms of the listed outputs. Adds to `regions` the ranges of those in shared memory."""
    if type(outputs) is not list:
        raise unable("outputs", _NON_ARRAY)
    listed: dict[str, tuple[bool, int]] = {}
    for item in outputs:
        own = item.get("parameters") if type(item) is dict else None
        parameters: Any = _NO_PARAMETERS if own is None else own
        if type(parameters) is not dict:
            raise unable("parameters", _NON_OBJECT)
        if "shared_memory_region" in parameters:
            # An output in shared memory has no other form than its bytes.
            binary = parameters.get("binary_data", False)
            if type(binary) is not bool:
                raise InvalidRequest(f"Unable to set 'binary_data': {NON_BOOLEAN}")
            for field, value in (("classification", "classification" in parameters), ("binary_data", binary)):
                if value:
                    raise InvalidRequest(f"Output can't set both 'shared_memory_region' and '{field}'")
        if type(item) is not dict or "name" not in item:
            error = _missing("name")
            error.hint = '\'outputs\' is a list of objects such as {"name":"NAME"}'
            raise error
        name = string("name", item["name"])
        if name in listed:
            raise InvalidRequest(f"{request.log_prefix}output '{name}' already exists in request")
        classes = parameters.get("classification", 0)
        if type(classes) is not int or not 0 <= classes < 1 << 64:
            raise InvalidRequest(f"Unable to set 'classification': {NON_UNSIGNED}")
        place = _place(parameters) if parameters else None
        if place is not None:
            regions[name] = place
        listed[name] = (boolean("binary_data", parameters.get("binary_data", False)), classes)
    return listed


# --- raw tensor bytes without JSON -----------------------------------------------------------------------------------


def _raw_request(body: Buffer, version: int, spec: ModelSpec, max_input_size: int) -> InferenceRequest:
    """A request whose body is the bytes of its one input. The batch size is 1; the shape follows from their number."""
    request = InferenceRequest(spec.name, [], model_version=version)
    if len(body) > max_input_size:
        raise raw_too_large(len(body), max_input_size)
    if len(spec.inputs) != 1:
        raise InvalidRequest(
            f"{request.log_prefix}Raw request must only have 1 input (found 1) to be deduced but got "
            f"{len(spec.inputs)} inputs in '{spec.name}' model configuration"
        )
    (expected,) = spec.inputs.values()
    dims = expected.dims
    if expected.datatype is BYTES:
        if dims != (1,):
            raise InvalidRequest(
                f"{request.log_prefix}For BYTE datatype raw input '{expected.name}', the model must have input "
                "shape [1]"
            )
        body = len(body).to_bytes(4, "little") + bytes(body)
    elif dims.count(-1) > 1:
        raise InvalidRequest(
            f"{request.log_prefix}The shape of the raw input '{expected.name}' can not be deduced because there are "
            "more than one variable-sized dimension"
        )
    elif -1 in dims:
        fixed = element_count(d for d in dims if d != -1) * expected.datatype.size
        dims = tuple(len(body) // fixed if d == -1 else d for d in dims)
    size = element_count(dims) * expected.datatype.size
    if expected.datatype is not BYTES and len(body) != size:
        raise InvalidRequest(
            f"{request.log_prefix}input byte size mismatch for input 'raw_input' for model '{spec.name}'. "
            f"Expected {size}, got {len(body)}",
            hint=None if body else f"the body is empty: GET /v2/models/{spec.name}/request?form=curl shows a request",
        )
    shape = (1, *dims) if spec.max_batch_size > 0 else dims
    request.inputs = [InputTensor(expected.name, expected.datatype.name, shape, memoryview(body))]
    return request


# --- texts that are remembered ---------------------------------------------------------------------------------------
#
#    _known_headers  the JSON before binary tensors, by its whole text
#    _known_texts    the JSON around the id and the numbers of responses, by the values that it was made of

# Of a header.
_MAX_SIZE: Final = 2048
# numpy writes more numbers faster.
_MOST_NUMBERS: Final = 1024

Decoded = tuple[InferenceRequest, ResponsePlan]


# Decoded binary requests, each a copy without tensors, which are views of a body whose memory must become free; the
# positions of the tensors, and the plan of the response. By the model and the whole header. Any thread.
_known_headers: Final[AdaptiveMemo[tuple[InferenceRequest, TensorLayout, ResponsePlan]]] = AdaptiveMemo()


_JSON: Final = ResponsePlan()
_BINARY: Final = ResponsePlan(binary=True)


# By what they are made of; None for one that has to be written each time.
_known_texts: Final[AdaptiveMemo[ResponseText | None]] = AdaptiveMemo()


def known_text(response: InferenceResponse, plan: ResponsePlan) -> list[Buffer] | None:
    """The parts of the body of `response`; None if it needs more than a text. Any thread."""
    packed, parameters = response.outputs, response.parameters
    if type(packed) is not PackedOutputs or plan.placed or (parameters and parameters is not NO_SEQUENCE):
        return None
    layout, outputs = packed.layout, plan.outputs
    form = plan.binary if outputs is None else tuple(outputs.items())
    # The flag: it is an ensemble's outside of sequences.
    key = (response.model_name, response.model_version, layout, parameters is NO_SEQUENCE, form)
    try:
        text = _known_texts[key]
    except KeyError:
        if not _known_texts.is_learning():
            return None
        text = _known_texts[key] = ResponseText.of(response, layout, plan)
    else:
        _known_texts.hits += 1
    return None if text is None else text.write(response.id, packed.content)


class ResponseText:
    """The JSON around the numbers of the outputs, and the positions of the numbers in the content. Any thread."""

    __slots__ = ("_binary", "_numbers", "_segments")

    def __init__(self, segments: list[bytes], numbers: list[tuple[Struct, int]], binary: list[tuple[int, int]]) -> None:
        """The numbers stand between the segments, and begin at the offsets; `binary` are the first byte and the end of
        each run that follows the JSON."""
        self._segments = segments
        self._numbers = [(struct.unpack_from, start) for struct, start in numbers]
        self._binary = binary

    @staticmethod
    def of(response: InferenceResponse, layout: TensorLayout, plan: ResponsePlan) -> ResponseText | None:
        """The text of responses like this one, whose outputs have `layout`; None if they need more than a text."""
        document: dict[str, object] = {
            "model_name": response.model_name,
            "model_version": str(response.model_version),
        }
        if response.parameters:
            document["parameters"] = response.parameters
        text = orjson.dumps(document)[:-1] + b',"outputs":['
        segments: list[bytes] = []
        numbers: list[tuple[Struct, int]] = []
        binary: list[tuple[int, int]] = []
        for index, (name, datatype, shape, start, end) in enumerate(layout.entries):
            is_binary, classes = plan.form_of(name)
            entry: dict[str, object] = {"name": name, "datatype": datatype, "shape": shape}
            count = prod(shape)
            if classes or (not is_binary and (datatype not in NUMBER_CODES or count > _MOST_NUMBERS)):
                return None
            if is_binary:
                entry["parameters"] = {"binary_data_size": end - start}
                # In as few runs as possible, without empty ones.
                if binary and binary[-1][1] == start:
                    binary[-1] = (binary[-1][0], end)
                elif start < end:
                    binary.append((start, end))
            text += (b"," if index else b"") + orjson.dumps(entry)[:-1]
            if not is_binary:
                segments.append(text + b',"data":')
                numbers.append((Struct(f"<{count}{NUMBER_CODES[datatype]}"), start))
                text = b""
            text += b"}"
        return ResponseText([*segments, text + b"]}"], numbers, binary)

    def write(self, request_id: str, content: memoryview) -> list[Buffer] | None:
        """The parts of a body; None for a number that JSON cannot express."""
        segments = self._segments
        if not self._numbers:
            text = segments[0]
        else:
            pieces = [segments[0]]
            for (unpack, start), segment in zip(self._numbers, segments[1:], strict=True):
                numbers = orjson.dumps(unpack(content, start))
                if b"n" in numbers:  # null: NaN, or an infinity
                    return None
                pieces += (numbers, segment)
            text = b"".join(pieces)
        if request_id:
            text = b'{"id":%b,%b' % (orjson.dumps(request_id), text[1:])
        return [text, *[content[start:end] for start, end in self._binary]]
