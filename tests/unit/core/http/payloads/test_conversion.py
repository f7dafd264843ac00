from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from trident.core.config.golden import as_numbers
from trident.core.errors import InvalidRequest
from trident.core.http.payloads.payload import (
    ErrorLocation,
    as_datatype,
    expected_text,
    instance_name,
    string_array,
    wide_integers,
)
from trident.core.inference.tensors import BY_NAME, DATATYPES

LOCATION = ErrorLocation(instance_name, "IN")


@pytest.mark.parametrize(
    "row", [row for row in DATATYPES if row.kind in "iu" and row.name != "BF16"], ids=lambda r: r.name
)
@pytest.mark.parametrize("wide", [np.int64, np.uint64, np.float64, np.float32, np.float16])
def test_integers_within_the_limits_are_converted(row: Any, wide: type) -> None:
    limits = np.iinfo(row.dtype)
    inside = [value for value in (limits.min, 0, 100) if not (wide is np.uint64 and value < 0)]
    if wide is np.float16:
        inside = [value for value in inside if abs(value) < 2048]
    given = np.array([inside], wide)
    got = as_datatype(given, row, LOCATION)
    assert got.dtype == row.dtype
    assert got.tolist() == [inside]


@pytest.mark.parametrize(
    ("datatype", "wide", "shown"),
    [
        ("INT8", np.array([[1, 128]], np.int64), "128"),
        ("INT8", np.array([[1, -129]], np.int64), "-129"),
        ("UINT8", np.array([[1, -1]], np.int64), "-1"),
        ("INT64", np.array([[1, 2**63]], np.uint64), "9223372036854775808"),
        ("UINT64", np.array([[1, -1]], np.int64), "-1"),
        ("INT64", np.array([[1, 2.0**63]]), "9.223372036854775808e18"),
        ("UINT64", np.array([[1, 2.0**64]]), "1.8446744073709552e+19"),
        ("INT32", np.array([[1, 1.5]]), "1.5"),
        ("INT32", np.array([[1, np.nan]]), "NaN"),
        ("INT64", np.array([[1, -np.inf]], np.float16), "-Infinity"),
        ("FP32", np.array([[1, 1e39]]), "1e+39"),
        ("FP16", np.array([[1, 65520]]), "65520.0"),
        ("FP16", np.array([[1, 2**60]], np.int64), "1152921504606846976"),
        ("BF16", np.array([[1, -1e39]]), "-1e+39"),
    ],
)
def test_an_element_that_does_not_fit_is_named(datatype: str, wide: Any, shown: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        as_datatype(wide, BY_NAME[datatype], LOCATION)
    text = f"instance 0, input 'IN', element [1]: expected {expected_text(BY_NAME[datatype])}, got "
    assert caught.value.message.startswith(text)
    assert float(caught.value.message.removeprefix(text)) == pytest.approx(float(shown), nan_ok=True)


@pytest.mark.parametrize(
    ("datatype", "wide"), [("BOOL", np.ones(2)), ("FP32", np.ones(2, bool)), ("BYTES", np.ones(2))]
)
def test_booleans_numbers_and_strings_are_not_converted_into_each_other(datatype: str, wide: Any) -> None:
    with pytest.raises(InvalidRequest, match=f"expected elements of {datatype}, got an array of"):
        as_datatype(wide, BY_NAME[datatype], LOCATION)


def test_infinities_and_nan_are_kept() -> None:
    wide = np.array([[np.inf, -np.inf, np.nan, 1.0]])
    for name in ("FP16", "FP32", "FP64", "BF16"):
        got = as_numbers(as_datatype(wide, BY_NAME[name], LOCATION), BY_NAME[name])
        np.testing.assert_array_equal(got, wide)


def test_a_nan_with_all_bits_set_stays_a_nan() -> None:
    wide = np.array([0x7FFFFFFF, 0xFFFFFFFF], np.uint32).view(np.float32)
    got = as_datatype(wide, BY_NAME["BF16"], LOCATION)
    assert np.isnan(as_numbers(got, BY_NAME["BF16"])).all()


def test_bf16_rounds_to_the_nearest_even() -> None:
    wide = np.array([1.0, 1 + 2**-8, 1 + 3 * 2**-8, 1 + 2**-8 + 2**-20])
    got = as_numbers(as_datatype(wide, BY_NAME["BF16"], LOCATION), BY_NAME["BF16"])
    assert got.tolist() == [1.0, 1.0, 1 + 2**-6, 1 + 2**-7]


def test_integers_get_the_first_wide_type_that_holds_them() -> None:
    signed, unsigned = wide_integers([-1, 2**63 - 1]), wide_integers([0, 2**64 - 1])
    assert signed is not None
    assert signed.dtype == np.int64
    assert unsigned is not None
    assert unsigned.tolist() == [0, 2**64 - 1]
    assert wide_integers([-1, 2**64 - 1]) is None


def test_text_becomes_utf8() -> None:
    assert string_array(np.array([["é", "ab"]])).tolist() == [["é".encode(), b"ab"]]
    assert string_array(np.array([b"\xff"])).tolist() == [b"\xff"]
