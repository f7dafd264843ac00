from __future__ import annotations

import numpy as np
import pytest

from tests.unit.core.http.payloads.payload_models import column
from trident.core.errors import InvalidRequest
from trident.core.http.payloads.csv import encode_csv
from trident.core.http.payloads.payload import OutputColumn
from trident.core.inference.tensors import BY_NAME


def test_each_instance_is_a_row() -> None:
    assert b"".join(encode_csv([column("A", "FP32", [[0.1, 2], [3, 4]])])) == b"0.1,2.0\n3.0,4.0\n"
    assert b"".join(encode_csv([column("A", "INT8", [1, -2])])) == b"1\n-2\n"
    assert b"".join(encode_csv([column("A", "UINT8", [[[1, 2], [3, 4]]])])) == b"1,2,3,4\n"
    assert b"".join(encode_csv([column("A", "BOOL", [[True], [False]])])) == b"true\nfalse\n"


def test_outputs_are_columns_side_by_side() -> None:
    columns = [
        column("A", "INT64", [7, 8]),
        column("B", "BYTES", [b"x", b"y"]),
        column("C", "BF16", [[0.5, 1], [2, 3]]),
    ]
    assert b"".join(encode_csv(columns)) == b"7,x,0.5,1.0\n8,y,2.0,3.0\n"


def test_nan_and_infinities_are_words() -> None:
    assert (
        b"".join(encode_csv([column("A", "FP16", [[np.nan, np.inf, -np.inf, 1]])])) == b"NaN,Infinity,-Infinity,1.0\n"
    )


def test_strings_are_quoted_if_necessary() -> None:
    column_of_strings = column("A", "BYTES", [b"plain", b"a,b", b'"', b"a\r\nb", b"", b" a", b"\xff"])
    assert b"".join(encode_csv([column_of_strings])) == b'plain\n"a,b"\n""""\n"a\r\nb"\n""\n" a"\n\xff\n'


def test_rows_may_have_different_lengths() -> None:
    ragged = OutputColumn("A", BY_NAME["INT8"], [np.ones((1, 1), np.int8), np.ones((1, 2), np.int8)])
    assert b"".join(encode_csv([ragged])) == b"1\n1,1\n"


def test_whole_tensors_are_split_into_rows() -> None:
    scalar, vector = column("A", "FP32", 1.5, whole=True), column("B", "INT8", [1, 2], whole=True)
    assert b"".join(encode_csv([scalar])) == b"1.5\n"
    assert b"".join(encode_csv([vector])) == b"1\n2\n"
    with pytest.raises(InvalidRequest, match="different numbers of rows"):
        b"".join(encode_csv([scalar, vector]))
