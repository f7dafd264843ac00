from __future__ import annotations

import json
from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.core.http.json_texts import damaged, json_text, nested, numbers, sizes, sizes_parsed, strings, values
from trident.core.config.spec import InputSpec, ModelSpec, OutputSpec
from trident.core.errors import InvalidRequest, RequestCancelled, ServerError
from trident.core.frontend.request import forward_header
from trident.core.http.long_json import Slicing
from trident.core.http.payloads.formats import BinaryType
from trident.core.http.v2_json import NotStrict
from trident.core.http.v2_request import decode_request
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import RegionInput, RegionRequest
from trident.core.inference.tensors import BY_NAME

# --- request codec


LIMIT = 1 << 20


def spec(*dims: int, datatype: str = "INT32", max_batch_size: int = 8, names: tuple[str, ...] = ("IN",)) -> ModelSpec:
    return ModelSpec(
        name="m",
        version=1,
        platform="onnxruntime_onnx",
        backend="onnxruntime",
        max_batch_size=max_batch_size,
        inputs={n: InputSpec(name=n, datatype=BY_NAME[datatype], dims=dims) for n in names},
        outputs={"OUT": OutputSpec(name="OUT", datatype=BY_NAME[datatype], dims=dims)},
    )


def decode(document: Any, tail: bytes | None = None, *, limit: int = LIMIT, model: ModelSpec | None = None) -> Any:
    text = document if isinstance(document, bytes) else orjson.dumps(document)
    header_length = None if tail is None else len(text)
    return decode_request(text + (tail or b""), header_length, -1, model or spec(2), limit)


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
    assert request.inputs[0].data.tolist() == [1, 2]


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


def test_binary_data_output_counts_only_without_outputs() -> None:
    _, plan = decode({"parameters": {"binary_data_output": True}, "inputs": [tensor()]})
    assert plan.binary
    _, plan = decode({"parameters": {"binary_data_output": True}, "inputs": [tensor()], "outputs": [{"name": "OUT"}]})
    assert plan.outputs == {"OUT": (False, 0)}


ONE_SOURCE = (
    "Input must set only one of the following fields: 'data', 'binary_data_size' in 'parameters', "
    "'shared_memory_region' in 'parameters'. But "
)


@pytest.mark.parametrize(
    ("document", "message"),
    [
        ([], "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
        ({}, "Unable to parse 'inputs': attempt to access non-existing object member 'inputs'"),
        ({"inputs": {}}, "Unable to parse 'inputs': attempt to access JSON non-array as array"),
        ({"inputs": [1]}, ONE_SOURCE + "no field is set"),
        ({"inputs": [{}]}, ONE_SOURCE + "no field is set"),
        (
            {"inputs": [tensor(parameters={"binary_data_size": 8})]},
            ONE_SOURCE + "set 'data' 'binary_data_size'",
        ),
        (
            {"inputs": [tensor(parameters={"shared_memory_region": "r"})]},
            ONE_SOURCE + "set 'data' 'shared_memory_region'",
        ),
        ({"inputs": [tensor(name=None)]}, "Unable to parse 'name': attempt to access JSON non-string as string"),
        ({"inputs": [tensor(datatype=3)]}, "Unable to parse 'datatype': attempt to access JSON non-string as string"),
        ({"inputs": [tensor(shape="1,2")]}, "Unable to parse 'shape': attempt to access JSON non-array as array"),
        (
            {"inputs": [tensor(shape=[1, -2])]},
            "Unable to parse 'shape': attempt to access JSON non-unsigned-integer as unsigned-integer",
        ),
        (
            {"inputs": [tensor(shape=[1, 2.0])]},
            "Unable to parse 'shape': attempt to access JSON non-unsigned-integer as unsigned-integer",
        ),
        (
            {"inputs": [tensor(shape=[True, 2])]},
            "Unable to parse 'shape': attempt to access JSON non-unsigned-integer as unsigned-integer",
        ),
        ({"inputs": [tensor()], "id": 7}, "Unable to parse 'id': attempt to access JSON non-string as string"),
        (
            {"inputs": [tensor()], "parameters": 7},
            "failed to get request params.: attempt to get members for non-object",
        ),
        (
            {"inputs": [tensor()], "parameters": {"sequence_id": -1}},
            "Unable to parse 'sequence_id': attempt to access JSON non-string as string",
        ),
        ({"inputs": None}, "Unable to parse 'inputs': attempt to access JSON non-array as array"),
        ({"inputs": [{"name": 1, "data": [1]}]}, "Unable to parse 'name': attempt to access JSON non-string as string"),
        (
            {"inputs": [tensor()], "outputs": [{"name": None}]},
            "Unable to parse 'name': attempt to access JSON non-string as string",
        ),
        (
            {"inputs": [tensor()], "parameters": {"priority": -1}},
            "Unable to parse 'priority': attempt to access JSON non-unsigned-integer as unsigned-integer",
        ),
        (
            {"inputs": [tensor()], "parameters": {"sequence_start": 1}},
            "Unable to parse 'sequence_start': attempt to access JSON non-boolean as boolean",
        ),
        (
            {"inputs": [tensor()], "parameters": {"triton_x": 1}},
            "parameter keys starting with 'triton_' are reserved for Triton usage and should not be specified.",
        ),
        (
            {"inputs": [tensor()], "parameters": {"a": {}}},
            "parameter 'a' has invalid type. It should be either 'int', 'bool', or 'string'.",
        ),
        (
            {"inputs": [tensor()], "outputs": {"a": 1}},
            "Unable to parse 'outputs': attempt to access JSON non-array as array",
        ),
        (
            {"inputs": [tensor()], "outputs": [{}]},
            "Unable to parse 'name': attempt to access non-existing object member 'name'",
        ),
        (
            {"inputs": [tensor()], "outputs": [{"name": "OUT"}, {"name": "OUT"}]},
            "[request id: <id_unknown>] output 'OUT' already exists in request",
        ),
        (
            {
                "inputs": [tensor()],
                "outputs": [{"name": "OUT", "parameters": {"shared_memory_region": "r", "classification": 1}}],
            },
            "Output can't set both 'shared_memory_region' and 'classification'",
        ),
    ],
)
def test_refusals_have_tritons_texts(document: Any, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode(document)
    assert caught.value.message == message


def in_region(**parameters: Any) -> dict[str, Any]:
    item = tensor(parameters={"shared_memory_region": "r"} | parameters)
    del item["data"]
    return item


def test_tensors_in_regions_have_their_places() -> None:
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
        assert second.data.tolist() == [1, 2]
        assert plan.placed == {"OUT"}


@pytest.mark.parametrize("key", ["shared_memory_offset", "shared_memory_byte_size"])
@pytest.mark.parametrize("value", [-1, 1.5, "1", True, None, [], 2**64])
def test_a_place_of_the_wrong_type_is_refused(key: str, value: Any) -> None:
    for document in (
        {"inputs": [in_region(**{key: value})]},
        {"inputs": [tensor()], "outputs": [{"name": "OUT", "parameters": {"shared_memory_region": "r", key: value}}]},
    ):
        with pytest.raises(InvalidRequest, match=f"^Unable to parse '{key}': attempt to access JSON non-unsigned"):
            decode(orjson.dumps(document) if value != 2**64 else json.dumps(document).encode())


def test_a_binary_request_with_an_output_in_a_region_is_not_remembered_without_it() -> None:
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
    request, plan = decode_request(bytes(24), 0, -1, spec(2, -1), LIMIT)
    assert plan.binary
    assert request.inputs[0].shape == (1, 2, 3)
    request, _ = decode_request(b"abc", 0, -1, spec(1, datatype="BYTES", max_batch_size=0), LIMIT)
    assert bytes(request.inputs[0].data) == b"\x03\0\0\0abc"


@pytest.mark.parametrize(
    ("model", "message"),
    [
        (
            spec(2, names=("A", "B")),
            "[request id: <id_unknown>] Raw request must only have 1 input (found 1) to be deduced but got 2 inputs in "
            "'m' model configuration",
        ),
        (
            spec(-1, -1),
            "[request id: <id_unknown>] The shape of the raw input 'IN' can not be deduced because there are more than "
            "one variable-sized dimension",
        ),
        (
            spec(2, datatype="BYTES"),
            "[request id: <id_unknown>] For BYTE datatype raw input 'IN', the model must have input shape [1]",
        ),
    ],
)
def test_raw_requests_are_refused_for_other_models(model: ModelSpec, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_request(b"", None, -1, model, LIMIT)
    assert caught.value.message == message


def test_forwarded_headers_become_parameters_but_never_reserved_ones() -> None:
    request = InferenceRequest("m", [])
    forward_header(request, "X-Tenant", "a")
    assert request.parameters == {"X-Tenant": "a"}
    for name in ("priority", "triton_x"):
        with pytest.raises(
            InvalidRequest, match=f"^Header '{name}' is reserved for Triton usage and cannot be forwarded"
        ):
            forward_header(request, name, "1")


# --- A request that is read in slices is the request that is read as a whole, and so is its error


SPEC = ModelSpec(
    name="m",
    version=1,
    platform="onnxruntime_onnx",
    backend="onnxruntime",
    max_batch_size=8,
    inputs={"IN": InputSpec(name="IN", datatype=BY_NAME["FP32"], dims=(-1,))},
    outputs={"OUT": OutputSpec(name="OUT", datatype=BY_NAME["FP32"], dims=(-1,))},
)


def outcome(body: bytes, header_length: int | None = None, slicing: Slicing | None = None) -> Any:
    """The request, or the text of its error."""
    try:
        request, plan = decode_request(bytearray(body), header_length, -1, SPEC, LIMIT, slicing)
    except ServerError as error:
        return type(error), error.message, error.hint
    inputs = [(t.name, t.datatype, t.shape, _content(t.data)) for t in request.inputs]
    return request.id, request.outputs, plan, inputs


def _content(data: Any) -> Any:
    return (data.dtype, [repr(e) for e in data.tolist()]) if isinstance(data, np.ndarray) else bytes(data)


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


@pytest.mark.slow
@settings(max_examples=200)
@given(body=damaged(json_text(documents)), size=sizes)
def test_slices_do_not_change_a_request_or_its_error(body: bytes, size: int) -> None:
    assert outcome(body, None, Slicing(size=size)) == outcome(body)


@pytest.mark.slow
@settings(max_examples=200)
@given(body=damaged(json_text(documents)), tail=st.binary(max_size=4), size=sizes)
def test_slices_do_not_change_a_request_with_binary_tensors(body: bytes, tail: bytes, size: int) -> None:
    body, length = body + tail, len(body)
    if length:
        assert outcome(body, length, Slicing(size=size)) == outcome(body, length)


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
def test_what_only_the_parser_of_whole_documents_knows(content: str, datatype: str) -> None:
    body = f'{{"inputs":[{{"name":"IN","datatype":"{datatype}","shape":[4],"data":{content}}}]}}'.encode(
        "utf-8", "surrogateescape"
    )
    for size in range(1, 12):
        assert outcome(body, None, Slicing(size=size)) == outcome(body)


@pytest.mark.parametrize("number", ["1.5", "NaN"])
def test_a_right_request_is_read_in_small_steps(number: str, monkeypatch: pytest.MonkeyPatch) -> None:
    content = ",".join([number] * 600)
    body = f'{{"inputs":[{{"name":"IN","datatype":"FP32","shape":[1,600],"data":[{content}]}}]}}'.encode()
    expected = outcome(body)
    parsed = sizes_parsed(monkeypatch)
    assert outcome(body, None, Slicing(size=100)) == expected
    assert max(parsed) < 300


def test_an_array_in_another_place_is_not_taken_for_data() -> None:
    for document in ({"inputs": [], "data": [1, 2, 3]}, {"parameters": {"data": [1, 2, 3]}}, [{"data": [1, 2, 3]}]):
        body = orjson.dumps(document)
        assert outcome(body, None, Slicing(size=2)) == outcome(body)


def test_a_request_is_not_read_further_when_the_pause_stops_it() -> None:
    left = iter(range(5))

    def pause() -> None:
        if next(left, None) is None:
            raise RequestCancelled("gone")

    body = orjson.dumps({"inputs": [{"name": "IN", "datatype": "INT32", "shape": [1, 999], "data": list(range(999))}]})
    with pytest.raises(RequestCancelled):
        decode_request(body, None, -1, SPEC, LIMIT, Slicing(pause, 100))


@pytest.mark.parametrize("padding", [0, 2000])
@pytest.mark.parametrize("kind", [bytes, bytearray])
def test_only_a_strict_text_is_read_strictly(padding: int, kind: type[bytes | bytearray]) -> None:
    text = b'{"inputs":[{"name":"IN","datatype":"FP32","shape":[1,2],"data":[1,2]}]}' + b" " * padding
    request, _ = decode_request(kind(text), None, -1, SPEC, LIMIT, is_strict=True)
    assert request.inputs[0].array.tolist() == [[1, 2]]
    for broken in (text.replace(b"[1,2]}", b"[1,NaN]}"), text.replace(b"[1,2]}", b"[1 2]}")):
        with pytest.raises(NotStrict):
            decode_request(kind(broken), None, -1, SPEC, LIMIT, is_strict=True)
        with pytest.raises(NotStrict):
            decode_request(kind(broken), len(broken), -1, SPEC, LIMIT, is_strict=True)


def test_the_same_request_fails_with_one_element_too_many() -> None:
    body = orjson.dumps({"inputs": [{"name": "IN", "datatype": "INT32", "shape": [1, 98], "data": list(range(99))}]})
    with pytest.raises(InvalidRequest, match="shape"):
        decode_request(body, None, -1, SPEC, LIMIT, Slicing(size=16))


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


def test_size_text_reads_its_own_type() -> None:
    assert TYPE.size_text(TYPE.of(123)) == "123"
