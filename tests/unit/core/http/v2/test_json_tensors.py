from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest

from trident.core.errors import InvalidRequest
from trident.core.http.v2_json import array_from_json, json_datatype, json_values, parse_document
from trident.core.inference.tensors import BY_NAME, bytes_array


def documents(value: str, datatype: str) -> list[Any]:
    """`value` as it is in a small document and in a large one: both must be read alike."""
    text = f'{{"inputs":[{{"datatype":"{datatype}","data":{value}}}]}}'
    return [
        parse_document((text + padding).encode(), binary_follows=False)["inputs"][0]["data"]
        for padding in ("", " " * 2000)
    ]


@pytest.mark.parametrize(
    ("datatype", "text", "expected"),
    [
        ("INT32", "[1,-2,3]", [1, -2, 3]),
        ("INT8", "[[127],[-128]]", [127, -128]),
        ("UINT64", "[18446744073709551615,0]", [2**64 - 1, 0]),
        ("INT64", "[9223372036854775807,-9223372036854775808]", [2**63 - 1, -(2**63)]),
        ("FP32", "[[1,2.5],[3]]", [1.0, 2.5, 3.0]),
        ("FP64", "[0.1,7]", [0.1, 7.0]),
        ("BOOL", "[true,[false]]", [True, False]),
        ("FP32", "[1e39,-1e39]", [np.inf, -np.inf]),
    ],
)
def test_array_from_json_reads_nested_numbers_row_major(datatype: str, text: str, expected: list[Any]) -> None:
    for content in documents(text, datatype):
        array = array_from_json(content, BY_NAME[datatype], len(expected), "IN")
        assert array.dtype == BY_NAME[datatype].dtype
        assert array.tolist() == expected


def test_array_from_json_reads_strings_as_bytes() -> None:
    for content in documents('["h\\u00e9llo",["a\\u0000b"]]', "BYTES"):
        array = array_from_json(content, BY_NAME["BYTES"], 2, "IN")
        assert array.tolist() == ["héllo".encode(), b"a\0b"]


@pytest.mark.parametrize(
    ("datatype", "text", "message"),
    [
        ("INT64", "[1.5,2]", "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer"),
        ("INT64", "[1.0]", "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer"),
        ("INT64", "[true,1]", "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer"),
        (
            "INT64",
            "[9223372036854775808,0]",
            "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer",
        ),
        ("UINT8", "[-1]", "Unable to parse 'data': attempt to access JSON non-unsigned-integer as unsigned-integer"),
        ("FP32", '["1","2"]', "Unable to parse 'data': attempt to access JSON non-number as double"),
        ("FP32", "[null,1]", "Unable to parse 'data': attempt to access JSON non-number as double"),
        ("FP32", "[true]", "Unable to parse 'data': attempt to access JSON non-number as double"),
        ("BOOL", "[1]", "Unable to parse 'data': attempt to access JSON non-boolean as boolean"),
        ("BYTES", "[1]", "Unable to parse JSON bytes array: attempt to access JSON non-string as string"),
        ("INT32", '[{"a":1}]', "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer"),
        (
            "INT32",
            "[0,3000000000]",
            "Unable to parse 'data': element 1 of input 'IN' is 3000000000, which INT32 cannot hold "
            "(-2147483648 to 2147483647)",
        ),
        (
            "UINT8",
            "[0,[256]]",
            "Unable to parse 'data': element 1 of input 'IN' is 256, which UINT8 cannot hold (0 to 255)",
        ),
    ],
)
def test_wrong_elements_are_refused_alike_in_small_and_large_documents(datatype: str, text: str, message: str) -> None:
    for content in documents(text, datatype):
        with pytest.raises(InvalidRequest) as caught:
            array_from_json(content, BY_NAME[datatype], len(orjson.loads(text)), "IN")
        assert caught.value.message == message


def test_a_wrong_number_of_elements_is_refused() -> None:
    for content in documents("[1,2,3]", "INT32"):
        with pytest.raises(InvalidRequest, match=r"^Failed to parse 'data' field: shape does not match true shape$"):
            array_from_json(content, BY_NAME["INT32"], 4, "IN")
        with pytest.raises(InvalidRequest, match=r"^Unable to parse 'data': Shape does not match true shape of 'data'"):
            array_from_json(content, BY_NAME["INT32"], 2, "IN")


@pytest.mark.parametrize("content", [1, "x", None, {"a": 1}, True])
def test_values_other_than_arrays_are_refused(content: Any) -> None:
    with pytest.raises(InvalidRequest, match=r"^Unable to parse 'data': attempt to access JSON non-array as array$"):
        array_from_json(content, BY_NAME["INT32"], 1, "IN")


def test_deep_nesting_is_refused() -> None:
    deep: list[Any] = [1]
    for _ in range(98):
        deep = [deep]
    assert array_from_json(deep, BY_NAME["INT32"], 1, "IN").tolist() == [1]
    with pytest.raises(InvalidRequest, match=r"^Unable to parse 'data': JSON nesting depth exceeds maximum allowed"):
        array_from_json([deep], BY_NAME["INT32"], 1, "IN")
    with pytest.raises(InvalidRequest, match=r"^JSON nesting depth exceeds maximum allowed limit \(100\)$"):
        array_from_json([deep], BY_NAME["BYTES"], 1, "IN")


@pytest.mark.parametrize("name", ["FP16", "BF16"])
def test_datatypes_that_json_cannot_carry_are_refused(name: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^receiving {name} data via JSON is not supported"):
        json_datatype(name, "IN")
    with pytest.raises(InvalidRequest, match=f"^sending {name} data via JSON is not supported"):
        json_values(np.zeros(1, np.uint16), name)


def test_an_unknown_datatype_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"^invalid datatype for input IN$"):
        json_datatype("INT128", "IN")


def test_json_values_writes_fp32_with_the_digits_of_a_double() -> None:
    values = json_values(np.array([[0.1]], np.float32), "FP32")
    assert orjson.dumps(values, option=orjson.OPT_SERIALIZE_NUMPY) == b"[0.10000000149011612]"


def test_json_values_writes_bytes_that_are_not_utf8_as_surrogates() -> None:
    assert json_values(bytes_array([b"\xff", b"ok"], (1, 2)), "BYTES") == ["\udcff", "ok"]
