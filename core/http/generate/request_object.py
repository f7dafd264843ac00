"""A flat JSON object to an InferenceRequest: members with the name of an input are tensors, all others parameters.

The shape of a tensor follows from the number of its values and the shape in the model's metadata.
Source: docs/spec/http.md section 9.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable
from typing import Any

from core.config.model_spec import InputSpec, ModelSpec
from core.errors import InvalidRequest
from core.frontend.request_parameters import NON_STRING, set_custom_parameter, unable
from core.http.payloads.json.text import error_in_slices, parse_json
from core.http.slices.encoding import has_word
from core.http.slices.joined_array import joined_array
from core.http.slices.json_array import Fault, SlicedArray
from core.http.slices.outline import Outline, outline_of
from core.http.slices.slicing import Slicing
from core.http.slices.wrong_element import WrongElement
from core.http.v2.json_document import read_slice
from core.http.v2.json_tensors import NESTED_TOO_DEEP, array_from_json, json_datatype
from core.inference.request import InferenceRequest, InputTensor
from core.inference.tensors import BYTES, Array, Buffer, Datatype, Shape

_PARAMETERS = "parameters"
_NON_OBJECT = "attempt to access JSON non-object as object"
_LENGTH_SIZE = 4
_LONGEST_INTEGER = 20
_BEYOND = 2**64
# The reader of slices knows words that the one of whole objects does not.
_WORDS = (b"NaN", b"Inf")


class _Members(list[tuple[str, Any]]):
    """The members of an object as its text has them, with those that are given twice."""


Members = dict[str, Any] | _Members


def decode_object(
    body: Buffer, version: int, spec: ModelSpec, max_input_size: int, slicing: Slicing | None = None
) -> InferenceRequest:
    """The request in `body` for `version` of the model, -1 for the latest.

    With `slicing`, long lists are read in slices. No memory is taken for tensors of more than `max_input_size` bytes.
    Raises InvalidRequest with Triton's texts.
    """
    if slicing is not None:
        sliced = _decode_slices(memoryview(body), version, spec, max_input_size, slicing)
        if sliced is not None:
            return sliced
    request = InferenceRequest(spec.name, [], model_version=version)
    return _decode(_parse(body, spec), _Reading(request, spec, max_input_size))


def _decode_slices(
    text: memoryview, version: int, spec: ModelSpec, max_input_size: int, slicing: Slicing
) -> InferenceRequest | None:
    """The request whose object is `text`; None if it has no long list of values, or has to be read as a whole."""
    names = b"|".join([re.escape(_key(name)) for name in spec.inputs])
    member = re.compile(rb"(?:%b)\s*:\s*\[" % names)
    outline = outline_of(text, member, slicing, whole_elements=True, may_be_broken=True)
    fault: Fault | None = None
    if outline is not None:
        found: InvalidRequest | None = None
        if type(outline.document) is dict and not _may_repeat(outline.text, spec):
            request = InferenceRequest(spec.name, [], model_version=version)
            try:
                _decode(outline.document, _Reading(request, spec, max_input_size, outline.take))
            except (InvalidRequest, ValueError) as error:
                if outline.is_taken() and outline.is_read():
                    raise
                found = error if type(error) is WrongElement else None
            else:
                if outline.is_taken() and outline.is_read():
                    return request
        # What stops the reading of a slice may have another text and place in the whole document, whose syntax is
        # judged before its content.
        fault = outline.fault()
        if found is not None and outline.is_read() and _is_flat(text, outline, slicing):
            raise found
    whole = error_in_slices(text, fault, slicing)
    if whole is not None:
        raise whole
    return None


def _is_flat(text: memoryview, outline: Outline, slicing: Slicing) -> bool:
    """Whether all long lists have elements alone, and the text no word that the reader of whole objects refuses."""
    lists = [text[array.begin + 1 : array.end] for array in outline.arrays]
    return not has_word(_WORDS, text, slicing) and not any(has_word((b"[",), each, slicing) for each in lists)


def _decode(members: Members, reading: _Reading) -> InferenceRequest:
    request, spec = reading.request, reading.spec
    request_id = next((value for key, value in _pairs(members) if key == "id"), None)
    if request_id is not None and "id" not in spec.inputs and type(request_id) is not str:
        raise unable("id", NON_STRING)
    if type(request_id) is str:
        request.id = request_id
    for key, value in _pairs(members):
        if key == _PARAMETERS:
            reading.read_parameters(value)
        elif key != "id" or value is not None:
            reading.read(key, value)
    return request


def _nothing(value: Any) -> None:
    """What a reader takes that knows of no long lists."""


class _Reading:
    """Fills `request`, member by member. `take` gives the long list for which a value stands."""

    def __init__(
        self,
        request: InferenceRequest,
        spec: ModelSpec,
        max_input_size: int,
        take: Callable[[Any], SlicedArray | None] = _nothing,
    ) -> None:
        self.request = request
        self.spec = spec
        self._inputs: list[InputTensor] = []
        request.inputs = self._inputs
        self._max_input_size = max_input_size
        self._take = take
        self._size = 0

    def read(self, key: str, value: Any) -> None:
        expected = self.spec.inputs.get(key)
        if expected is None:
            set_custom_parameter(self.request, key, value)
        else:
            self._add_tensor(expected, value)

    def read_parameters(self, value: Any) -> None:
        """The members of the object `parameters` count as members of the request; null means that it is absent."""
        if _PARAMETERS in self.spec.inputs:
            raise InvalidRequest(f"Keyword '{_PARAMETERS}' for nested schema also given as input tensor name")
        if value is None:
            return
        if not isinstance(value, dict | _Members):
            raise InvalidRequest(f"Expected JSON object for keyword: '{_PARAMETERS}': {_NON_OBJECT}")
        try:
            for key, each in _pairs(value):
                self.read(key, each)
        except InvalidRequest as error:
            text = f"Converting keyword: '{_PARAMETERS}': {error.message}"
            raise InvalidRequest(text, hint=error.hint) from None

    def _add_tensor(self, expected: InputSpec, value: Any) -> None:
        name, datatype = expected.name, expected.datatype
        json_datatype(datatype.name, name)
        long = self._take(value)
        content = value if type(value) is list else [value]
        if long is not None:
            try:
                array = _sliced(long, datatype, name, self._max_input_size)
            except WrongElement:
                if self._size + (long.end - long.begin) // 2 * datatype.size > self._max_input_size:
                    raise ValueError("the list may be too long, which is another error") from None
                raise
            self._count(name, _wire_size(array) if datatype is BYTES else array.nbytes)
            shape = self._shape(expected, array.size)
        elif datatype is BYTES:
            array = array_from_json(content, datatype, None, name)
            self._count(name, _wire_size(array))
            shape = self._shape(expected, len(content))
        else:
            self._count(name, len(content) * datatype.size)
            shape = self._shape(expected, len(content))
            array = array_from_json(content, datatype, len(content), name)
        if any(tensor.name == name for tensor in self._inputs):
            raise InvalidRequest(f"{self.request.log_prefix}input '{name}' already exists in request")
        self._inputs.append(InputTensor(name, datatype.name, shape, array))

    def _shape(self, expected: InputSpec, count: int) -> Shape:
        """The shape of `count` values: the innermost variable dimension takes what the fixed ones leave."""
        dims = (-1, *expected.dims) if self.spec.max_batch_size > 0 else expected.dims
        shape: list[int] = []
        rest = count
        for dim in dims:
            if dim > 0 and not rest % dim:
                rest //= dim
            elif dim != -1:
                raise _no_shape(expected.name)
        for dim in reversed(dims):
            if dim == -1:
                dim, rest = rest, 1
            shape.append(dim)
        if rest != 1:
            raise _no_shape(expected.name)
        return tuple(reversed(shape))

    def _count(self, name: str, size: int) -> None:
        self._size += size
        if self._size > self._max_input_size:
            raise InvalidRequest(
                f"request size of {self._size} bytes with input '{name}' of size {size} bytes exceeds the maximum "
                f"allowed input size of {self._max_input_size}. Use --http-max-input-size to increase the limit."
            )


def _no_shape(name: str) -> InvalidRequest:
    return InvalidRequest(f"The schema can not convert input '{name}' to tensor with proper shape")


def _key(name: str) -> bytes:
    return b'"%b"' % name.encode()


def _may_repeat(text: bytes, spec: ModelSpec) -> bool:
    """Whether an input may be given twice in the text; a string may also be its name."""
    return any(text.count(_key(name)) > 1 for name in spec.inputs)


def _sliced(content: SlicedArray, datatype: Datatype, name: str, max_size: int) -> Array:
    """The values of a flat list in slices. Raises InvalidRequest or ValueError, also for a list in the list, and for
    more bytes than `max_size`.
    """
    parts: list[Array] = []
    for text in content.texts():
        if sum([part.nbytes for part in parts]) > max_size:
            raise ValueError("the list is too long")
        values = read_slice(text, datatype.name)
        if text.count(b"[") > 1 and (datatype is not BYTES or list in map(type, values)):
            raise ValueError("a list in the list")
        parts.append(array_from_json(values, datatype, None, name))
    return joined_array(parts)


def _integer(digits: str) -> int | float:
    """A number as the other parser reads it: a double beyond 64 bits."""
    number = int(digits) if len(digits) <= _LONGEST_INTEGER else _BEYOND
    return number if -(2**63) <= number < 2**64 else float(digits)


def _wire_size(array: Array) -> int:
    return sum(map(len, array.tolist())) + _LENGTH_SIZE * array.size


def _pairs(members: Members) -> Iterable[tuple[str, Any]]:
    return members.items() if isinstance(members, dict) else members


def _parse(body: Buffer, spec: ModelSpec) -> Members:
    """The members of the object in `body`, as pairs if an input may be given twice in it. Raises InvalidRequest."""
    document = parse_json(body)
    if type(document) is not dict:
        raise InvalidRequest("attempt to get members for non-object", hint="send a JSON object with a value per input")
    text = bytes(body)
    if _may_repeat(text, spec):
        # Only the second look tells a key from a string. A dict would keep the last value of a key.
        try:
            pairs: Members = json.loads(text, object_pairs_hook=_Members, parse_int=_integer)
        except RecursionError:
            raise InvalidRequest(NESTED_TOO_DEEP) from None
        return pairs
    return document
