"""JSON and JSON Lines: documents with instances or columns to a payload, and outputs to documents.

An instance is the value of the only input, an object with a value by input name, or a flat row of all inputs. Numbers
for a model with one input are parsed directly into an array. Other documents are parsed into Python values, which are
converted level by level in C and not element by element in Python.
Source: docs/spec/vertex.md section D points 1 to 5; docs/spec/sagemaker.md sections A6 (lines) and C "Auto-wrapping".
"""

from __future__ import annotations

import binascii
from collections.abc import Iterable
from dataclasses import replace
from itertools import chain
from math import prod
from operator import itemgetter
from typing import Any

import numpy as np
import orjson

from trident.core.config.golden import NOT_FINITE, is_floating, shown
from trident.core.config.spec import InputSpec, ModelSpec
from trident.core.errors import InvalidRequest
from trident.core.http.body import (
    WIDE,
    flat_numbers,
    parse,
    parse_json,
    plain_value,
    simdjson,
    unique_keys,
    without_blank_lines,
)
from trident.core.http.payloads.payload import (
    Block,
    DecodedPayload,
    DecodeRules,
    DocumentForm,
    ErrorLocation,
    InstanceSignature,
    OutputColumn,
    RowName,
    as_datatype,
    check_names,
    common_count,
    document_form,
    expected_text,
    fits_dims,
    instance_name,
    instance_signature,
    line_name,
    mismatch,
    row_layout,
    single_input,
    unravelled,
    wide_integers,
)
from trident.core.inference.tensors import BYTES, Array, Buffer, Datatype, Shape, bytes_array, element_count

# --- documents

# From this number of bytes on the parser for number arrays is faster.
_LARGE = 1024
# `signature_name` is TensorFlow Serving's and is ignored: a model here has one signature.
_MEMBERS = {
    DocumentForm.INSTANCES: ("instances", "parameters", "signature_name"),
    DocumentForm.COLUMNS: ("inputs", "parameters", "signature_name"),
}


def decode_json(body: Buffer, spec: ModelSpec, rules: DecodeRules) -> DecodedPayload:
    """Decode a document. Raises InvalidRequest that names the instance, the input and the element."""
    form = document_form(body)
    payload = _decode_numbers(body, spec, form) if len(body) > _LARGE else None
    if payload is None:
        payload = _decode_values(body, spec, rules, form)
    payload.form = form
    return payload


def _decode_numbers(body: Buffer, spec: ModelSpec, form: DocumentForm) -> DecodedPayload | None:
    """The payload of plain numbers for a model with one input; None for any other document, valid or not."""
    kind = only_numbers(spec)
    if kind is None or form not in (DocumentForm.INSTANCES, DocumentForm.BARE):
        return None
    found = parse_number_array(body, "instances" if form is DocumentForm.INSTANCES else None, kind)
    if found is None:
        return None
    wide, others = found
    parameters = _parameters(others, form)
    if form is DocumentForm.BARE and is_one_instance(wide.ndim, spec):
        wide = wide.reshape(1, *wide.shape)
    payload = decode_numbers(wide, spec, instance_name)
    if payload is not None:
        payload.parameters = parameters
    return payload


def _decode_values(body: Buffer, spec: ModelSpec, rules: DecodeRules, form: DocumentForm) -> DecodedPayload:
    document = parse_json(body)
    if form is DocumentForm.BARE:
        # Objects with a value by input name are instances themselves.
        is_one = is_one_instance(rank_of(document), spec) and not (document and _is_named(document[0], spec))
        instances = [document] if is_one else document
        return decode_instances(instances, spec, rules, instance_name)
    if form is DocumentForm.V2 or _MEMBERS[form][0] not in document:
        raise InvalidRequest("expected a JSON object with 'instances', or an array of instances")
    content = document.pop(_MEMBERS[form][0])
    parameters = _parameters(document, form)
    if form is DocumentForm.COLUMNS:
        payload = _decode_columns(content, spec)
    elif type(content) is list:
        payload = decode_instances(content, spec, rules, instance_name)
    else:
        raise InvalidRequest(f"'instances': expected a list of instances, got {shown(content)}")
    payload.parameters = parameters
    return payload


def _parameters(others: dict[str, Any], form: DocumentForm) -> dict[str, Any]:
    for key in others:
        if key not in _MEMBERS[form]:
            known = ", ".join(f"'{name}'" for name in _MEMBERS[form])
            raise InvalidRequest(f"unknown member '{key[:60]}' of the request, known are {known}")
    parameters = others.get("parameters")
    if parameters is None:
        return {}
    if type(parameters) is not dict:
        raise InvalidRequest(f"'parameters': expected an object, got {shown(parameters)}")
    return parameters


def _decode_columns(content: Any, spec: ModelSpec) -> DecodedPayload:
    """Decode whole tensors by input name (TensorFlow Serving's columnar format), with a batch dimension if the model
    has one. The tensor of an only input may be given without its name.
    """
    if type(content) is list:
        content = {single_input(spec, "a tensor without a name under 'inputs'").name: content}
    if type(content) is not dict:
        raise InvalidRequest(f"'inputs': expected an object with a tensor by input name, got {shown(content)}")
    check_names(content, spec, "'inputs'")
    arrays: dict[str, Array] = {}
    if spec.max_batch_size == 0:
        for name, value in content.items():
            array = column_array([value], spec.inputs[name], ErrorLocation(lambda _: "the tensor", name))
            arrays[name] = array.reshape(array.shape[1:])
        return DecodedPayload(arrays=arrays, count=None, stacked=False)
    for name, value in content.items():
        if type(value) is not list or not value:
            raise InvalidRequest(f"input '{name}': expected a list of at least one row, got {shown(value)}")
        arrays[name] = column_array(value, spec.inputs[name], ErrorLocation(lambda index: f"row {index}", name))
    return DecodedPayload(arrays=arrays, count=common_count(arrays), stacked=True)


# --- numbers of the only input


def only_numbers(spec: ModelSpec) -> str | None:
    """The wide kind of the only input; None if there are several inputs, or if its datatype is not numeric."""
    datatypes = [i.datatype for i in spec.inputs.values()]
    return wide_kind(datatypes[0]) if len(datatypes) == 1 else None


def decode_numbers(wide: Array, spec: ModelSpec, row_name: RowName) -> DecodedPayload | None:
    """The payload of `wide`, whose rows are instances of the only input; None if they do not fit its shape."""
    (name,) = spec.inputs
    signature = instance_signature(spec, wide.ndim - 1)
    expected = signature.inputs[name]
    if wide.ndim == 1 and all(dim == 1 for dim in expected.dims):
        wide = wide.reshape(-1, *expected.dims)
    if not fits_dims(wide.shape[1:], expected.dims):
        signature = instance_signature(spec, None)
        blocks = _flat_blocks(signature, wide.shape[1], row_name(0)) if wide.ndim == 2 else None
        if blocks is None:
            return None
        wide = wide.reshape(-1, *blocks[0].dims)
    array = as_datatype(wide, expected.datatype, ErrorLocation(row_name, name))
    return DecodedPayload(arrays={name: array}, count=len(array), stacked=signature.stacked)


def is_one_instance(rank: int, spec: ModelSpec) -> bool:
    """True if a bare array nested `rank` deep is one instance, and not a list of instances."""
    if len(spec.inputs) != 1:
        return False
    (row,) = instance_signature(spec, None).inputs.values()
    dims = row.dims
    return rank == len(dims) and not all(dim == 1 for dim in dims)


_OPENING = ord("[")


def wide_kind(datatype: Datatype) -> str | None:
    """The kind of the 64-bit type that the datatype's numbers are parsed as: f, i or u; None if it is not numeric."""
    if is_floating(datatype):
        return "f"
    return datatype.kind if datatype.kind in WIDE else None


def parse_number_array(text: Buffer, member: str | None, kind: str) -> tuple[Array, dict[str, Any]] | None:
    """The array under `member` of the document (None: the document itself), and the other members as Python values.

    The array has the wide type of `kind`. None for anything except rectangular nested lists of numbers of that kind.
    """
    try:
        return parse(text, lambda document: _numbers(document, member, kind, np.frombuffer(text, np.uint8)))
    except (ValueError, RuntimeError, TypeError, KeyError):
        return None


def _numbers(document: Any, member: str | None, kind: str, text: Array) -> tuple[Array, dict[str, Any]] | None:
    others: dict[str, Any] = {}
    content: Any = document
    if member is not None:
        others = {key: plain_value(document[key]) for key in unique_keys(document) if key != member}
        content = document[member]
    if not isinstance(content, simdjson.Array) or not len(content):
        return None
    flat = flat_numbers(content, kind)
    shape, lists = _outline(content)
    # The buffer is flat: only the number of brackets shows a list among the numbers of a row.
    expected = lists + orjson.dumps(others).count(b"[")
    if prod(shape) != flat.size or np.count_nonzero(text == _OPENING) != expected:
        return None
    return flat.reshape(shape), others


def _outline(content: Any) -> tuple[tuple[int, ...], int]:
    """The shape of nested lists, and the number of lists. Raises ValueError if lengths differ."""
    shape: list[int] = []
    lists, total, first = 1, 0, content
    while True:
        (length,) = set(map(len, _lists(content, len(shape))))
        shape.append(length)
        total += lists
        lists *= length
        if not length or not isinstance(first[0], simdjson.Array):
            return tuple(shape), total
        first = first[0]


def _lists(content: Any, depth: int) -> Iterable[Any]:
    """The lists at a depth, one at a time: keeping all costs more than walking down to them again."""
    return chain.from_iterable(_lists(content, depth - 1)) if depth else (content,)


# --- instances as Python values

_Row = dict[str, Any]


def decode_instances(instances: list[Any], spec: ModelSpec, rules: DecodeRules, row_name: RowName) -> DecodedPayload:
    """Decode instances. Raises InvalidRequest that names the input, and the instance by `row_name`."""
    if not instances:
        raise InvalidRequest("there are no instances: expected at least one")
    rows = _flat_rows(instances, spec, row_name)
    if rows is not None:
        return rows
    columns = _columns(instances, spec, rules, row_name)
    first_name = next(iter(columns))
    first, expected = columns[first_name][0], spec.inputs[first_name]
    # Raw bytes have no nesting; their rank is that of the dims.
    rank = len(expected.dims) if is_b64(first) and expected.datatype.size else rank_of(first)
    signature = instance_signature(spec, rank)
    payload = DecodedPayload(arrays={}, count=len(instances), stacked=signature.stacked)
    try:
        payload.arrays = _arrays(columns, signature, row_name)
    except InvalidRequest:
        # Instances that are run one by one may have different shapes; an error within an instance is raised again.
        if signature.stacked or not any(-1 in expected.dims for expected in signature.inputs.values()):
            raise
        payload.rows = []
        for index in range(len(instances)):

            def own_name(_: int, index: int = index) -> str:
                return row_name(index)

            arrays = _arrays({name: [values[index]] for name, values in columns.items()}, signature, own_name)
            payload.rows.append({name: array.reshape(array.shape[1:]) for name, array in arrays.items()})
    return payload


def _flat_rows(instances: list[Any], spec: ModelSpec, row_name: RowName) -> DecodedPayload | None:
    """The payload of lists with the elements of all inputs side by side; None for instances of another form."""
    if set(map(type, instances)) != {list} or rank_of(instances[0]) != 1:
        return None
    signature, width = instance_signature(spec, None), len(instances[0])
    blocks = _flat_blocks(signature, width, row_name(0))
    if blocks is None:
        return None
    if set(map(len, instances)) != {width}:
        index = next(i for i, row in enumerate(instances) if len(row) != width)
        raise mismatch(row_name(index), f"{width} columns, as {row_name(0)} has", str(len(instances[index])))
    arrays = {}
    for block in blocks:
        name, flat = block.spec.name, replace(block.spec, dims=(block.columns.stop - block.columns.start,))
        columns = [row[block.columns] for row in instances]
        arrays[name] = column_array(columns, flat, ErrorLocation(row_name, name)).reshape(-1, *block.dims)
    return DecodedPayload(arrays=arrays, count=len(instances), stacked=signature.stacked)


def _flat_blocks(signature: InstanceSignature, width: int, row: str) -> list[Block] | None:
    """The layout of flat rows of `width` elements; None if an instance of the only input has to have another form.

    Raises InvalidRequest for a width that does not fit several inputs.
    """
    dims = [expected.dims for expected in signature.inputs.values()]
    try:
        return row_layout(signature, width, row) if len(dims) > 1 or len(dims[0]) != 1 else None
    except InvalidRequest as error:
        if len(dims) > 1:
            raise InvalidRequest(error.message, hint="or send an object with a value by input name") from None
        return None


def _arrays(columns: dict[str, list[Any]], signature: InstanceSignature, row_name: RowName) -> dict[str, Array]:
    return {
        name: column_array(values, signature.inputs[name], ErrorLocation(row_name, name))
        for name, values in columns.items()
    }


def _columns(instances: list[Any], spec: ModelSpec, rules: DecodeRules, row_name: RowName) -> dict[str, list[Any]]:
    """The values of each given input, in the order of the instances."""
    if dict in set(map(type, instances)) and any(_is_named(value, spec) for value in instances):
        if not all(_is_named(value, spec) for value in instances):
            index = next(i for i, value in enumerate(instances) if not _is_named(value, spec))
            got = shown(instances[index])
            raise mismatch(row_name(index), "an object with a value by input name, like the others", got)
        return _named_columns(instances, spec, rules, row_name)
    needed = [name for name, expected in spec.inputs.items() if not expected.optional] or list(spec.inputs)
    if len(needed) != 1:
        names = ", ".join(f"'{name}'" for name in spec.inputs)
        raise mismatch(row_name(0), f"an object with the inputs {names}", shown(instances[0]))
    return {needed[0]: instances}


def _is_named(value: Any, spec: ModelSpec) -> bool:
    return type(value) is dict and ("b64" in spec.inputs or len(spec.inputs) != 1 or not is_b64(value))


def _named_columns(rows: list[_Row], spec: ModelSpec, rules: DecodeRules, row_name: RowName) -> dict[str, list[Any]]:
    ignored = rules.ignored_fields - spec.inputs.keys()
    if ignored and not all(map(ignored.isdisjoint, rows)):
        rows = [{name: value for name, value in row.items() if name not in ignored} for row in rows]
    names = tuple(rows[0])
    check_names(names, spec, row_name(0))
    if set(map(len, rows)) == {len(names)}:
        try:
            if len(names) == 1:
                return {names[0]: [row[names[0]] for row in rows]}
            columns = zip(*map(itemgetter(*names), rows), strict=True)
            return {name: list(column) for name, column in zip(names, columns, strict=True)}
        except KeyError:
            pass
    # The first row whose inputs differ from the first row's.
    index = next(i for i, row in enumerate(rows) if row.keys() != rows[0].keys())
    check_names(rows[index], spec, row_name(index))
    name = sorted(rows[index].keys() ^ rows[0].keys())[0]
    having, lacking = (index, 0) if name in rows[index] else (0, index)
    raise InvalidRequest(
        f"{row_name(index)}: all instances must have the same inputs, but {row_name(having)} has '{name}' and "
        f"{row_name(lacking)} has not"
    )


# --- the values of one input

_B64 = frozenset({"b64"})
# From this number on a double cannot represent every integer.
_EXACT = 2.0**53
_LARGEST = int(np.finfo(np.float64).max)


def rank_of(value: Any) -> int:
    """The nesting depth of lists, judged by their first elements."""
    rank = 0
    while type(value) is list:
        rank += 1
        value = value[0] if value else None
    return rank


def is_b64(value: Any) -> bool:
    return type(value) is dict and value.keys() == _B64


def column_array(values: list[Any], expected: InputSpec, location: ErrorLocation) -> Array:
    """The array `[len(values), *dims]` of the values of one input, one per instance, in the input's numpy type.

    Nested lists must match the dims, and each other if a dim is variable. If all dims are 1 the lists may be omitted.
    For numbers `{"b64": ...}` may give a whole instance, little-endian and row-major. Raises InvalidRequest that names
    the first error.
    """
    if expected.datatype is not BYTES and values and all(map(is_b64, values)):
        rows = [raw_row(decode_b64(v, location.at(i)), expected, location.at(i)) for i, v in enumerate(values)]
        for index, row in enumerate(rows):
            if row.shape != rows[0].shape:
                raise mismatch(location.at(index), f"{rows[0].nbytes} bytes, as {location.at(0)} has", str(row.nbytes))
        return np.stack(rows)
    dims = expected.dims
    if type(values[0]) is not list and all(dim == 1 for dim in dims):
        return _elements(values, (len(values), *dims), expected.datatype, location)
    level, shape = values, [len(values)]
    for dim in dims:
        length = _common_length(level, dim, shape, location)
        shape.append(length)
        level = list(chain.from_iterable(level))
    return _elements(level, tuple(shape), expected.datatype, location)


def decode_b64(value: dict[str, Any], location: str) -> bytes:
    """The bytes of `{"b64": "..."}`: standard base64 with padding, perhaps in lines. Raises InvalidRequest."""
    text = value["b64"]
    if type(text) is not str:
        raise mismatch(f"{location}, 'b64'", "a string of base64", shown(text))
    if "\n" in text or "\r" in text:  # MIME's base64 has lines, as encoders of many languages write it
        text = "".join(text.split())
    if len(text) % 4:
        # Checked here, because the decoder accepts "AAAA=".
        raise InvalidRequest(f"{location}, 'b64': invalid base64: its length, {len(text)}, is not a multiple of 4")
    try:
        return binascii.a2b_base64(text, strict_mode=True)
    except ValueError as error:
        raise InvalidRequest(f"{location}, 'b64': invalid base64: {error}") from None


def _common_length(level: list[Any], dim: int, shape: list[int], location: ErrorLocation) -> int:
    """The common length of the lists of `level`, which must be `dim` unless that is variable."""
    if set(map(type, level)) <= {list}:
        lengths = set(map(len, level))
        if len(lengths) <= 1 and (dim == -1 or lengths <= {dim}):
            return lengths.pop() if lengths else max(dim, 0)
    raise _wrong_length(level, dim, tuple(shape), location)


def _wrong_length(level: list[Any], dim: int, shape: Shape, location: ErrorLocation) -> InvalidRequest:
    """The error for the first value that is not a list of length `dim`, or of the first list's length."""
    wanted = dim if dim != -1 else next((len(value) for value in level if type(value) is list), -1)
    index = next(i for i, value in enumerate(level) if type(value) is not list or len(value) != wanted)
    where, value = location.at(*unravelled(index, shape)), level[index]
    if type(value) is not list:
        return mismatch(where, "a list" if dim == -1 else f"a list of {dim}", shown(value))
    as_first = f", as {location.at(*(0 for _ in shape))} has" if dim == -1 else ""
    return mismatch(where, f"a list of {wanted}{as_first}", f"one of {len(value)}")


def _elements(flat: list[Any], shape: Shape, datatype: Datatype, location: ErrorLocation) -> Array:
    if datatype is BYTES:
        types = _check_types(flat, {str, dict}, shape, BYTES, location)
        if dict not in types:
            return bytes_array([_utf8(value, i, shape, location) for i, value in enumerate(flat)], shape)
        elements: list[bytes] = []
        for index, value in enumerate(flat):
            if type(value) is str:
                elements.append(_utf8(value, index, shape, location))
            elif is_b64(value):
                elements.append(decode_b64(value, location.element(index, shape)))
            else:
                raise _wrong(flat, index, shape, BYTES, location)
        return bytes_array(elements, shape)
    if datatype.kind == "b":
        _check_types(flat, {bool}, shape, datatype, location)
        return np.array(flat, np.bool_).reshape(shape)
    wide = (
        _doubles(flat, shape, datatype, location)
        if is_floating(datatype)
        else _integers(flat, shape, datatype, location)
    )
    return as_datatype(wide.reshape(shape), datatype, location)


def _doubles(flat: list[Any], shape: Shape, datatype: Datatype, location: ErrorLocation) -> Array:
    types = set(map(type, flat))
    if str in types:
        # JSON has no NaN and no infinities, so they are strings. Only a column with strings pays for this loop.
        flat = [NOT_FINITE.get(value, value) if type(value) is str else value for value in flat]
    if not types <= {int, float}:
        _check_types(flat, {int, float}, shape, datatype, location)
    try:
        return np.array(flat, np.float64)
    except OverflowError:  # an integer that only the parser of `json` accepts
        index = next(i for i, value in enumerate(flat) if abs(value) > _LARGEST)
        raise _wrong(flat, index, shape, datatype, location) from None


def _integers(flat: list[Any], shape: Shape, datatype: Datatype, location: ErrorLocation) -> Array:
    """The numbers as int64 or uint64, or as doubles if some are written as such and all are exact.

    From 2^53 on the parser has perhaps rounded a number with a fraction or an exponent, and one beyond 64 bits.
    """
    types = _check_types(flat, {int, float}, shape, datatype, location)
    if float in types:
        numbers = np.array(flat, np.float64)
        if np.abs(numbers).max() < _EXACT:
            return numbers
        for index, value in enumerate(flat):
            if type(value) is float and not (value.is_integer() and abs(value) < _EXACT):
                raise _wrong(flat, index, shape, datatype, location)
        flat = list(map(int, flat))
    wide = wide_integers(flat)
    if wide is None:
        limits = np.iinfo(datatype.dtype)
        index = next(i for i, value in enumerate(flat) if not limits.min <= value <= limits.max)
        raise _wrong(flat, index, shape, datatype, location)
    return wide


def _utf8(text: str, index: int, shape: Shape, location: ErrorLocation) -> bytes:
    try:
        return text.encode()
    except UnicodeEncodeError:  # JSON can have half of a surrogate pair
        raise mismatch(location.element(index, shape), "Unicode text", "half of a surrogate pair") from None


def raw_row(content: bytes | memoryview, expected: InputSpec, location: str) -> Array:
    """One instance from its little-endian, row-major bytes; their number resolves one variable dim."""
    datatype, dims = expected.datatype, expected.dims
    fixed = element_count(dim for dim in dims if dim != -1) * datatype.size
    given = len(content)
    if dims.count(-1) > 1:
        raise InvalidRequest(f"{location}: raw bytes cannot determine {dims.count(-1)} variable dimensions, send lists")
    if -1 in dims:
        if not fixed or given % fixed:
            raise mismatch(location, f"a multiple of {fixed} bytes", str(given))
        dims = tuple(given // fixed if dim == -1 else dim for dim in dims)
    elif given != fixed:
        raise mismatch(location, f"{fixed} bytes", str(given))
    array: Array = np.frombuffer(content, datatype.dtype).reshape(dims)
    if datatype.kind == "b" and (array.view(np.uint8) > 1).any():
        raise mismatch(location, "bytes that are 0 or 1", "others")
    return array


def _check_types(
    flat: list[Any], allowed: set[type], shape: Shape, datatype: Datatype, location: ErrorLocation
) -> set[type]:
    """The types of the elements. Raises InvalidRequest for the first element whose type is not in `allowed`."""
    types = set(map(type, flat))
    if not types <= allowed:
        index = next(i for i, value in enumerate(flat) if type(value) not in allowed)
        raise _wrong(flat, index, shape, datatype, location)
    return types


def _wrong(flat: list[Any], index: int, shape: Shape, datatype: Datatype, location: ErrorLocation) -> InvalidRequest:
    return mismatch(location.element(index, shape), expected_text(datatype), shown(flat[index]))


# --- outputs: numbers have the fewest digits that read back as the same number. NaN and the infinities, which JSON does
# not have, are the strings "NaN", "Infinity" and "-Infinity". Bytes that are not UTF-8 are `{"b64": "..."}`.

_NOT_FINITE = ("NaN", "Infinity", "-Infinity")


def encode_json(columns: list[OutputColumn], form: DocumentForm | None = None) -> bytes:
    """Encode the answer to a document of `form`: predictions, a bare array, or TensorFlow Serving's outputs."""
    if form is DocumentForm.COLUMNS:
        tensors = {column.name: _tensor(column) for column in columns}
        return write_json({"outputs": tensors if len(tensors) > 1 else next(iter(tensors.values()))})
    if len(columns) == 1 and len(columns[0].parts) == 1 and columns[0].parts[0].ndim:
        rows = json_value(columns[0].parts[0], columns[0].datatype)  # one array, which is written faster
    else:
        rows = prediction_rows(columns)
    return write_json(rows if form is DocumentForm.BARE else {"predictions": rows})


def prediction_rows(columns: list[OutputColumn]) -> list[Any]:
    """The value of each instance. Whole tensors are split along their first dimension if all agree in it."""
    if columns[0].whole:
        arrays = [column.parts[0] for column in columns]
        if any(array.ndim == 0 for array in arrays) or len({len(array) for array in arrays}) > 1:
            arrays = [array[np.newaxis] for array in arrays]
        parts = [[array] for array in arrays]
    else:
        parts = [column.parts for column in columns]
    rows = [
        list(chain.from_iterable(json_value(part, column.datatype) for part in own))
        for column, own in zip(columns, parts, strict=True)
    ]
    if len(columns) == 1:
        return rows[0]
    names = [column.name for column in columns]
    return [dict(zip(names, row, strict=True)) for row in zip(*rows, strict=True)]


def json_value(array: Array, datatype: Datatype) -> Any:
    """The array as the JSON writer takes it: itself, or nested lists if the writer would write it wrong."""
    if datatype is BYTES:
        flat = np.empty(array.size, dtype=object)
        flat[:] = [_text(element) for element in array.reshape(-1).tolist()]
        return flat.reshape(array.shape).tolist()
    if array.dtype.kind != "f":
        return array
    finite = np.isfinite(array)
    if finite.all():
        return array
    # FP16 and FP32 keep their own shortest digits: `tolist` would convert them to doubles, and 0.1 would not stay 0.1.
    values = np.empty(array.shape, dtype=object)
    values.reshape(-1)[:] = array.reshape(-1).tolist() if array.dtype.itemsize == 8 else list(array.reshape(-1))
    for name in _NOT_FINITE:
        number = float(name)
        values[np.isnan(array) if name == "NaN" else array == number] = name
    return values.tolist()


def write_json(value: Any) -> bytes:
    return orjson.dumps(value, option=orjson.OPT_SERIALIZE_NUMPY)


def _tensor(column: OutputColumn) -> Any:
    value = json_value(column.parts[0], column.datatype) if len(column.parts) == 1 else prediction_rows([column])
    return value[()] if isinstance(value, np.ndarray) and not value.ndim else value


def _text(element: bytes) -> Any:
    try:
        return element.decode()
    except UnicodeDecodeError:
        return {"b64": binascii.b2a_base64(element, newline=False).decode()}


# --- lines


def decode_jsonlines(body: Buffer, spec: ModelSpec, rules: DecodeRules) -> DecodedPayload:
    """Decode lines, ended by LF or CRLF, optional on the last. Blank lines are passed over and not counted.

    Raises InvalidRequest that names the line, from 1.
    """
    text = without_blank_lines(bytes(body))
    payload = _decode_number_lines(text, spec)
    if payload is not None:
        return payload
    lines = text.split(b"\n")
    if not lines[-1].strip():
        lines.pop()
    instances = [parse_json(line, line_name(index)) for index, line in enumerate(lines)]
    return decode_instances(instances, spec, rules, line_name)


def _decode_number_lines(text: bytes, spec: ModelSpec) -> DecodedPayload | None:
    """The payload of lines that are flat arrays of numbers, for a model with one input; None for any other text."""
    kind = only_numbers(spec)
    text = text.removesuffix(b"\n")
    if kind is None or not text.startswith(b"["):
        return None
    # If this parses as an array of two dimensions with one row for each line, every line is exactly one array.
    joined = text.replace(b"]\n[", b"],[")
    if b"\n" in joined:
        return None
    found = parse_number_array(b"[" + joined + b"]", None, kind)
    if found is None or found[0].ndim != 2 or len(found[0]) != text.count(b"\n") + 1:
        return None
    return decode_numbers(found[0], spec, line_name)


def encode_jsonlines(columns: list[OutputColumn]) -> bytes:
    return b"\n".join([*map(write_json, prediction_rows(columns)), b""])
