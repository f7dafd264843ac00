"""A request that is read in slices is the request that is read as a whole, and so is its error."""

from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.unit.core.http.slices.texts import damaged, json_text, nested, numbers, sizes, sizes_parsed, strings, values
from trident.core.config.spec import InputSpec, ModelSpec, OutputSpec
from trident.core.errors import InvalidRequest, RequestCancelled, ServerError
from trident.core.http.long_json import Slicing
from trident.core.http.v2_json import NotStrict
from trident.core.http.v2_request import decode_request
from trident.core.inference.tensors import BY_NAME

LIMIT = 1 << 20
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
