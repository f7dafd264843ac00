from __future__ import annotations

import copy
import json
import re
from collections.abc import Iterator
from functools import reduce
from operator import getitem
from typing import Any, cast

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.core.http.json_texts import damaged, json_text, nested, numbers, strings, values
from tests.unit.core.http.payloads.payload_models import one
from tests.unit.packed_tensors import spec
from trident.core.config.spec import ModelSpec
from trident.core.errors import InvalidRequest, ServerError
from trident.core.frontend.dataplane import ResponsePlan
from trident.core.http.payloads.inference import BinaryType
from trident.core.http.v2_request import _known_headers, decode_request
from trident.core.inference.request import InferenceRequest
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
    ("changed", "text"),
    [
        ({"inputs": [tensor(datatype="FP16", data=1)]}, "Unable to parse 'data': attempt to access JSON non-array"),
        ({"inputs": [tensor(data=[1, 2, "x"])]}, "Unable to parse 'data': Shape does not match true shape"),
        ({"inputs": [tensor(data=[1, "x", 2])]}, "Unable to parse 'data': attempt to access JSON non-signed"),
        ({"inputs": [tensor(), tensor(data="x")]}, "[request id: <id_unknown>] input 'IN' already exists in request"),
        ({"inputs": [tensor(), tensor(shape="x")]}, "Unable to parse 'shape': attempt to access JSON non-array"),
        ({"inputs": 1, "parameters": {"sequence_id": "x" * 129}}, "string correlation ID cannot be longer than 128"),
    ],
)
def test_of_two_faults_the_one_that_triton_comes_to_first_is_named(changed: dict[str, Any], text: str) -> None:
    with pytest.raises(ServerError) as caught:
        decode({"inputs": [tensor()], **changed})
    assert text in caught.value.message


WRONG: tuple[Any, ...] = (None, 0, -1, 1.5, True, "", "text", [], [1], {}, {"key": 1}, 2**64)


def wrong_documents() -> Iterator[Any]:
    """A good document, each time with one member that is missing, or has a value of another kind."""
    good = {
        "id": "1",
        "parameters": {"sequence_id": 1, "sequence_start": True, "priority": 1, "own": 1, "binary_data_output": True},
        "inputs": [tensor(datatype="FP32", parameters={}), tensor(name="B")],
        "outputs": [{"name": "OUT", "parameters": {"binary_data": False, "classification": 0}}],
    }
    waiting: list[tuple[Any, ...]] = [()]
    while waiting:
        path = waiting.pop()
        for value in ("missing", *WRONG) if path else ():
            document = copy.deepcopy(good)
            parent = reduce(getitem, path[:-1], cast(Any, document))
            if value == "missing":
                del parent[path[-1]]
            else:
                parent[path[-1]] = value
            yield document
        found = reduce(getitem, path, cast(Any, good))
        keys = found if isinstance(found, dict) else range(len(found)) if isinstance(found, list) else ()
        waiting += [(*path, key) for key in keys]


def test_wrong_member_is_refused_alike_at_any_length() -> None:
    """The errors of short documents are recorded beside Triton."""
    for document in wrong_documents():
        body = json.dumps(document).encode()
        assert outcome(BLANKS + body) == outcome(body), body


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
        "[1,2,3,3000000000]",
        "[1,2,[3,-3000000000]]",
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


# --- a binary request whose header is known is read as a new one would be


PAIR = spec(A=("INT32", (-1,)), B=("INT32", (-1,)))
BINARY_HEADER = {
    "id": "r",
    "parameters": {"priority": 2, "timeout": 7, "sequence_id": 5, "sequence_start": True, "mine": 1},
    "inputs": [
        {"name": "A", "datatype": "INT32", "shape": [1], "parameters": {"binary_data_size": 4}},
        {"name": "B", "datatype": "INT32", "shape": [2], "parameters": {"binary_data_size": 8}},
    ],
    "outputs": [{"name": "OUT", "parameters": {"binary_data": True}}],
}


def decode_binary(
    tail: bytes | bytearray, *, version: int = -1, **changed: object
) -> tuple[InferenceRequest, ResponsePlan]:
    text = orjson.dumps(BINARY_HEADER | changed)
    return decode_request(memoryview(bytearray(text) + tail), len(text), version, PAIR, LIMIT)


def test_cached_header_decodes_the_tensors_of_another_body() -> None:
    decode_binary(bytes(12))
    request, plan = decode_binary(bytes(range(100, 112)), version=3)
    assert plan.form_of("OUT") == (True, 0)
    assert [(t.name, t.datatype, t.shape, bytes(t.data)) for t in request.inputs] == [
        ("A", "INT32", (1,), bytes(range(100, 104))),
        ("B", "INT32", (2,), bytes(range(104, 112))),
    ]
    assert (request.id, request.outputs, request.priority, request.timeout_us) == ("r", ("OUT",), 2, 7)
    assert (request.model_version, request.correlation_id, request.sequence_start) == (3, 5, True)
    assert request.parameters == {"mine": 1}


def test_cached_headers_hold_no_bodies_and_are_bounded() -> None:
    text = orjson.dumps(BINARY_HEADER | {"id": "body"})
    body = bytearray(text) + bytes(12)
    decode_request(memoryview(body), len(text), -1, PAIR, LIMIT)
    body.clear()  # raises BufferError while a view of it is left
    for number in range(2000):
        decode_binary(bytes(12), id=str(number))
    assert len(_known_headers) <= 512
    before = len(_known_headers)
    decode_binary(bytes(12), id=" " * 3000)
    assert len(_known_headers) == before


def test_header_with_another_id_is_cached_separately() -> None:
    decode_binary(bytes(12))
    assert decode_binary(bytes(12), id="s")[0].id == "s"


def test_data_in_the_json_of_a_binary_request_is_read_each_time() -> None:
    for number in (1, 2):
        header = {
            "inputs": [
                {"name": "A", "datatype": "INT32", "shape": [1, 1], "data": [7]},
                {"name": "B", "datatype": "INT32", "shape": [1, 1], "parameters": {"binary_data_size": 4}},
            ]
        }
        text, tail = orjson.dumps(header), number.to_bytes(4, "little")
        request, _ = decode_request(text + tail, len(text), -1, PAIR, LIMIT)
        assert [bytes(tensor.data) for tensor in request.inputs] == [b"\7\0\0\0", tail]


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
