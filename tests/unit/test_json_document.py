from __future__ import annotations

import math

import pytest
import simdjson

from core.errors import InvalidRequest
from core.http.json_document import parse_document

PADDING = b" " * 2000


@pytest.mark.parametrize("padding", [b"", PADDING])
def test_reads_an_object(padding: bytes) -> None:
    text = b'{"id":"a","parameters":{"p":[1]},"inputs":[{"name":"x","shape":[1,2]},5]}' + padding
    document = parse_document(text, binary_follows=False)
    assert document["id"] == "a"
    assert document["parameters"] == {"p": [1]}
    assert document["inputs"] == [{"name": "x", "shape": [1, 2]}, 5]


def test_numbers_of_a_large_document_stay_in_the_parsers_buffers() -> None:
    document = parse_document(b'{"inputs":[{"name":"x","data":[[1.5],2]}]}' + PADDING, binary_follows=False)
    (item,) = document["inputs"]
    assert item["name"] == "x"
    assert isinstance(item["data"], simdjson.Array)
    assert list(memoryview(item["data"].as_buffer(of_type="d")).cast("B").cast("d")) == [1.5, 2.0]


@pytest.mark.parametrize("padding", [b"", PADDING])
@pytest.mark.parametrize("text", [b"[]", b"1", b'"x"', b"null"])
def test_another_kind_of_value_has_no_members(text: bytes, padding: bytes) -> None:
    assert parse_document(text + padding, binary_follows=False) == {}


@pytest.mark.parametrize("padding", [b"", PADDING])
@pytest.mark.parametrize("text", [b"{", b'{"a":}', b"{} {}", b"nonsense", b'{"a":"\x00"}', b"\x00\xff\xfe"])
def test_broken_json_names_reason_and_offset(text: bytes, padding: bytes) -> None:
    with pytest.raises(InvalidRequest, match=r"^failed to parse the request JSON buffer: .+ at \d+$"):
        parse_document(text + padding, binary_follows=False)


@pytest.mark.parametrize("padding", [b"", PADDING])
def test_accepts_nan_and_infinity(padding: bytes) -> None:
    document = parse_document(b'{"inputs":[{"data":[NaN,-Infinity]}]}' + padding, binary_follows=False)
    values = document["inputs"][0]["data"]
    assert math.isnan(values[0])
    assert values[1] == -math.inf


@pytest.mark.parametrize("padding", [b"", PADDING])
def test_refuses_numbers_that_no_double_holds(padding: bytes) -> None:
    with pytest.raises(InvalidRequest, match=r"^failed to parse the request JSON buffer: "):
        parse_document(b'{"inputs":[{"data":[1e999]}]}' + padding, binary_follows=False)


def test_strings_need_not_be_utf8() -> None:
    document = parse_document(b'{"inputs":[{"data":["\xff\xfe"]}]}', binary_follows=False)
    assert document["inputs"][0]["data"] == ["\udcff\udcfe"]


@pytest.mark.parametrize(
    "text", [b"[" * 10_000, b"[" * 10_000 + b"]" * 10_000, b'{"a":' * 10_000, b"[" * 10_000 + b"NaN"]
)
def test_refuses_nesting_without_end(text: bytes) -> None:
    with pytest.raises(InvalidRequest):
        parse_document(text, binary_follows=False)


def test_binary_data_without_its_header_is_explained() -> None:
    text = b'{"inputs":[{"parameters":{"binary_data_size":4}}]}\x00\x01\x02\x03'
    with pytest.raises(InvalidRequest, match=r"^must specify valid 'Infer-Header-Content-Length'"):
        parse_document(text, binary_follows=False)
