from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.unit.core.http.payloads.payload_models import RULES, model, one
from trident.core.config.spec import ModelSpec
from trident.core.errors import InvalidRequest
from trident.core.http.payloads.csv import decode_csv


def decode(text: bytes | str, spec: ModelSpec) -> dict[str, Any]:
    payload = decode_csv(text.encode() if isinstance(text, str) else text, spec, RULES)
    assert payload.stacked
    assert all(len(array) == payload.count for array in payload.arrays.values())
    assert all(array.dtype == spec.inputs[name].datatype.dtype for name, array in payload.arrays.items())
    return {name: array.tolist() for name, array in payload.arrays.items()}


@pytest.mark.parametrize(
    "text",
    [
        "1,2\n3,4.5",
        "1,2\n3,4.5\n",
        "1,2\r\n3,4.5\r\n",
        "\ufeff1,2\n3,4.5",
        "\n1,2\n\n\r\n3,4.5\n\n",
        '1,2\n\n"3",4.5\n\n',
        " 1, 2\n3 ,4.5",
    ],
)
def test_rows_are_instances(text: str) -> None:
    assert decode(text, one("FP32", 2)) == {"IN": [[1, 2], [3, 4.5]]}


@pytest.mark.parametrize("text", ['"1",2\n3,"4"', "+1,2.\n03,4e0", "1.,2\n3,4", "1\t,2\n 3,4"])
def test_numbers_that_json_does_not_have_are_read(text: str) -> None:
    for datatype in ("FP32", "INT32"):
        assert decode(text, one(datatype, 2)) == {"IN": [[1, 2], [3, 4]]}


@pytest.mark.parametrize("word", ["NaN", "nan", "NAN"])
def test_nan_is_a_word(word: str) -> None:
    (row, other) = decode(f"{word},2\n3,4", one("FP64", 2))["IN"]
    assert np.isnan(row[0])
    assert (row[1], other) == (2, [3, 4])


def test_infinities_are_words_and_not_numbers() -> None:
    assert decode("inf,-Infinity", one("FP16", 2)) == {"IN": [[np.inf, -np.inf]]}
    with pytest.raises(InvalidRequest, match=r"row 1, column 2 \(input 'IN'\): expected a number that FP64 can hold"):
        decode("inf,1e999", one("FP64", 2))
    with pytest.raises(InvalidRequest, match=r"row 1, column 1 \(input 'IN'\): expected a number that FP64 can hold"):
        decode("1e999,1", one("FP64", 2))


def test_several_dims_are_row_major_and_columns_resolve_a_variable_dim() -> None:
    assert decode("1,2,3,4", one("INT8", 2, 2)) == {"IN": [[[1, 2], [3, 4]]]}
    assert decode("1,2,3,4\n5,6,7,8", one("INT8", -1, 2)) == {"IN": [[[1, 2], [3, 4]], [[5, 6], [7, 8]]]}
    assert decode("1\n2", one("FP32", 1)) == {"IN": [[1], [2]]}
    assert decode("1\n2", one("FP32")) == {"IN": [1, 2]}


def test_integers_are_exact() -> None:
    large = 2**63 - 1
    assert decode(f"{large}\n-{large}", one("INT64", 1)) == {"IN": [[large], [-large]]}
    assert decode(f"{2**64 - 1}\n0", one("UINT64", 1)) == {"IN": [[2**64 - 1], [0]]}
    assert decode("3.0\n-2", one("INT8", 1)) == {"IN": [[3], [-2]]}
    spec = model({"A": ("INT64", (1,)), "B": ("FP32", (1,))})
    assert decode(f"{large},0.5", spec) == {"A": [[large]], "B": [[0.5]]}
    assert decode("7,0.5\n8,1", spec) == {"A": [[7], [8]], "B": [[0.5], [1]]}


def test_booleans_are_words_or_digits() -> None:
    assert decode("true,False,1, 0", one("BOOL", 4)) == {"IN": [[True, False, True, False]]}


def test_strings_may_be_quoted() -> None:
    spec = model({"A": ("BYTES", (2,)), "B": ("FP32", (1,))})
    text = b'"a,""b""","c\r\nd",1\r\n\xff\xfe,,2\r\n'
    assert decode(text, spec) == {"A": [[b'a,"b"', b"c\r\nd"], [b"\xff\xfe", b""]], "B": [[1], [2]]}


def test_rows_of_a_model_without_batching_are_instances() -> None:
    payload = decode_csv(b"1,2\n3,4", one("FP32", 2, batch=0), RULES)
    assert (payload.count, payload.stacked) == (2, False)
    payload = decode_csv(b"1,2\n3,4", one("FP32", -1, 2, batch=0), RULES)
    assert (payload.count, payload.stacked, payload.arrays["IN"].shape) == (2, True, (2, 2))


@pytest.mark.parametrize(
    ("text", "datatype", "message"),
    [
        ("", "FP32", "the CSV has no rows"),
        ("\n", "FP32", "the CSV has no rows"),
        ("\r\r", "FP32", "the CSV has no rows"),
        ("1,2\n\n3", "FP32", "row 2: expected 2 columns, as row 1 has, got 1"),
        ("1,2\n3", "FP32", "row 2: expected 2 columns, as row 1 has, got 1"),
        ("1,2\n3,4,5\n6", "FP32", "row 2: expected 2 columns, as row 1 has, got 3"),
        ("1,2,3", "FP32", "row 1: expected 2 columns, got 3"),
        ("1,2,3\n1,2,x", "FP32", "row 1: expected 2 columns, got 3"),
        ("1,2\n3,x", "FP32", "row 2, column 2 (input 'IN'): expected a number that FP32 can hold"),
        ("1,2\n,4", "FP32", "row 2, column 1 (input 'IN'): expected a number that FP32 can hold"),
        ("1,2\n[3],4", "FP32", "row 2, column 1 (input 'IN'): expected a number"),
        ("1,2],[3,4", "FP32", "row 1: expected 2 columns, got 4"),
        ("1,1_0", "FP32", "row 1, column 2 (input 'IN'): expected a number"),
        ("1,1_0", "INT32", "row 1, column 2 (input 'IN'): expected an integer"),
        ("1,true", "FP32", "row 1, column 2 (input 'IN'): expected a number"),
        ("1,1e39", "FP32", "row 1, column 2 (input 'IN'): expected a number that FP32 can hold"),
        ("1,300", "INT8", "row 1, column 2 (input 'IN'): expected an integer from -128 to 127 (INT8), got 300"),
        ("1,1.5", "INT8", "row 1, column 2 (input 'IN'): expected an integer from -128 to 127 (INT8), got 1.5"),
        ("1,nan", "INT8", "row 1, column 2 (input 'IN'): expected an integer from -128 to 127 (INT8), got 'nan'"),
        ("1,é", "INT8", "expected an integer from -128 to 127 (INT8), got 'é'"),
        ("1,99999999999999999999", "INT64", "row 1, column 2 (input 'IN'): expected an integer from"),
        ("-1,18446744073709551615", "UINT64", "row 1, column 1 (input 'IN'): expected an integer from"),
        ("1,2", "BOOL", "row 1, column 2 (input 'IN'): expected true or false, got '2'"),
        ('"1,2', "FP32", "row 1: unexpected end of data"),
        ('1,2\n"3"x,4', "FP32", "row 2: "),
        ("age,height\n1,2", "FP32", "row 1 looks like a header, which CSV must not have"),
        ("age,height\n1,2", "INT8", "row 1 looks like a header, which CSV must not have"),
    ],
)
def test_an_error_names_row_and_column(text: str, datatype: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode(text, one(datatype, 2))
    assert message in caught.value.message


def test_a_wrong_value_in_the_first_row_is_not_taken_for_a_header() -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode("1,x", one("FP32", 2))
    assert "header" not in caught.value.message
