"""Decodes the body of an infer request: JSON, with or without binary tensors after it.

The checks are in Triton's order, and no memory is allocated from a size that the client only claims. Binary tensors are
views of the body. Texts that clients repeat are remembered: two inputs of 16 integers are parsed and checked in 12 to
14 µs, and found again and read in 6 to 8; a header takes 12 µs and 3.
Source: docs/spec/http.md sections 4 to 7.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from itertools import chain
from math import prod
from struct import Struct
from struct import error as StructError
from typing import Any, Final

import numpy as np
import orjson

from trident.core.config.spec import ModelSpec
from trident.core.errors import InvalidRequest, ModelNotFound
from trident.core.frontend.request import NON_UNSIGNED, boolean, check_rank, read_parameters, string, unable, unsigned
from trident.core.http.body import SlicedArray, Slicing, too_large
from trident.core.http.v2_json import (
    BINARY_WITHOUT_HEADER,
    MAX_DEPTH,
    array_from_json,
    array_from_slices,
    json_datatype,
    outline_document,
    parse_document,
)
from trident.core.inference.request import InferenceRequest, InputTensor, PackedInputs
from trident.core.inference.response import InferenceResponse, RegionInput, RegionReference, RegionRequest
from trident.core.inference.tensors import (
    BYTES,
    MAX_ELEMENTS,
    NUMBER_CODES,
    Buffer,
    Shape,
    TensorLayout,
    element_count,
    layout_of,
    wire_bytes,
)
from trident.core.memo import AdaptiveMemo, Memo

_NON_ARRAY: Final = "attempt to access JSON non-array as array"
_NON_OBJECT: Final = "attempt to access JSON non-object as object"
_ONE_SOURCE: Final = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
    "'shared_memory_region' in 'parameters'. But "
)
_NOTHING: Final = memoryview(b"")
_NO_FORM: Final = ((False, 0), None)


def decode_request(
    body: Buffer,
    header_length: int | None,
    version: int,
    spec: ModelSpec,
    max_input_size: int,
    slicing: Slicing | None = None,
    *,
    is_strict: bool = False,
) -> Decoded:
    """The request in `body`, whose first `header_length` bytes are JSON (None: all bytes; 0: raw tensor bytes).

    With `slicing`, long arrays are read in slices. Raises InvalidRequest with Triton's texts, and with `is_strict`
    NotStrict as `parse_document` does.
    """
    if header_length == 0 or (header_length is None and not body):
        return _raw_request(body, version, spec, max_input_size), ResponsePlan(binary=True)
    size = len(body) if header_length is None else header_length
    if size > max_input_size:
        raise too_large(str(size), max_input_size)
    if slicing is not None:
        view = memoryview(body)
        tail = None if header_length is None else view[size:]
        sliced = _decode_slices(view[:size], tail, version, spec, max_input_size, slicing)
        if sliced is not None:
            return sliced
    if header_length is None:
        return _decode_json(body, version, spec, max_input_size, is_strict)
    return _decode_binary(body, size, version, spec, max_input_size, is_strict)


def _decode_slices(
    text: memoryview, tail: memoryview | None, version: int, spec: ModelSpec, max_input_size: int, slicing: Slicing
) -> Decoded | None:
    """The request whose JSON is `text`; None if it has no long array, or has to be read as a whole.

    So has every text with an error, because only the whole text has the right words and place for it.
    """
    outline = outline_document(text, slicing)
    if outline is None:
        return None
    try:
        decoded = _decode(outline.document, tail, version, spec, max_input_size)
    except (InvalidRequest, ModelNotFound, ValueError):
        return None
    return decoded if outline.is_read() else None


def _decode_json(body: Buffer, version: int, spec: ModelSpec, max_input_size: int, is_strict: bool) -> Decoded:
    if type(body) is not bytes:  # a large body
        document = parse_document(memoryview(body), binary_follows=False, is_strict=is_strict)
        return _decode(document, None, version, spec, max_input_size)
    known = _known_bodies.recall(spec.name, version, body, max_input_size)
    if known is not None:
        return known
    document = parse_document(body, binary_follows=False, is_strict=is_strict)
    decoded = _decode(document, None, version, spec, max_input_size)
    _known_bodies.remember(body, *decoded)
    return decoded


def _decode_binary(
    body: Buffer, size: int, version: int, spec: ModelSpec, max_input_size: int, is_strict: bool
) -> Decoded:
    view = memoryview(body)
    # A small body is `bytes`, whose slice costs less than one of a view.
    header, tail = body[:size] if type(body) is bytes else bytes(view[:size]), view[size:]
    known = _known_headers.recall(spec.name, version, header, tail)
    if known is not None:
        return known
    decoded = _decode(
        parse_document(header, binary_follows=True, is_strict=is_strict), tail, version, spec, max_input_size
    )
    request = decoded[0]
    if type(request) is InferenceRequest and all(type(tensor.data) is memoryview for tensor in request.inputs):
        _known_headers.remember(header, *decoded)
    return decoded


def _decode(
    document: dict[str, Any], tail: memoryview | None, version: int, spec: ModelSpec, max_input_size: int
) -> Decoded:
    request = InferenceRequest(spec.name, [], model_version=version)
    request_id = document.get("id")
    if request_id is not None:
        request.id = string("id", request_id)
    parameters = document.get("parameters")
    binary = read_parameters(parameters, request) if parameters is not None else False
    request.inputs = _read_inputs(document, tail, spec, max_input_size)
    outputs = document.get("outputs")
    regions: dict[str, RegionReference] = {}
    if outputs is None or outputs == []:
        plan = ResponsePlan(binary)
    else:
        # A listed output has its own form.
        listed = _read_outputs(outputs, request, regions)
        request.outputs = tuple(listed)
        plan = ResponsePlan(False, listed, frozenset(regions))
    if regions or any(type(tensor) is RegionInput for tensor in request.inputs):
        request = RegionRequest.of(request, regions)
    return request, plan


def _missing(field: str) -> InvalidRequest:
    return unable(field, f"attempt to access non-existing object member '{field}'")


# --- inputs ----------------------------------------------------------------------------------------------------------


def _read_inputs(
    document: dict[str, Any], tail: memoryview | None, spec: ModelSpec, max_input_size: int
) -> list[InputTensor]:
    if "inputs" not in document:
        raise _missing("inputs")
    items = document["inputs"]
    if type(items) is not list:
        raise unable("inputs", _NON_ARRAY)
    inputs: list[InputTensor] = []
    offset = 0
    for item in items:
        size = _data_source(item)
        name, datatype, shape = _read_header(item)
        if isinstance(size, RegionReference):
            # Triton looks for no region if there is nothing to read.
            is_empty = 0 in shape
            inputs.append(
                InputTensor(name, datatype, shape, _NOTHING) if is_empty else RegionInput(name, datatype, shape, size)
            )
            continue
        if size is None:
            inputs.append(_json_input(item["data"], name, datatype, shape, max_input_size))
            continue
        if tail is None:
            raise InvalidRequest(BINARY_WITHOUT_HEADER)
        end = offset + size
        if end > len(tail):
            raise InvalidRequest(
                f"unexpected size for input '{name}', expecting {end - len(tail)} additional bytes "
                f"for model '{spec.name}'"
            )
        inputs.append(InputTensor(name, datatype, shape, tail[offset:end]))
        offset = end
    if tail is not None and offset != len(tail):
        raise InvalidRequest(f"unexpected additional input data for model '{spec.name}'")
    return inputs


def _data_source(item: Any) -> int | RegionReference | None:
    """The binary size of an input, its place in shared memory, or None if its data is in the JSON.

    Raises InvalidRequest unless one is given.
    """
    if type(item) is not dict:
        raise InvalidRequest(_ONE_SOURCE + "no field is set")
    parameters = item.get("parameters")
    if parameters is None:
        if "data" in item:
            return None
        raise InvalidRequest(_ONE_SOURCE + "no field is set")
    if type(parameters) is not dict:
        raise unable("parameters", _NON_OBJECT)
    size = parameters.get("binary_data_size")
    region = parameters.get("shared_memory_region")
    given = ["'data'"] if "data" in item else []
    if size is not None:
        size = unsigned("binary_data_size", size)
        given.append("'binary_data_size'")
    if region is not None:
        string("shared_memory_region", region)
        given.append("'shared_memory_region'")
    if len(given) != 1:
        raise InvalidRequest(_ONE_SOURCE + (f"set {' '.join(given)}" if given else "no field is set"))
    return size if region is None else _place(region, parameters)


def _place(region: str, parameters: dict[str, Any]) -> RegionReference:
    offset, size = [
        unsigned(key, parameters.get(key, 0)) for key in ("shared_memory_offset", "shared_memory_byte_size")
    ]
    return RegionReference(region, offset, size)


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
    datatype = json_datatype(datatype_name, name)
    count = prod(shape) if shape else 0  # Triton ignores a scalar's data, too
    size = count * datatype.size
    if count == 0 or max(count, size) > MAX_ELEMENTS:
        # There is no data to read, or validation refuses the size.
        return InputTensor(name, datatype_name, shape, _NOTHING)
    if size > max_input_size:
        raise InvalidRequest(
            f"JSON input '{name}' has a byte_size ({size} bytes) that exceeds the maximum allowed value of "
            f"{max_input_size} bytes. Use --http-max-input-size to increase the limit."
        )
    read = array_from_slices if type(content) is SlicedArray else array_from_json
    return InputTensor(name, datatype_name, shape, read(content, datatype, count, name))


# --- outputs ---------------------------------------------------------------------------------------------------------


def _read_outputs(
    outputs: Any, request: InferenceRequest, regions: dict[str, RegionReference]
) -> dict[str, tuple[bool, int]]:
    """The forms of the listed outputs. Adds to `regions` the places of those that shall lie in shared memory."""
    if type(outputs) is not list:
        raise unable("outputs", _NON_ARRAY)
    listed: dict[str, tuple[bool, int]] = {}
    for item in outputs:
        if type(item) is not dict or "name" not in item:
            raise _missing("name")
        name = string("name", item["name"])
        if name in listed:
            raise InvalidRequest(f"{request.log_prefix}output '{name}' already exists in request")
        parameters = item.get("parameters")
        listed[name], place = _NO_FORM if parameters is None else _read_output_parameters(parameters)
        if place is not None:
            regions[name] = place
    return listed


def _read_output_parameters(parameters: Any) -> tuple[tuple[bool, int], RegionReference | None]:
    """Whether the output is to be binary, how many classes of it are wanted, and its place in shared memory."""
    if type(parameters) is not dict:
        raise unable("parameters", _NON_OBJECT)
    binary = parameters.get("binary_data")
    classes = parameters.get("classification")
    region = parameters.get("shared_memory_region")
    if classes is not None:
        classes = unsigned("classification", classes)
    if binary is not None:
        binary = boolean("binary_data", binary)
    if region is not None:
        string("shared_memory_region", region)
        for field, value in (("classification", classes), ("binary_data", binary)):
            if value:
                raise InvalidRequest(f"Output can't set both 'shared_memory_region' and '{field}'")
    return (bool(binary), classes or 0), None if region is None else _place(region, parameters)


# --- raw tensor bytes without JSON -----------------------------------------------------------------------------------


def _raw_request(body: Buffer, version: int, spec: ModelSpec, max_input_size: int) -> InferenceRequest:
    """A request whose body is the bytes of its one input. The batch size is 1; the shape follows from their number."""
    request = InferenceRequest(spec.name, [], model_version=version)
    if len(body) > max_input_size:
        raise InvalidRequest(
            f"Raw input has a byte_size ({len(body)} bytes) that exceeds the maximum allowed value of "
            f"{max_input_size} bytes. Use --http-max-input-size to increase the limit."
        )
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
    shape = (1, *dims) if spec.max_batch_size > 0 else dims
    request.inputs = [InputTensor(expected.name, expected.datatype.name, shape, memoryview(body))]
    return request


# --- texts that are remembered ---------------------------------------------------------------------------------------
#
#    KnownBodies    JSON bodies, by their text without the id and the numbers
#    KnownHeaders   the JSON before binary tensors, by its text without the id
#    ResponsePlan   the form of the response that its request asks for, with
#      ResponseText   the JSON around the id and the numbers of its responses

# Of a body or a header. The parser for many numbers reads larger texts.
_MAX_SIZE: Final = 2048
# A quotation mark inside a string has a backslash before it, and texts with backslashes are not remembered: so these
# find only members of that name.
_DATA: Final = re.compile(rb'"data"[ \t\r\n]*:[ \t\r\n]*\[([-+.0-9eE, \t\r\n\[\]]*)\]')
_ID: Final = re.compile(rb'"id"[ \t\r\n]*:[ \t\r\n]*"([^"\\\x00-\x1f]*)"')
_EMPTY: Final = b'"data":[]'
_FILLED: Final = b'"data":'
# numpy writes more numbers faster.
_MOST_NUMBERS: Final = 1024
_MOST_TEXTS: Final = 64
_NOT_LISTED: Final = (False, 0)

Decoded = tuple[InferenceRequest, "ResponsePlan"]


class KnownBodies:
    """Bodies whose inputs are all lists of numbers, or all in shared memory. Any thread."""

    def __init__(self) -> None:
        self._known: AdaptiveMemo[_Body] = AdaptiveMemo()

    def recall(self, model: str, version: int, text: bytes, max_input_size: int) -> Decoded | None:
        """The request in `text`; None if it is unknown, its numbers are wrong, or its inputs have more than
        `max_input_size` bytes."""
        if len(text) > _MAX_SIZE:
            return None
        text, request_id = without_id(text)
        parts = _DATA.split(text)
        known = self._known.get((model, *parts[::2]))
        if known is None or known.size > max_input_size:
            return None
        self._known.hits += 1
        return known.again(version, request_id, parts[1::2])

    def remember(self, text: bytes, request: InferenceRequest, plan: ResponsePlan) -> None:
        """Learn a decoded request."""
        inputs = request.inputs
        if len(text) > _MAX_SIZE or b"\\" in text or not inputs or not self._known.is_learning():
            return
        whole = text
        text, request_id = without_id(whole)
        if not is_id_of(whole, request_id, request.id):
            return
        parts = _DATA.split(text)
        if isinstance(request, RegionRequest):
            regions = [tensor for tensor in inputs if isinstance(tensor, RegionInput)]
            if len(parts) == 1 and len(regions) == len(inputs):
                self._known[request.model_name, text] = _RegionBody(request, regions, plan)
            return
        # One list for each input, and no other member of that name.
        if not len(parts) // 2 == len(inputs) == text.count(b'"data"'):
            return
        described: list[tuple[str, str, Shape, int]] = []
        contents: list[Buffer] = []
        for tensor in inputs:
            if tensor.datatype not in NUMBER_CODES or type(tensor.data) is not np.ndarray:
                return
            contents.append(wire_bytes(tensor.data))
            described.append((tensor.name, tensor.datatype, tensor.shape, len(contents[-1])))
        body = _NumberBody(KnownRequest(request, layout_of(described), plan))
        if body.read(parts[1::2]) == b"".join(contents):
            self._known[request.model_name, *parts[::2]] = body


class _Body:
    """A known body without its id and its numbers; its inputs have `size` bytes. Any thread."""

    __slots__ = ("size",)

    def __init__(self, size: int) -> None:
        self.size = size

    def again(self, version: int, request_id: str, lists: list[bytes]) -> Decoded | None:
        """The same request for `version`, with these lists of numbers; None if they are wrong."""
        raise NotImplementedError


class _NumberBody(_Body):
    """Packs the numbers into the bytes of the tensors."""

    __slots__ = ("_counts", "_known", "_pack")

    def __init__(self, known: KnownRequest) -> None:
        super().__init__(known.layout.size)
        self._known = known
        self._counts = [prod(shape) for _, _, shape, _, _ in known.layout.entries]
        codes = [NUMBER_CODES[datatype] for _, datatype, _, _, _ in known.layout.entries]
        self._pack = Struct("<" + "".join(f"{n}{c}" for n, c in zip(self._counts, codes, strict=True))).pack

    def again(self, version: int, request_id: str, lists: list[bytes]) -> Decoded | None:
        content = self.read(lists)
        return None if content is None else self._known.again(version, request_id, memoryview(content))

    def read(self, lists: list[bytes]) -> bytes | None:
        """The bytes; None unless the lists hold the right count of fitting numbers. The full parser finds the error."""
        try:
            values = orjson.loads(b"[[%b]]" % b"],[".join(map(_flat, lists)))
            if [len(numbers) for numbers in values] != self._counts:
                return None
            return self._pack(*chain.from_iterable(values))
        except (ValueError, OverflowError, StructError):
            return None


def _flat(numbers: bytes) -> bytes:
    """The elements of a list, without inner brackets: nesting need not agree with the shape. Raises ValueError."""
    if b"[" not in numbers:
        return numbers
    if numbers.count(b"[") >= MAX_DEPTH - 1:
        raise ValueError("it may be nested too deep")
    orjson.loads(b"[%b]" % numbers)  # checks the brackets
    return numbers.translate(None, b"[]")


class _RegionBody(_Body):
    """All inputs lie in shared memory, and so the whole text but the id is the same."""

    __slots__ = ("_inputs", "_plan", "_request")

    def __init__(self, request: RegionRequest, inputs: list[RegionInput], plan: ResponsePlan) -> None:
        super().__init__(0)
        self._plan = plan
        self._inputs: list[tuple[str, str, Shape, RegionReference]] = [
            (tensor.name, tensor.datatype, tensor.shape, tensor.reference) for tensor in inputs
        ]
        # A copy, because parameters are added to a request on its way.
        plain = request.with_inputs([], model_version=request.model_version, id="")
        self._request = RegionRequest.of(plain, request.output_regions)

    def again(self, version: int, request_id: str, lists: list[bytes]) -> Decoded | None:
        inputs: list[InputTensor] = [RegionInput(*each) for each in self._inputs]
        made = self._request.with_inputs(inputs, model_version=version, id=request_id)
        return RegionRequest.of(made, self._request.output_regions), self._plan


class KnownHeaders:
    """Headers of binary requests. Any thread."""

    def __init__(self) -> None:
        self._known: AdaptiveMemo[KnownRequest] = AdaptiveMemo()

    def recall(self, model: str, version: int, header: bytes, tail: memoryview) -> Decoded | None:
        """The request that `header` and the tensors in `tail` make; None if it is unknown, or its size is not."""
        text, request_id = without_id(header)
        known = self._known.get((model, text))
        if known is None or known.layout.size != len(tail):
            return None
        self._known.hits += 1
        return known.again(version, request_id, tail)

    def remember(self, header: bytes, request: InferenceRequest, plan: ResponsePlan) -> None:
        """Learn a decoded request whose inputs are all raw bytes, in the order in which they stand in the tail."""
        if len(header) > _MAX_SIZE or not self._known.is_learning():
            return
        text, request_id = without_id(header)
        if not is_id_of(header, request_id, request.id):
            return
        layout = layout_of([(t.name, t.datatype, t.shape, len(t.data)) for t in request.inputs])
        self._known[request.model_name, text] = KnownRequest(request, layout, plan)


class KnownRequest:
    """A decoded request without its id and the bytes of its tensors, whose places are `layout`. Any thread."""

    __slots__ = ("_plan", "_request", "layout")

    def __init__(self, request: InferenceRequest, layout: TensorLayout, plan: ResponsePlan) -> None:
        self.layout = layout
        self._plan = plan.keeping_texts()
        # A copy without the tensors: they are views of a body whose memory must become free.
        self._request = request.with_inputs([], model_version=request.model_version, id="")

    def again(self, version: int, request_id: str, content: memoryview) -> Decoded:
        """The same request for `version`, with its tensors in `content`, and the plan of its response."""
        inputs = PackedInputs(self.layout, content)
        return self._request.with_inputs(inputs, model_version=version, id=request_id), self._plan


_known_headers: Final = KnownHeaders()
_known_bodies = KnownBodies()


def without_id(text: bytes) -> tuple[bytes, str]:
    """`text` with an empty id, and the id; the same text and "" if no id can be found without a parser.

    Only a parser can tell whether the id is the request's, or a member of another object.
    """
    if b'"id"' not in text:
        return text, ""
    found = _ID.search(text)
    if found is None:
        return text, ""
    start, end = found.span(1)
    try:
        return text[:start] + text[end:], text[start:end].decode()
    except UnicodeDecodeError:
        return text, ""


def is_id_of(text: bytes, found: str, request_id: str) -> bool:
    """Whether the id that `without_id` found in `text` is the id that a parser read, here and in all texts that differ
    only by it: then no other member has that name, not even one that is written with escapes."""
    if found != request_id:
        return False
    return not found or (text.count(b'"id"') == 1 and b"\\" not in text)


# The version that answered, the layout of its outputs, and whether it is an ensemble outside of sequences.
TextKey = tuple[int, TensorLayout, bool]


@dataclass(frozen=True, slots=True)
class ResponsePlan:
    """The form in which the caller of an infer request wants its response.

    `binary` is for outputs that are not listed; `outputs` maps a listed one to (binary, number of classes), where 0
    means no classification. `outputs` is None if the request listed none. `placed` are those that the engine writes
    into shared memory. `texts` are the texts of the last responses, None for one that has to be written each time; the
    plan of a single request keeps no texts.
    """

    binary: bool = False
    outputs: dict[str, tuple[bool, int]] | None = None
    placed: frozenset[str] = frozenset()
    texts: Memo[TextKey, ResponseText | None] | None = field(default=None, compare=False)

    def keeping_texts(self) -> ResponsePlan:
        """The same plan for many requests."""
        return ResponsePlan(self.binary, self.outputs, texts=Memo(_MOST_TEXTS))

    def form_of(self, name: str) -> tuple[bool, int]:
        """Whether an output is to be binary, and how many classes of it are wanted."""
        return (self.binary, 0) if self.outputs is None else self.outputs.get(name, _NOT_LISTED)


class ResponseText:
    """The JSON around the numbers of the outputs, and the places of those in the content. Any thread."""

    __slots__ = ("_binary", "_numbers", "_segments")

    def __init__(self, text: bytes, numbers: list[tuple[Struct, int]], binary: list[tuple[int, int]]) -> None:
        """`text` has an empty list for each of `numbers`, given with the offset of its first byte; `binary` are the
        first byte and the end of each run that follows the JSON."""
        segments = text.split(_EMPTY)
        self._segments = [segment + _FILLED for segment in segments[:-1]] + segments[-1:]
        self._numbers = [(struct.unpack_from, start) for struct, start in numbers]
        self._binary = binary

    @staticmethod
    def of(response: InferenceResponse, layout: TensorLayout, plan: ResponsePlan) -> ResponseText | None:
        """The text of responses like this one, whose outputs have `layout`; None if they need more than a text."""
        numbers: list[tuple[Struct, int]] = []
        binary: list[tuple[int, int]] = []
        entries: list[dict[str, object]] = []
        for name, datatype, shape, start, end in layout.entries:
            is_binary, classes = plan.form_of(name)
            entry: dict[str, object] = {"name": name, "datatype": datatype, "shape": shape}
            count = prod(shape)
            if classes or (not is_binary and (datatype not in NUMBER_CODES or count > _MOST_NUMBERS)):
                return None
            if is_binary:
                entry["parameters"] = {"binary_data_size": end - start}
                binary.append((start, end))
            else:
                entry["data"] = []
                numbers.append((Struct(f"<{count}{NUMBER_CODES[datatype]}"), start))
            entries.append(entry)
        document: dict[str, object] = {
            "model_name": response.model_name,
            "model_version": str(response.model_version),
        }
        if response.parameters:
            document["parameters"] = response.parameters
        document["outputs"] = entries
        return ResponseText(orjson.dumps(document), numbers, _joined(binary))

    def write(self, request_id: str, content: memoryview) -> list[Buffer] | None:
        """The parts of a body; None for a number or an id that JSON cannot express."""
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
            try:
                text = b'{"id":%b,%b' % (orjson.dumps(request_id), text[1:])
            except TypeError:  # surrogates, which stand for bytes that are not UTF-8
                return None
        return [text, *[content[start:end] for start, end in self._binary]]


def _joined(runs: list[tuple[int, int]]) -> list[tuple[int, int]]:
    """The same bytes in as few runs as possible, without empty runs."""
    joined: list[tuple[int, int]] = []
    for start, end in runs:
        if joined and joined[-1][1] == start:
            joined[-1] = (joined[-1][0], end)
        elif start < end:
            joined.append((start, end))
    return joined
