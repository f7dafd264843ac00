from __future__ import annotations

import math

import numpy as np
import pytest

from trident.core.errors import InvalidRequest
from trident.core.http.v2_json import array_from_json, parse_document
from trident.core.inference.tensors import BY_NAME

PADDING = b" " * 2000


@pytest.mark.parametrize("padding", [b"", PADDING])
def test_parse_document_reads_an_object(padding: bytes) -> None:
    text = b'{"id":"a","parameters":{"p":[1]},"inputs":[{"name":"x","shape":[1,2]},5]}' + padding
    document = parse_document(text, binary_follows=False)
    assert document["id"] == "a"
    assert document["parameters"] == {"p": [1]}
    assert document["inputs"] == [{"name": "x", "shape": [1, 2]}, 5]


@pytest.mark.parametrize(
    ("datatype", "dtype"), [("FP32", np.float64), ("INT8", np.int64), ("UINT16", np.uint64), ("FP16", np.float64)]
)
def test_numbers_of_a_large_document_become_arrays(datatype: str, dtype: type) -> None:
    text = f'{{"inputs":[{{"name":"x","datatype":"{datatype}","data":[[1],2]}}]}}'.encode() + PADDING
    for _ in range(3):  # the parser is used again
        (item,) = parse_document(text, binary_follows=False)["inputs"]
        assert item["name"] == "x"
        assert item["data"].dtype == dtype
        assert item["data"].tolist() == [1, 2]


@pytest.mark.parametrize("datatype", ['"INT8"', '"BYTES"', '"BOOL"', '"NOPE"', "5", "null"])
def test_values_of_another_kind_become_a_list(datatype: str) -> None:
    text = f'{{"inputs":[{{"datatype":{datatype},"data":[1.5,["a"],true]}}]}}'.encode() + PADDING
    (item,) = parse_document(text, binary_follows=False)["inputs"]
    assert item["data"] == [1.5, ["a"], True]


@pytest.mark.parametrize("padding", [b"", PADDING])
@pytest.mark.parametrize("text", [b"[]", b"1", b'"x"', b"null"])
def test_other_values_than_objects_have_no_members(text: bytes, padding: bytes) -> None:
    assert parse_document(text + padding, binary_follows=False) == {}


@pytest.mark.parametrize("padding", [b"", PADDING])
@pytest.mark.parametrize("text", [b"{", b'{"a":}', b"{} {}", b"nonsense", b'{"a":"\x00"}', b"\x00\xff\xfe"])
def test_invalid_json_is_refused_with_reason_and_offset(text: bytes, padding: bytes) -> None:
    with pytest.raises(InvalidRequest, match=r"^failed to parse the request JSON buffer: .+ at \d+$"):
        parse_document(text + padding, binary_follows=False)


@pytest.mark.parametrize("padding", [b"", PADDING])
def test_parse_document_accepts_nan_and_infinity(padding: bytes) -> None:
    document = parse_document(b'{"inputs":[{"data":[NaN,-Infinity]}]}' + padding, binary_follows=False)
    values = document["inputs"][0]["data"]
    assert math.isnan(values[0])
    assert values[1] == -math.inf


@pytest.mark.parametrize("padding", [b"", PADDING])
def test_parse_document_refuses_numbers_beyond_doubles(padding: bytes) -> None:
    with pytest.raises(InvalidRequest, match=r"^failed to parse the request JSON buffer: "):
        parse_document(b'{"inputs":[{"data":[1e999]}]}' + padding, binary_follows=False)


@pytest.mark.parametrize("padding", [b"", PADDING])
def test_keys_with_nul_are_read_whole(padding: bytes) -> None:
    text = rb'{"a\u0000b": 1, "a": 2, "inputs": [{"data\u0000": 3, "\u0000": null, "data": [4]}]}'
    document = parse_document(padding + text, binary_follows=False)
    assert document == {"a\0b": 1, "a": 2, "inputs": [{"data\0": 3, "\0": None, "data": [4]}]}


def test_strings_need_not_be_utf8() -> None:
    document = parse_document(b'{"inputs":[{"data":["\xff\xfe"]}]}', binary_follows=False)
    assert document["inputs"][0]["data"] == ["\udcff\udcfe"]


@pytest.mark.parametrize(
    "text", [b"[" * 10_000, b"[" * 10_000 + b"]" * 10_000, b'{"a":' * 10_000, b"[" * 10_000 + b"NaN"]
)
def test_parse_document_refuses_endless_nesting(text: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_document(text, binary_follows=False)


def test_binary_data_without_its_header_names_the_header() -> None:
    text = b'{"inputs":[{"parameters":{"binary_data_size":4}}]}\x00\x01\x02\x03'
    with pytest.raises(InvalidRequest, match=r"^must specify valid 'Infer-Header-Content-Length'"):
        parse_document(text, binary_follows=False)


@pytest.mark.parametrize("padding", [b"", PADDING])
@pytest.mark.parametrize(("depth", "refused"), [(99, False), (100, True), (900, True)])
def test_numbers_nested_too_deep_are_refused_in_either_size(padding: bytes, depth: int, refused: bool) -> None:
    text = b'{"inputs":[{"datatype":"INT32","data":' + b"[" * depth + b"1" + b"]" * depth + b"}]}" + padding

    def read() -> object:
        (item,) = parse_document(text, binary_follows=False)["inputs"]
        return array_from_json(item["data"], BY_NAME["INT32"], 1, "IN").tolist()

    if refused:
        with pytest.raises(InvalidRequest, match=r"^Unable to parse 'data': JSON nesting depth exceeds"):
            read()
    else:
        assert read() == [1]


def test_an_array_outlives_the_next_document_of_the_same_parser() -> None:
    def text(number: float) -> bytes:
        return f'{{"inputs":[{{"datatype":"FP32","data":{[number] * 500}}}]}}'.encode()

    (first,) = parse_document(text(1.5), binary_follows=False)["inputs"]
    (second,) = parse_document(text(2.5), binary_follows=False)["inputs"]
    assert set(first["data"].tolist()) == {1.5}
    assert set(second["data"].tolist()) == {2.5}
