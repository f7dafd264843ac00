"""A request whose text is known is read as a new one would be."""

from __future__ import annotations

import json
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given
from hypothesis import strategies as st

from tests.unit.packed_tensors import spec
from trident.core.errors import InvalidRequest
from trident.core.http import v2_request as request_codec
from trident.core.http.v2_request import KnownBodies, KnownHeaders, ResponsePlan, decode_request
from trident.core.inference.request import InferenceRequest, InputTensor, PackedInputs
from trident.core.inference.response import RegionInput, RegionRequest
from trident.core.inference.tensors import BY_NAME

SPEC = spec(A=("INT32", (-1,)), B=("FP32", (-1,)))
LIMIT = 1 << 20
DATATYPES = [name for name in BY_NAME if name not in ("FP16", "BF16", "BYTES", "BOOL")]


@pytest.fixture(autouse=True)
def nothing_known(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(request_codec, "_known_bodies", KnownBodies())


def entry(name: str, datatype: str, data: object, shape: list[int] | None = None) -> dict[str, Any]:
    return {"name": name, "shape": shape or [1, len(data)], "datatype": datatype, "data": data}  # type: ignore[arg-type]


def body(*inputs: dict[str, Any], **fields: object) -> bytes:
    return json.dumps({"inputs": inputs, **fields}).encode()


def decode(text: bytes) -> InferenceRequest:
    return decode_request(text, None, -1, SPEC, LIMIT)[0]


def outcome(text: bytes) -> Any:
    """All fields of the request in `text`, or the error."""
    try:
        request, plan = decode_request(text, None, 3, SPEC, LIMIT)
    except InvalidRequest as error:
        return error.message, error.hint
    inputs = [(t.name, t.datatype, t.shape, np.asarray(t.data).tobytes()) for t in request.inputs]
    fields = (request.id, request.outputs, request.priority, request.timeout_us, request.parameters)
    return inputs, fields, request.correlation_id, request.sequence_start, request.model_version, plan


def is_known(text: bytes) -> bool:
    return isinstance(decode(text).inputs, PackedInputs)


@given(
    datatype=st.sampled_from(DATATYPES),
    values=st.lists(
        st.one_of(st.integers(-(2**66), 2**66), st.floats(allow_nan=False, allow_infinity=False)), max_size=5
    ),
    count=st.integers(0, 5),
    request_id=st.text(max_size=3),
)
def test_known_and_new_texts_are_read_alike(datatype: str, values: list[Any], count: int, request_id: str) -> None:
    text = body(entry("A", datatype, values, [1, count]), entry("B", "FP32", [1.5]), id=request_id)
    request_codec._known_bodies = KnownBodies()
    new = outcome(text)
    seen = body(entry("A", datatype, [1] * count, [1, count]), entry("B", "FP32", [2.5]), id=request_id)
    outcome(seen)
    assert outcome(text) == new
    assert outcome(text) == new


PLAIN = '{"inputs":[{"name":"A","shape":[1,1],"datatype":"%s","data":%s}]}'
NESTED = (
    '{"inputs":[{"name":"A","shape":[2,2],"datatype":"INT32","data":%s},'
    '{"name":"B","shape":[1,1],"datatype":"FP32","data":[1]}]}'
)
WITH_ID = '{"id":"%s","inputs":[{"name":"A","shape":[1,1],"datatype":"INT32","data":[1]}]}'
NUMBERS = "[1,2|[1,,2]|[1 2]|[01]|[+1]|[1.]|[.5]|[1e]|[-]|[,1]|[1,]|[1e999]|[1e39]|[]"
BRACKETS = (
    "[[1,2],[3,4] [[1,2],[3,4]]] [1,2],[3,4] [[1,2][3,4]] [[1,2],[3],4,] [[1,2],[3,[]]] [[1,2],[3,4.5]] [[1],[5]]"
)


@pytest.mark.parametrize(
    ("known", "text"),
    [
        *(
            (PLAIN % (datatype, "[1]"), PLAIN % (datatype, data))
            for datatype in ("INT32", "FP32")
            for data in NUMBERS.split("|")
        ),
        *((NESTED % "[[1,2],[3,4]]", NESTED % data) for data in BRACKETS.split()),
        *((NESTED % "[[1,2],[3,4]]", NESTED % ("[" * n + "1,2,3,4" + "]" * n)) for n in (98, 99, 100, 101)),
        *((WITH_ID % "r", WITH_ID % each) for each in ("s", "", "r r", "\u00e4", "\\n", "\\", "x" * 100, "\udcff")),
    ],
)
def test_a_text_like_a_known_one_is_read_or_refused_as_a_new_one(known: str, text: str) -> None:
    new = outcome(text.encode("utf-8", "surrogateescape"))
    request_codec._known_bodies = KnownBodies()
    assert not is_known(known.encode())
    assert is_known(known.encode())
    assert outcome(text.encode("utf-8", "surrogateescape")) == new


@pytest.mark.parametrize(
    "text",
    [
        b'{"parameters":{"id":"%b"},"inputs":[{"name":"A","shape":[1,1],"datatype":"INT32","data":[1]}]}',
        b'{"parameters":{"id":"x"},"id":"%b","inputs":[{"name":"A","shape":[1,1],"datatype":"INT32","data":[1]}]}',
        b'{"id":"%b","id":"x","inputs":[{"name":"A","shape":[1,1],"datatype":"INT32","data":[1]}]}',
        b'{"id":"%b","\\u0069d":"x","inputs":[{"name":"A","shape":[1,1],"datatype":"INT32","data":[1]}]}',
        b'{"inputs":[{"id":"%b","name":"A","shape":[1,1],"datatype":"INT32","data":[1]}]}',
    ],
)
def test_a_member_named_id_is_not_taken_for_the_id(text: bytes) -> None:
    words = (b"x", b"y", b"x")
    new = [outcome(text % word) for word in words]
    request_codec._known_bodies = KnownBodies()
    for _ in range(2):
        assert [outcome(text % word) for word in words] == new


def test_all_text_beside_the_numbers_belongs_to_the_template() -> None:
    fields = {
        "id": "r",
        "parameters": {"priority": 2, "timeout": 7, "mine": "x", "sequence_id": 9, "sequence_start": True},
        "outputs": [{"name": "OUT", "parameters": {"binary_data": True}}],
    }
    text = body(entry("A", "INT32", [5]), **fields)
    new = outcome(text)
    assert outcome(body(entry("A", "INT32", [6]), **fields)) != new
    assert is_known(text)
    assert outcome(text) == new
    for other in ({"id": "r"}, {**fields, "outputs": []}, {**fields, "parameters": {"priority": 3}}):
        assert not is_known(body(entry("A", "INT32", [5]), **other))


def test_known_requests_share_no_parameters() -> None:
    text = body(entry("A", "INT32", [5]), parameters={"mine": 1})
    decode(text)
    first, second = decode(text), decode(text)
    assert first.parameters is not None
    first.parameters["theirs"] = 2
    assert second.parameters == {"mine": 1}


@pytest.mark.parametrize(
    "text",
    [
        body(entry("A", "INT32", [[1, 2], []], [1, 2])),
        body(entry("A", "BYTES", ["1", "2"])),
        body(entry("A", "BOOL", [True])),
        body(entry("A", "INT32", [1]), parameters={"note": '"data":[1]'}),
        body(entry("data", "INT32", [1])),
        body(entry("A", "INT32", [1]), id="\\"),
        b'{"inputs":[{"name":"A","shape":[1,1],"datatype":"INT32","data":[1],"data":[1]}]}',
        b'{"inputs":[{"name":"A","shape":[1,1],"datatype":"INT32","data":[1],"d\\u0061ta":[1]}]}',
        b'{"inputs":[{"name":"A","shape":[1,1],"datatype":"INT32","data":[1]}],"data":[1]}',
        b'{"inputs":[{"name":"A","shape":[],"datatype":"INT32","data":[1]}]}',
        b'{"inputs":[{"name":"A","shape":[1,0],"datatype":"INT32","data":[]}]}',
        body(entry("A", "FP64", [0.123456789] * 400)),
    ],
)
def test_texts_without_flat_numbers_are_parsed_each_time(text: bytes) -> None:
    new = outcome(text)
    assert not is_known(text)
    assert not is_known(text)
    assert outcome(text) == new


def test_a_smaller_limit_applies_to_known_texts() -> None:
    text = body(entry("A", "INT32", [1, 2, 3, 4]))
    decode(text)
    assert is_known(text)
    with pytest.raises(InvalidRequest, match="exceeds the maximum allowed"):
        decode_request(text, None, -1, SPEC, 8)


def test_templates_belong_to_one_model_and_are_bounded() -> None:
    text = body(entry("A", "INT32", [1]))
    decode(text)
    other = spec(A=("INT32", (1,)))
    object.__setattr__(other, "name", "other")
    request, _ = decode_request(text, None, -1, other, LIMIT)
    assert (request.model_name, type(request.inputs)) == ("other", list)
    templates = KnownBodies()
    for number in range(1100):
        text = body(entry("A", "INT32", [1]), parameters={"number": number})
        request, plan = decode_request(text, None, -1, SPEC, LIMIT)
        templates.remember(text, request, plan)
        assert templates.recall("m", -1, text, LIMIT) is not None
    assert len(templates._known) <= 512


# --- inputs in shared memory

MODEL = spec(IN=("INT32", (2,)))


def text_of(**fields: Any) -> bytes:
    given = {"shared_memory_region": "r", "shared_memory_byte_size": 8}
    wanted = {"shared_memory_region": "o", "shared_memory_offset": 16, "shared_memory_byte_size": 8}
    document = {
        "inputs": [{"name": "IN", "datatype": "INT32", "shape": [1, 2], "parameters": given}],
        "outputs": [{"name": "OUT", "parameters": wanted}],
    }
    return orjson.dumps(fields | document)


def test_a_text_that_comes_again_is_the_same_request_with_another_id() -> None:
    for name in ("a", "größer", "a"):
        request, plan = decode_request(text_of(id=name, parameters={"mine": 1}), None, 3, MODEL, LIMIT)
        assert isinstance(request, RegionRequest)
        assert (request.id, request.model_version, request.parameters) == (name, 3, {"mine": 1})
        assert (request.outputs, request.output_regions, plan.placed) == (("OUT",), {"OUT": ("o", 16, 8)}, {"OUT"})
        assert request.needs_regions
        (tensor,) = request.inputs
        assert isinstance(tensor, RegionInput)
        assert (tensor.name, tensor.datatype, tensor.shape, tensor.reference) == ("IN", "INT32", (1, 2), ("r", 0, 8))
        request.parameters["added"] = 1  # as headers are
    request, _ = decode_request(text_of(id="a", parameters={"mine": 2}), None, -1, MODEL, LIMIT)
    assert request.parameters == {"mine": 2}


# --- binary inputs

HEADER = b'{"id":"r","inputs":[]}'
TAIL = memoryview(bytes(range(12)))


def binary_request(tail: memoryview = TAIL) -> InferenceRequest:
    made = InferenceRequest(
        "m",
        [InputTensor("A", "INT32", (1,), tail[:4]), InputTensor("B", "INT32", (2,), tail[4:12])],
        id="r",
        outputs=("OUT",),
        priority=2,
        timeout_us=7,
    )
    made.parameters = {"mine": 1}
    made.correlation_id = 5
    made.sequence_start = True
    return made


def test_header_cache_recalls_a_request_with_the_tensors_of_another_body() -> None:
    known = KnownHeaders()
    plan = ResponsePlan(binary=True)
    known.remember(HEADER, binary_request(), plan)
    tail = memoryview(bytes(range(100, 112)))
    recalled = known.recall("m", 3, HEADER, tail)
    assert recalled is not None
    again, again_plan = recalled
    assert again_plan == plan
    assert [(t.name, t.datatype, t.shape, bytes(t.data)) for t in again.inputs] == [
        ("A", "INT32", (1,), bytes(range(100, 104))),
        ("B", "INT32", (2,), bytes(range(104, 112))),
    ]
    assert (again.id, again.outputs, again.priority, again.timeout_us) == ("r", ("OUT",), 2, 7)
    assert (again.model_version, again.correlation_id, again.sequence_start) == (3, 5, True)
    assert again.parameters == {"mine": 1}


def test_header_cache_keeps_no_body_and_stays_bounded() -> None:
    known = KnownHeaders()
    body = memoryview(bytearray(12))
    known.remember(HEADER, binary_request(body), ResponsePlan())
    body.release()  # raises BufferError while a view of it is kept
    for number in range(2000):
        known.remember(HEADER + b"%d" % number, binary_request(), ResponsePlan())
        assert known.recall("m", -1, HEADER + b"%d" % number, TAIL) is not None
    assert len(known._known) <= 512
    known.remember(HEADER + b" " * 3000, binary_request(), ResponsePlan())
    assert known.recall("m", -1, HEADER + b" " * 3000, TAIL) is None


def test_a_known_header_may_have_another_id() -> None:
    known = KnownHeaders()
    known.remember(HEADER, binary_request(), ResponsePlan())
    for request_id in ("s", "", "a longer one \u00e4"):
        recalled = known.recall("m", -1, HEADER.replace(b'"r"', f'"{request_id}"'.encode()), TAIL)
        assert recalled is not None
        assert recalled[0].id == request_id
    assert known.recall("m", -1, HEADER.replace(b'"r"', b'"\\n"'), TAIL) is None


def test_a_header_with_the_id_of_another_member_is_not_remembered() -> None:
    known = KnownHeaders()
    for header in (b'{"parameters":{"id":"x"},"id":"r"}', b'{"id":"r","id":"r"}', b'{"id":"r","\\u0069d":"r"}', b"{}"):
        known.remember(header, binary_request(), ResponsePlan())
        assert known.recall("m", -1, header, TAIL) is None
