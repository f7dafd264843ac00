from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest

from trident.core.config.spec import InputSpec
from trident.core.errors import InvalidRequest
from trident.core.http.payloads.json import column_array, is_b64, rank_of, raw_row
from trident.core.http.payloads.payload import ErrorLocation, instance_name
from trident.core.inference.tensors import BY_NAME, Array

LOCATION = ErrorLocation(instance_name, "IN")


def spec(datatype: str, *dims: int) -> InputSpec:
    return InputSpec(name="IN", datatype=BY_NAME[datatype], dims=dims)


def array(values: list[Any], datatype: str, *dims: int) -> Array:
    return column_array(values, spec(datatype, *dims), LOCATION)


def b64(content: bytes) -> dict[str, str]:
    return {"b64": base64.b64encode(content).decode()}


@pytest.mark.parametrize(
    ("values", "datatype", "dims", "expected"),
    [
        ([[1, 2], [3, 4.5]], "FP32", (2,), [[1, 2], [3, 4.5]]),
        ([[[1], [2]]], "INT8", (2, 1), [[[1], [2]]]),
        ([1, 2], "INT32", (1,), [[1], [2]]),
        ([1, 2], "INT32", (1, 1), [[[1]], [[2]]]),
        ([1, 2], "INT32", (), [1, 2]),
        ([[1], [2]], "INT32", (1,), [[1], [2]]),
        ([[1, 2, 3], [4, 5, 6]], "INT64", (-1,), [[1, 2, 3], [4, 5, 6]]),
        ([[], []], "INT64", (-1,), [[], []]),
        ([[1.0], [2.0]], "UINT8", (1,), [[1], [2]]),
        ([2**64 - 1], "UINT64", (1,), [[2**64 - 1]]),
        ([1.0, 2**63 - 1], "INT64", (1,), [[1], [2**63 - 1]]),
        ([True, False], "BOOL", (1,), [[True], [False]]),
        ([["é", "b"]], "BYTES", (2,), [["é".encode(), b"b"]]),
        (["a", b64(b"\xff\0")], "BYTES", (1,), [[b"a"], [b"\xff\0"]]),
        (["Infinity", "-Infinity"], "FP16", (1,), [[np.inf], [-np.inf]]),
        ([b64(np.array([1, 2], np.float32).tobytes())], "FP32", (2,), [[1, 2]]),
        ([b64(b"\1\0\2\0"), b64(b"\3\0\4\0")], "INT16", (-1, 1), [[[1], [2]], [[3], [4]]]),
    ],
)
def test_values_of_each_datatype_become_an_array(
    values: list[Any], datatype: str, dims: tuple[int, ...], expected: list[Any]
) -> None:
    got = array(values, datatype, *dims)
    assert got.dtype == BY_NAME[datatype].dtype
    assert got.shape == np.array(expected, got.dtype).shape
    assert got.tolist() == expected


def test_nan_may_be_a_string() -> None:
    assert np.isnan(array([["NaN", 1]], "FP32", 2)).tolist() == [[True, False]]


@pytest.mark.parametrize(
    ("values", "datatype", "dims", "message"),
    [
        ([[1, 2], [3]], "FP32", (2,), "instance 1, input 'IN': expected a list of 2, got one of 1"),
        ([[1, 2], [3]], "FP32", (-1,), "instance 1, input 'IN': expected a list of 2, as instance 0, input 'IN' has"),
        ([[[1], [2, 3]]], "FP32", (2, -1), "instance 0, input 'IN', element [1]: expected a list of 1"),
        ([[1], 2], "FP32", (1,), "instance 1, input 'IN': expected a list of 1, got 2"),
        ([1], "FP32", (2,), "instance 0, input 'IN': expected a list of 2, got 1"),
        ([1], "FP32", (-1,), "instance 0, input 'IN': expected a list, got 1"),
        ([[[1]]], "FP32", (1,), "instance 0, input 'IN', element [0]: expected a number that FP32 can hold"),
        ([[0, [1]]], "FP32", (2,), "instance 0, input 'IN', element [1]: expected a number that FP32 can hold"),
        ([[0, "x"]], "FP32", (2,), "element [1]: expected a number that FP32 can hold"),
        ([[0, None]], "FP64", (2,), "element [1]: expected a number that FP64 can hold"),
        ([[0, True]], "FP64", (2,), "element [1]: expected a number that FP64 can hold"),
        ([[0, "NaN"]], "INT8", (2,), "element [1]: expected an integer from -128 to 127 (INT8), got 'NaN'"),
        ([[0, 300]], "INT8", (2,), "element [1]: expected an integer from -128 to 127 (INT8), got 300"),
        ([[0, 1.5]], "INT8", (2,), "element [1]: expected an integer from -128 to 127 (INT8), got 1.5"),
        ([[2**62, 1.5]], "INT64", (2,), "element [1]: expected an integer from"),
        ([[0, 2**70]], "INT64", (2,), "element [1]: expected an integer from"),
        ([[0, float(-(2**63))]], "INT64", (2,), "element [1]: expected an integer from"),
        ([[-1, 2**64 - 1]], "UINT64", (2,), "element [0]: expected an integer from 0"),
        ([[0, 10**400]], "FP64", (2,), "element [1]: expected a number that FP64 can hold"),
        ([[0, 1e39]], "FP32", (2,), "element [1]: expected a number that FP32 can hold"),
        ([[True, 1]], "BOOL", (2,), "element [1]: expected true or false, got 1"),
        ([["a", 1]], "BYTES", (2,), 'element [1]: expected a string or {"b64": "..."}, got 1'),
        ([["a", {"b": 1}]], "BYTES", (2,), "element [1]: expected a string"),
        (["\ud800"], "BYTES", (1,), "expected Unicode text, got half of a surrogate pair"),
        ([{"b64": 1}], "BYTES", (1,), "instance 0, input 'IN', element [0], 'b64': expected a string of base64"),
        ([{"b64": "a"}], "FP32", (1,), "instance 0, input 'IN', 'b64': invalid base64"),
        ([{"b64": "AACAPw==="}], "FP32", (1,), "'b64': invalid base64: its length, 9, is not a multiple of 4"),
        ([{"b64": "é"}], "FP32", (1,), "instance 0, input 'IN', 'b64': invalid base64"),
        ([b64(b"123")], "FP32", (1,), "instance 0, input 'IN': expected 4 bytes, got 3"),
        ([b64(b"123")], "FP32", (-1,), "instance 0, input 'IN': expected a multiple of 4 bytes, got 3"),
        ([b64(b"12"), b64(b"1")], "INT8", (-1,), "instance 1, input 'IN': expected 2 bytes, as instance 0"),
        ([b64(b"12")], "INT8", (-1, -1), "raw bytes cannot determine 2 variable dimensions"),
        ([b64(b"\0\2")], "BOOL", (2,), "expected bytes that are 0 or 1"),
        ([b64(b"12"), [1, 2]], "INT8", (2,), "instance 0, input 'IN': expected a list of 2, got an object"),
    ],
)
def test_the_first_error_is_named(values: list[Any], datatype: str, dims: tuple[int, ...], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        array(values, datatype, *dims)
    assert message in caught.value.message


def test_rank_and_base64_are_recognized() -> None:
    assert [rank_of(value) for value in (1, [], [1], [[1], 2], {"b64": ""})] == [0, 1, 1, 2, 0]
    assert is_b64({"b64": 1})
    assert not is_b64({"b64": "", "key": 1})
    assert not is_b64("b64")


def test_raw_bytes_may_have_an_empty_variable_dim() -> None:
    assert raw_row(b"", spec("FP32", -1, 2), "here").shape == (0, 2)
