from __future__ import annotations

import json
import re
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.core.http.json_texts import damaged, json_text, nested, numbers, strings, values
from tests.unit.core.http.payloads.payload_models import one
from trident.core.config.spec import ModelSpec
from trident.core.errors import InvalidRequest, ServerError, Unsupported
from trident.core.http.payloads.inference import BinaryType
from trident.core.http.v2_request import decode_request
from trident.core.inference.response import RegionInput, RegionRequest
from trident.core.inference.tensors import wire_bytes

# --- request codec


LIMIT = 1 << 20


def decode(document: Any, tail: bytes | None = None, *, limit: int = LIMIT, model: ModelSpec | None = None) -> Any:
    text = document if isinstance(document, bytes) else orjson.dumps(document)
    header_length = None if tail is None else len(text)
    return decode_request(text + (tail or b""), header_length, -1, model or one("INT32", 2), limit)


def tensor(**fields: Any) -> dict[str, Any]:
    return {"name": "IN", "datatype": "INT32", "shape": [1, 2], "data": [1, 2]} | fields


def test_decode_request_reads_every_field() -> None:
    request, plan = decode(
        {
            "id": "r1",
            "parameters": {"priority": 2, "timeout": 5, "sequence_id": "s", "sequence_start": True, "mine": 1.5},
            "inputs": [tensor()],
            "outputs": [{"name": "OUT", "parameters": {"binary_data": True, "classification": 3}}, {"name": "B"}],
        }
    )
    assert (request.id, request.priority, request.timeout_us) == ("r1", 2, 5)
    assert (request.correlation_id, request.sequence_start, request.sequence_end) == ("s", True, False)
    assert request.parameters == {"mine": 1.5}
    assert request.outputs == ("OUT", "B")
    assert plan.outputs == {"OUT": (True, 3), "B": (False, 0)}
    assert bytes(request.inputs[0].data) == np.array([1, 2], np.int32).tobytes()


def test_custom_parameter_beyond_int64_is_a_double_as_in_triton() -> None:
    request, _ = decode({"parameters": {"a": 2**63 - 1, "b": 2**63, "c": -(2**63)}, "inputs": [tensor()]})
    assert list(map(repr, request.parameters.values())) == [repr(2**63 - 1), repr(2.0**63), repr(-(2**63))]


def test_binary_tensors_are_views_of_the_body_in_order() -> None:
    content = np.arange(4, dtype=np.int32).tobytes()
    document = {
        "inputs": [
            {"name": n, "datatype": "INT32", "shape": [1, 2], "parameters": {"binary_data_size": 8}} for n in ("A", "B")
        ]
    }
    request, _ = decode(document, content)
    assert bytes(request.inputs[0].data) == content[:8]
    assert bytes(request.inputs[1].data) == content[8:]
    assert isinstance(request.inputs[0].data, memoryview)


NOT_STRING = "attempt to access JSON non-string as string"
NOT_UNSIGNED = "attempt to access JSON non-unsigned-integer as unsigned-integer"
NOT_BOOLEAN = "attempt to access JSON non-boolean as boolean"
NOT_ARRAY = "attempt to access JSON non-array as array"
NOT_OBJECT = "attempt to access JSON non-object as object"
ONE_SOURCE = "Input must set only one of the following fields: 'data', "
BAD_PARAMETER = "parameter 'custom' has invalid type. It should be either 'int', 'bool', or 'string'."
RESERVED = "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified."
REGION = {"shared_memory_region": "r"}
TWICE = [{"name": "OUT"}, {"name": "OUT"}]


def sized(size: Any) -> dict[str, Any]:
    return {"name": "IN", "datatype": "INT32", "shape": [1, 2], "parameters": {"binary_data_size": size}}


STRINGS_NOT: tuple[Any, ...] = (True, -1, 1.5, 2**64, [], {})
UNSIGNED_NOT: tuple[Any, ...] = (True, -1, 1.5, "1", 2**64, [], {})
BOOLEANS_NOT: tuple[Any, ...] = (None, 0, 1, 1.5, "true", [], {})
ARRAYS_NOT: tuple[Any, ...] = (False, 0, 1.5, "", "1,16", {})
OBJECTS_NOT: tuple[Any, ...] = (False, 0, 1.5, "", "{}", [])

# The path of a field, its wrong values, and the error.
WRONG: list[tuple[str, tuple[Any, ...], str]] = [
    ("id", STRINGS_NOT, f"Unable to parse 'id': {NOT_STRING}"),
    ("parameters", OBJECTS_NOT, "failed to get request params.: attempt to get members for non-object"),
    ("parameters.priority", (None, *UNSIGNED_NOT), f"Unable to parse 'priority': {NOT_UNSIGNED}"),
    ("parameters.timeout", (None, *UNSIGNED_NOT), f"Unable to parse 'timeout': {NOT_UNSIGNED}"),
    ("parameters.sequence_id", (None, True, -1, 1.5, [], {}), f"Unable to parse 'sequence_id': {NOT_STRING}"),
    ("parameters.sequence_start", BOOLEANS_NOT, f"Unable to parse 'sequence_start': {NOT_BOOLEAN}"),
    ("parameters.sequence_end", BOOLEANS_NOT, f"Unable to parse 'sequence_end': {NOT_BOOLEAN}"),
    ("parameters.binary_data_output", BOOLEANS_NOT, "Unable to parse 'binary_data_output'"),
    ("parameters.custom", (None, [], {}), BAD_PARAMETER),
    ("parameters.triton_any", (None, 1, "x"), RESERVED),
    ("inputs", ARRAYS_NOT, f"Unable to parse 'inputs': {NOT_ARRAY}"),
    ("inputs.0", (None, True, 1, "x", [], {}), ONE_SOURCE),
    ("inputs.0.name", (None, *STRINGS_NOT), f"Unable to parse 'name': {NOT_STRING}"),
    ("inputs.0.datatype", (None, *STRINGS_NOT), f"Unable to parse 'datatype': {NOT_STRING}"),
    ("inputs.0.datatype", ("FP16", "BF16"), "data via JSON is not supported. Please use the binary data format"),
    ("inputs.0.datatype", ("BYTES",), f"Unable to parse JSON bytes array: {NOT_STRING}"),
    ("inputs.0.shape", (None, *ARRAYS_NOT), f"Unable to parse 'shape': {NOT_ARRAY}"),
    ("inputs.0.shape.0", (None, *UNSIGNED_NOT), f"Unable to parse 'shape': {NOT_UNSIGNED}"),
    ("inputs.0.data", (None, *ARRAYS_NOT), f"Unable to parse 'data': {NOT_ARRAY}"),
    ("inputs.0.data.1", (None, True, 1.0, "1", 2**64, {}), "Unable to parse 'data': attempt to access JSON non-signed"),
    ("inputs.0.data.1", (2**31, -(2**31) - 1), "Unable to parse 'data': element 1 of input 'IN' is "),
    ("inputs.0.parameters", OBJECTS_NOT, f"Unable to parse 'parameters': {NOT_OBJECT}"),
    ("inputs.0.parameters.binary_data_size", (None, 0, 64, *UNSIGNED_NOT), "But set 'data' 'binary_data_size'"),
    ("inputs.0.parameters.shared_memory_region", (None, "r", *STRINGS_NOT), "But set 'data' 'shared_memory_region'"),
    ("inputs.0.parameters.shared_memory_offset", (None, *UNSIGNED_NOT), "Unable to parse 'shared_memory_offset': "),
    ("inputs.0", ({"parameters": {"binary_data_size": -1}},), "Unable to parse 'name': "),
    ("inputs.0", (sized(-1), sized(None)), f"Unable to parse 'binary_data_size': {NOT_UNSIGNED}"),
    ("inputs.0", (sized(4),), "unexpected size for input 'IN', expecting 4 additional bytes for model 'm'"),
    ("inputs.0", (tensor(parameters=REGION | {"binary_data_size": 1}),), "'data' 'binary_data_size' 'shared_memory_r"),
    # Of two faults, the error is about the one that Triton comes to first.
    ("inputs.0", (tensor(shape=[1, 2], datatype="FP16", data=1),), f"Unable to parse 'data': {NOT_ARRAY}"),
    ("inputs.0.data", ([1, 2, "x"], [[1, 2], [None]]), "Shape does not match true shape of 'data' field"),
    ("inputs.0.data", ([1, "x", 2], ["x"]), "Unable to parse 'data': attempt to access JSON non-signed"),
    ("inputs", ([tensor(), tensor(data="x")], [tensor(), tensor(), {}]), "input 'IN' already exists in request"),
    ("inputs", ([tensor(), tensor(shape="x")],), f"Unable to parse 'shape': {NOT_ARRAY}"),
    ("outputs", ARRAYS_NOT, f"Unable to parse 'outputs': {NOT_ARRAY}"),
    ("outputs", (TWICE,), "[request id: <id_unknown>] output 'OUT' already exists in request"),
    ("outputs.0", (None, True, 1, "x", [], {}), "Unable to parse 'name': "),
    ("outputs.0.name", STRINGS_NOT, f"Unable to parse 'name': {NOT_STRING}"),
    ("outputs.0.parameters", OBJECTS_NOT, f"Unable to parse 'parameters': {NOT_OBJECT}"),
    ("outputs.0.parameters", ({**REGION, "classification": 0},), "Output can't set both 'shared_memory_region' and "),
    ("outputs.0", ({"parameters": {"shared_memory_region": 1, "binary_data": True}},), "region' and 'binary_data'"),
    ("outputs.0.parameters", ({**REGION, "binary_data": 1},), f"Unable to set 'binary_data': {NOT_BOOLEAN}"),
    ("outputs.0.parameters.shared_memory_byte_size", UNSIGNED_NOT, "Unable to parse 'shared_memory_byte_size': "),
    ("outputs.0.parameters.binary_data", BOOLEANS_NOT, f"Unable to parse 'binary_data': {NOT_BOOLEAN}"),
    ("outputs.0.parameters.classification", (None, *UNSIGNED_NOT), f"Unable to set 'classification': {NOT_UNSIGNED}"),
]


def with_field(path: str, value: Any) -> dict[str, Any]:
    """A good document with another value at `path`."""
    document: dict[str, Any] = {
        "parameters": {},
        "inputs": [tensor(shape=[1, 2], data=[1, 2], parameters={})],
        "outputs": [{"name": "OUT", "parameters": {}}],
    }
    *steps, last = [int(step) if step.isdigit() else step for step in path.split(".")]
    place: Any = document
    for step in steps:
        place = place[step]
    place[last] = value
    return document


# The size of a document decides which of two parsers reads it. Both must give the same answer.
@pytest.mark.parametrize("padding", [b"", b" " * 2000], ids=["small", "large"])
@pytest.mark.parametrize(("path", "values", "text"), WRONG, ids=[f"{n}-{row[0]}" for n, row in enumerate(WRONG)])
def test_a_wrong_field_is_named_as_by_triton(path: str, values: tuple[Any, ...], text: str, padding: bytes) -> None:
    for value in values:
        with pytest.raises(InvalidRequest) as caught:
            decode(padding + json.dumps(with_field(path, value)).encode())
        assert text in caught.value.message


def test_long_sequence_id_is_refused_before_inputs_as_by_triton() -> None:
    document = with_field("parameters.sequence_id", "x" * 129) | {"inputs": 1}
    with pytest.raises(Unsupported, match="string correlation ID cannot be longer than 128 characters"):
        decode(json.dumps(document).encode())


@pytest.mark.parametrize("padding", [b"", b" " * 2000], ids=["small", "large"])
def test_a_byte_order_mark_is_ignored_as_by_triton(padding: bytes) -> None:
    text = b"\xef\xbb\xbf" + padding + json.dumps({"inputs": [tensor()]}).encode()
    assert bytes(decode(text)[0].inputs[0].data) == np.array([1, 2], np.int32).tobytes()
    with pytest.raises(InvalidRequest, match="failed to parse the request JSON buffer"):
        decode(b"\xef\xbb\xbf" + text)


@pytest.mark.parametrize(
    ("body", "hint"),
    [
        (b"{'inputs': []}", "json.dumps writes JSON"),
        (json.dumps({"inputs": [tensor(data="[1 2]")]}).encode(), "must be a list: array.tolist() makes one"),
        (
            json.dumps({"inputs": [tensor()], "outputs": ["OUT"]}).encode(),
            """a list of objects such as {"name":"NAME"}""",
        ),
        (json.dumps({"inputs": [tensor()], "parameters": []}).encode(), "'parameters' must be an object"),
    ],
)
def test_bodies_of_another_form_have_a_hint(body: bytes, hint: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode(body)
    assert hint in (caught.value.hint or "")


def in_region(**parameters: Any) -> dict[str, Any]:
    item = tensor(parameters={"shared_memory_region": "r"} | parameters)
    del item["data"]
    return item


FORM = '{"name":"IN","datatype":"INT32","shape":[1,2],"data":[...]}'
SHOWN = "GET /v2/models/m/request?form=curl shows a request"
INSTANCES = 'POST /v1/models/m:predict takes {"instances":[...]}; for this route ' + SHOWN


@pytest.mark.parametrize(
    ("document", "hint"),
    [
        *(
            ({"inputs": [{key: value for key, value in tensor().items() if key != missing}]}, FORM)
            for missing in ("name", "datatype", "shape", "data")
        ),
        ({"inputs": [[1, 2]]}, FORM),
        ({"inputs": {"IN": [1, 2]}}, FORM),
        ({"instances": [[1, 2]]}, INSTANCES),
        ([[1, 2]], INSTANCES),
        ({"IN": [1, 2]}, SHOWN),
        ({"inputs": [tensor(data=[1.5, 2])]}, "'data' of 'IN', which is INT32, must have whole numbers"),
        ({"inputs": [tensor(datatype="float32")]}, "did you mean FP32?"),
        ({"inputs": [tensor(datatype="TYPE_STRING")]}, "did you mean BYTES?"),
        ({"inputs": [tensor(datatype="int32")]}, "did you mean INT32?"),
    ],
)
def test_refusal_hints_at_the_expected_request(document: Any, hint: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode(document)
    assert (caught.value.hint or "").removeprefix("'inputs' is a list of objects such as ") == hint


def test_tensors_in_regions_have_offset_and_size() -> None:
    place = {"shared_memory_offset": 8, "shared_memory_byte_size": 64}
    document = {
        "id": "7",
        "inputs": [in_region(**place), tensor(name="B")],
        "outputs": [{"name": "OUT", "parameters": {"shared_memory_region": "o", "binary_data": False} | place}],
    }
    for _ in range(2):
        request, plan = decode(document)
        assert isinstance(request, RegionRequest)
        assert (request.id, request.outputs, request.output_regions) == ("7", ("OUT",), {"OUT": ("o", 8, 64)})
        first, second = request.inputs
        assert isinstance(first, RegionInput)
        assert (first.name, first.shape, first.nbytes, first.reference) == ("IN", (1, 2), 64, ("r", 8, 64))
        assert bytes(second.data) == np.array([1, 2], np.int32).tobytes()
        assert plan.placed == {"OUT"}


@pytest.mark.parametrize("key", ["shared_memory_offset", "shared_memory_byte_size"])
@pytest.mark.parametrize("value", [-1, 1.5, "1", True, None, [], 2**64])
def test_region_offset_or_size_of_the_wrong_type_is_refused(key: str, value: Any) -> None:
    for document in (
        {"inputs": [in_region(**{key: value})]},
        {"inputs": [tensor()], "outputs": [{"name": "OUT", "parameters": {"shared_memory_region": "r", key: value}}]},
    ):
        with pytest.raises(InvalidRequest, match=f"^Unable to parse '{key}': attempt to access JSON non-unsigned"):
            decode(orjson.dumps(document) if value != 2**64 else json.dumps(document).encode())


def test_cached_header_distinguishes_outputs_in_regions() -> None:
    item = tensor(parameters={"binary_data_size": 8})
    del item["data"]
    document: dict[str, Any] = {"inputs": [item]}
    document["outputs"] = [{"name": "OUT", "parameters": {"shared_memory_region": "r"}}]
    for _ in range(3):
        assert type(decode(document, bytes(8))[0]) is RegionRequest


def test_sizes_are_checked_before_memory_is_allocated() -> None:
    with pytest.raises(
        InvalidRequest, match=r"^request JSON size of \d+ bytes exceeds the maximum allowed input size of 10"
    ):
        decode({"inputs": [tensor()]}, limit=10)
    with pytest.raises(InvalidRequest, match=r"^JSON input 'IN' has a byte_size \(8000000000 bytes\) that exceeds"):
        decode({"inputs": [tensor(shape=[1, 2_000_000_000])]})
    # More elements than 64 bits can count: validation refuses the shape.
    request, _ = decode({"inputs": [tensor(shape=[2**62, 16])]})
    assert bytes(request.inputs[0].data) == b""


def test_raw_request_deduces_its_shape() -> None:
    request, plan = decode_request(bytes(24), 0, -1, one("INT32", 2, -1), LIMIT)
    assert plan.binary
    assert request.inputs[0].shape == (1, 2, 3)
    request, _ = decode_request(b"abc", 0, -1, one("BYTES", 1, batch=0), LIMIT)
    assert bytes(request.inputs[0].data) == b"\x03\0\0\0abc"
    with pytest.raises(InvalidRequest, match=r"input 'raw_input' for model 'm'. Expected 24, got 27"):
        decode_request(bytes(27), 0, -1, one("INT32", 2, -1), LIMIT)


# --- The parsers of large and of small texts read the same request, or refuse it with the same error


SPEC = one("FP32", -1)


def outcome(body: bytes, header_length: int | None = None) -> Any:
    """The request, or the text of its error."""
    try:
        request, plan = decode_request(bytearray(body), header_length, -1, SPEC, LIMIT)
    except ServerError as error:
        return type(error), re.sub(r" at [0-9]+$", "", error.message), error.hint
    inputs = [(t.name, t.datatype, t.shape, _content(t.data)) for t in request.inputs]
    return request.id, request.outputs, (plan.binary, plan.outputs, plan.placed), inputs


def _content(data: Any) -> bytes:
    return bytes(wire_bytes(data)) if isinstance(data, np.ndarray) else bytes(data)


def leaves(value: Any) -> int:
    return sum(map(leaves, value)) if isinstance(value, list) else 1


@st.composite
def inputs(draw: st.DrawFn, name: str = "IN") -> dict[str, Any]:
    """An input, most of them with data that fits its datatype and its shape."""
    datatype = draw(st.sampled_from(["FP32", "FP64", "INT8", "INT64", "UINT64", "BOOL", "BYTES", "FP16"]))
    fitting = {"BOOL": st.booleans(), "BYTES": strings}.get(datatype, numbers)
    content = draw(nested(draw(st.sampled_from([fitting, fitting, values]))))
    count = leaves(content) + draw(st.sampled_from([0, 0, 0, 1, -1]))
    fields = {"name": name, "datatype": datatype, "shape": [1, max(count, 0)], "data": content}
    order = draw(st.permutations(list(fields)))
    return {key: fields[key] for key in order}


documents = st.fixed_dictionaries(
    {"inputs": st.lists(inputs(), min_size=1, max_size=3)},
    optional={"id": st.one_of(strings, numbers), "data": nested(numbers), "outputs": st.just([{"name": "OUT"}])},
)


BLANKS = b" " * 2000  # in front, as in no string; the place of an error is another one then


@pytest.mark.slow
@settings(max_examples=200)
@given(body=damaged(json_text(documents)), tail=st.none() | st.binary(max_size=4))
def test_text_length_does_not_change_the_request_or_error(body: bytes, tail: bytes | None) -> None:
    if body and tail is None:
        assert outcome(BLANKS + body) == outcome(body)
    elif body and tail is not None:
        assert outcome(BLANKS + body + tail, len(BLANKS + body)) == outcome(body + tail, len(body))


@pytest.mark.parametrize(
    "content",
    [
        "[1,2,NaN,4]",
        "[1,2,-Infinity,4]",
        '[1,2,"3",4]',
        "[1,2,null,4]",
        "[[1,2],[3,4]",
        "[[1,2],[3,4]]]",
        "[1,2,3,4],",
        "[" * 101 + "1,2,3,4" + "]" * 101,
        "[1,2," + "[" * 1100 + "3" + "]" * 1100 + ",4]",
        "[1,2,3,1e999]",
        '[1,2,"\udcff",4]',
        '["1","\udcff","é","4"]',
        'NaN,"\udc80é"',
    ],
)
@pytest.mark.parametrize("datatype", ["FP32", "INT32", "BYTES"])
def test_text_refused_by_one_parser_is_refused_at_any_length(content: str, datatype: str) -> None:
    body = f'{{"inputs":[{{"name":"IN","datatype":"{datatype}","shape":[4],"data":{content}}}]}}'.encode(
        "utf-8", "surrogateescape"
    )
    assert outcome(BLANKS + body) == outcome(body)


@pytest.mark.parametrize(
    ("members", "more"),
    [('"data":[1],"data":[2]', ""), ('"data":[1],"name":"OUT"', ""), ('"data":[1]', ',"id":"b"')],
)
def test_text_length_does_not_change_which_duplicate_member_counts(members: str, more: str) -> None:
    body = f'{{"id":"a","inputs":[{{"name":"IN","datatype":"FP32","shape":[1,1],{members}}}]{more}}}'.encode()
    assert outcome(BLANKS + body) == outcome(body)


# --- binary type


BINARY = "application/vnd.some-triton.binary+json"
TYPE = BinaryType(BINARY)


@pytest.mark.parametrize(
    ("content_type", "text"),
    [
        (f"{BINARY};json-header-size=42", "42"),
        (f"{BINARY};json-header-size=-1", "-1"),
        (f"{BINARY};json-header-size=x;y=1", "x;y=1"),
        (f"{BINARY};json-header-size=", ""),
        (f"{BINARY}; json-header-size=42", "42"),
        (f'{BINARY.upper()}; charset=utf-8; JSON-Header-Size="7"', "7"),
        (BINARY, ""),
        (f"x{BINARY};json-header-size=42", ""),
        (f"text/csv, {BINARY};json-header-size=42", ""),
        (f'text/csv;x="{BINARY}"', ""),
        ("application/json", None),
        ("", None),
        ("\xff;;;", None),
    ],
)
def test_size_text_reads_the_length_in_a_content_type(content_type: str, text: str | None) -> None:
    assert TYPE.size_text(content_type) == text
