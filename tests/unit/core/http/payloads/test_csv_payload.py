from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.unit.core.http.payloads.payload_models import RULES, Signature, column, model, one
from trident.core.config.spec import ModelSpec
from trident.core.errors import InvalidRequest
from trident.core.http.payloads.csv import decode_csv, encode_csv
from trident.core.http.payloads.payload import OutputColumn
from trident.core.inference.tensors import BY_NAME

# --- decoder


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


def test_infinities_are_words_and_not_numbers() -> None:
    assert decode("inf,-Infinity", one("FP16", 2)) == {"IN": [[np.inf, -np.inf]]}
    with pytest.raises(InvalidRequest, match=r"row 1, column 2 \(input 'IN'\): expected a number that FP64 can hold"):
        decode("inf,1e999", one("FP64", 2))
    with pytest.raises(InvalidRequest, match=r"row 1, column 1 \(input 'IN'\): expected a number that FP64 can hold"):
        decode("1e999,1", one("FP64", 2))


@pytest.mark.parametrize("other", ["1", "NaN", ".5", '"1"', "0", "-1e-05"])
def test_zeros_keep_their_sign(other: str) -> None:
    (row,) = decode_csv(f"-0,0,-0.0,{other}\n".encode(), one("FP32", 4), RULES).arrays["IN"]
    assert np.signbit(row[:3]).tolist() == [True, False, True]


def test_integers_are_exact() -> None:
    large = 2**63 - 1
    assert decode(f"{large}\n-{large}", one("INT64", 1)) == {"IN": [[large], [-large]]}
    assert decode(f"{2**64 - 1}\n0", one("UINT64", 1)) == {"IN": [[2**64 - 1], [0]]}
    assert decode("3.0\n-2", one("INT8", 1)) == {"IN": [[3], [-2]]}
    spec = model({"A": ("INT64", (1,)), "B": ("FP32", (1,))})
    assert decode(f"{large},0.5", spec) == {"A": [[large]], "B": [[0.5]]}
    assert decode("7,0.5\n8,1", spec) == {"A": [[7], [8]], "B": [[0.5], [1]]}


@pytest.mark.parametrize(
    ("text", "datatype", "message"),
    [
        ("", "FP32", "the CSV has no rows"),
        ("\r\r", "FP32", "the CSV has no rows"),
        ("1,2\n\n3", "FP32", "row 2: expected 2 columns, as row 1 has, got 1"),
        ("1,2\n3,4,5\n6", "FP32", "row 2: expected 2 columns, as row 1 has, got 3"),
        ("1,2,3", "FP32", "row 1: expected 2 columns, got 3"),
        ("1,2\n3,x", "FP32", "row 2, column 2 (input 'IN'): expected a number that FP32 can hold"),
        ("1,2\n,4", "FP32", "row 2, column 1 (input 'IN'): expected a number that FP32 can hold"),
        ("1,2],[3,4", "FP32", "row 1: expected 2 columns, got 4"),
        ("1,1_0", "FP32", "row 1, column 2 (input 'IN'): expected a number"),
        ("1,1e39", "FP32", "row 1, column 2 (input 'IN'): expected a number that FP32 can hold"),
        ("1,300", "INT8", "row 1, column 2 (input 'IN'): expected an integer from -128 to 127 (INT8), got 300"),
        ("1,nan", "INT8", "row 1, column 2 (input 'IN'): expected an integer from -128 to 127 (INT8), got 'nan'"),
        ("1,99999999999999999999", "INT64", "row 1, column 2 (input 'IN'): expected an integer from"),
        ("1,2", "BOOL", "row 1, column 2 (input 'IN'): expected true or false, got '2'"),
        ('"1,2', "FP32", "row 1: unexpected end of data"),
        ('1,2\n"3"x,4', "FP32", "row 2: "),
        ("age,height\n1,2", "FP32", "row 1 looks like a header, which CSV must not have"),
    ],
)
def test_an_error_names_row_and_column(text: str, datatype: str, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode(text, one(datatype, 2))
    assert message in caught.value.message


# --- encoder


def test_special_values_are_written_as_words_and_strings_quoted_if_necessary() -> None:
    assert encode_csv([column("A", "FP16", [[np.nan, np.inf, -np.inf, 1]])]) == b"NaN,Infinity,-Infinity,1.0\n"
    column_of_strings = column("A", "BYTES", [b"plain", b"a,b", b'"', b"a\r\nb", b"", b" a", b"\xff"])
    assert encode_csv([column_of_strings]) == b'plain\n"a,b"\n""""\n"a\r\nb"\n""\n" a"\n\xff\n'


def test_outputs_may_have_rows_of_different_lengths_or_none() -> None:
    ragged = OutputColumn("A", BY_NAME["INT8"], [np.ones((1, 1), np.int8), np.ones((1, 2), np.int8)])
    assert encode_csv([ragged]) == b"1\n1,1\n"
    scalar, vector = column("A", "FP32", 1.5, whole=True), column("B", "INT8", [1, 2], whole=True)
    assert encode_csv([scalar]) == b"1.5\n"
    assert encode_csv([vector]) == b"1\n2\n"
    with pytest.raises(InvalidRequest, match="different numbers of rows"):
        encode_csv([scalar, vector])


@pytest.mark.parametrize(
    ("inputs", "message"),
    [
        ({"A": ("FP32", (2,)), "B": ("FP32", ())}, "row 1: expected 3 columns (2 for 'A', 1 for 'B'), got 4"),
        ({"A": ("FP32", (-1, 3))}, "row 1: expected columns: a multiple of 3 for 'A', got 4"),
        ({"A": ("FP32", (-1,)), "B": ("FP32", (4,))}, "columns: a multiple of 1 for 'A', 4 for 'B', got 4"),
        ({"A": ("FP32", (-1,)), "B": ("FP32", (-1,))}, "several variable dimensions"),
    ],
)
def test_a_wrong_number_of_columns_is_refused(inputs: Signature, message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode("1,2,3,4", model(inputs))
    assert message in caught.value.message
