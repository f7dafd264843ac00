"""JSON values as arrays: exact, or refused with the place of the element."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trident.core.config.golden import TENSOR_FIELDS, as_numbers, golden_tensor
from trident.core.config.json_fields import Fields, Malformed
from trident.core.inference.tensors import BY_NAME, Array


def array(datatype: str, shape: list[int], values: list[Any]) -> Array:
    fields = Fields({"name": "X", "datatype": datatype, "shape": shape, "data": values}, "t", TENSOR_FIELDS)
    tensor = golden_tensor(fields)
    assert tensor.array.dtype == BY_NAME[datatype].dtype
    assert tensor.array.shape == tuple(shape)
    return tensor.array


def mistake(datatype: str, shape: list[int], values: list[Any]) -> str:
    with pytest.raises(Malformed) as caught:
        array(datatype, shape, values)
    return str(caught.value)


INTEGERS = [name for name, row in BY_NAME.items() if row.kind in "iu" and name != "BF16"]
FLOATING = ("FP16", "FP32", "FP64", "BF16")


@pytest.mark.parametrize("datatype", INTEGERS)
def test_integers_are_exact_to_the_ends_of_their_range(datatype: str) -> None:
    limits = np.iinfo(BY_NAME[datatype].dtype)
    low, high = int(limits.min), int(limits.max)
    assert array(datatype, [2], [low, high]).tolist() == [low, high]
    expected = f"expected an integer from {low} to {high}"
    assert mistake(datatype, [2], [0, high + 1]) == f"t.data[1]: {expected}, got {high + 1}"
    assert mistake(datatype, [2], [low - 1, 0]) == f"t.data[0]: {expected}, got {low - 1}"
    assert mistake(datatype, [1], [1.0]) == f"t.data[0]: {expected}, got 1.0"
    assert mistake(datatype, [1], [True]) == f"t.data[0]: {expected}, got true"


@pytest.mark.parametrize("datatype", FLOATING)
def test_floating_values_include_nan_and_infinity(datatype: str) -> None:
    values = as_numbers(array(datatype, [5], [1.5, -2, "NaN", "Infinity", "-Infinity"]), BY_NAME[datatype])
    np.testing.assert_array_equal(values, np.array([1.5, -2, np.nan, np.inf, -np.inf]))
    assert mistake(datatype, [1], ["nan"]).startswith(f"t.data[0]: expected a number in the range of {datatype} or one")
    assert mistake(datatype, [1], [False]).endswith("got false")
    assert mistake(datatype, [1], [None]).endswith("got null")
    assert mistake(datatype, [1], [10**400]).startswith("t.data[0]: expected a number in the range")


@pytest.mark.parametrize(("datatype", "largest"), [("FP16", 65504), ("FP32", 3.4e38), ("BF16", 3.38e38)])
def test_number_that_would_become_infinite_is_refused(datatype: str, largest: float) -> None:
    assert np.isfinite(as_numbers(array(datatype, [1], [largest]), BY_NAME[datatype])).all()
    message = f"t.data[1]: expected a number in the range of {datatype}, got {1e39}"
    assert mistake(datatype, [2], ["Infinity", 1e39]) == message


def test_bf16_is_rounded_to_nearest_even() -> None:
    # 1 + 2**-8 lies between 1 and the next number, 1 + 2**-7; 1 + 3 * 2**-8 between that and 1 + 2**-6.
    bits = array("BF16", [4], [1.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-12])
    assert bits.tolist() == [0x3F80, 0x3F80, 0x3F82, 0x3F81]


def test_text_and_booleans_are_converted() -> None:
    assert array("BYTES", [2], ["é\0", ""]).tolist() == ["é\0".encode(), b""]
    assert array("BOOL", [2], [True, False]).tolist() == [True, False]
    assert mistake("BOOL", [1], [1]) == "t.data[0]: expected true or false, got 1"
    assert mistake("BYTES", [1], [1]) == "t.data[0]: expected a string of Unicode text, got 1"
    assert mistake("BYTES", [1], ["\ud800"]).startswith("t.data[0]: expected a string of Unicode text")


def test_flat_and_nested_values_give_the_same_array() -> None:
    flat = array("INT8", [2, 1, 3], [1, 2, 3, 4, 5, 6])
    np.testing.assert_array_equal(flat, array("INT8", [2, 1, 3], [[[1, 2, 3]], [[4, 5, 6]]]))
    assert array("INT8", [], [7]).tolist() == 7
    assert array("INT8", [2, 0], [[], []]).size == 0
    assert array("INT8", [2, 0], []).size == 0
    assert array("FP64", [0, 2**59], []).size == 0


@pytest.mark.parametrize(
    ("shape", "values", "message"),
    [
        ([2, 3], [1, 2, 3, 4, 5], "t.data: expected 6 elements for shape [2,3], got 5"),
        ([10**9, 10**9], [1], f"t.data: expected {10**18} elements for shape [1000000000,1000000000], got 1"),
        ([2, 2], [[1, 2], [3]], "t.data[1]: expected a list of 2 for shape [2,2], got a list of 1"),
        ([2, 3], [[1, 2], [3, 4], [5, 6]], "t.data: expected a list of 2 for shape [2,3], got a list of 3"),
        ([2, 2], [[1, 2], 3], "t.data[1]: expected a list of 2 for shape [2,2], got 3"),
        ([1], [[1]], "t.data[0]: expected an integer from -128 to 127, got a list"),
        ([2, 1], [[1], [300]], "t.data[1][0]: expected an integer from -128 to 127, got 300"),
        ([-1], [1], "t.shape[0]: expected an integer that is not negative, got -1"),
        ([1] * 65, [1], "t.shape: expected at most 64 dimensions, got 65"),
        ([0, 2**70], [], "t.shape: expected fewer elements"),
        ([0, 2**40, 2**40], [], "t.shape: expected fewer elements"),
    ],
)
def test_values_must_fill_the_shape(shape: list[int], values: list[Any], message: str) -> None:
    assert mistake("INT8", shape, values).startswith(message)


def test_unknown_datatype_names_the_nearest() -> None:
    with pytest.raises(Malformed, match=r"t\.datatype: expected one of BOOL, .*, got 'FLOAT32'"):
        array_of_unknown("FLOAT32")
    with pytest.raises(Malformed) as caught:
        array_of_unknown("FP31")
    assert caught.value.hint == "did you mean 'FP32'?"


def array_of_unknown(datatype: str) -> None:
    golden_tensor(Fields({"name": "X", "datatype": datatype, "shape": [1], "data": [1]}, "t", TENSOR_FIELDS))
