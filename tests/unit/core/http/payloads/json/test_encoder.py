from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest

from tests.unit.core.http.payloads.payload_models import column
from trident.core.http.long_json import ELEMENTS
from trident.core.http.payloads.json import encode_json, encode_predictions
from trident.core.http.payloads.payload import DocumentForm, OutputColumn
from trident.core.inference.tensors import BY_NAME


@pytest.mark.parametrize(
    ("datatype", "values", "text"),
    [
        ("FP32", [[0.1, 2], [1e16, -1e-7]], "[[0.1,2.0],[1e16,-1e-7]]"),
        ("FP64", [[0.1, 1 / 3]], "[[0.1,0.3333333333333333]]"),
        ("FP16", [[0.1, 2]], "[[0.099975586,2.0]]"),
        ("BF16", [[0.5, 2]], "[[0.5,2.0]]"),
        ("INT64", [2**63 - 1, -1], "[9223372036854775807,-1]"),
        ("UINT64", [[2**64 - 1]], "[[18446744073709551615]]"),
        ("UINT8", [[[1, 2]], [[3, 4]]], "[[[1,2]],[[3,4]]]"),
        ("BOOL", [True, False], "[true,false]"),
        ("BYTES", ["é".encode(), b"\xff"], '[["é"],[{"b64":"/w=="}]]'),
        ("FP32", [[0.1, np.nan], [np.inf, -np.inf]], '[[0.1,"NaN"],["Infinity","-Infinity"]]'),
        ("FP64", [[0.1, np.nan], [np.inf, -np.inf]], '[[0.1,"NaN"],["Infinity","-Infinity"]]'),
        ("FP16", [np.nan, 1], '["NaN",1.0]'),
        ("FP32", [[], []], "[[],[]]"),
    ],
)
def test_one_output_is_a_value_for_each_instance(datatype: str, values: Any, text: str) -> None:
    columns = [column("A", datatype, values)]
    # By its version orjson writes an exponent with or without a plus sign.
    written = b"".join(encode_predictions(columns)).decode().replace("e+", "e")
    assert written == f'{{"predictions":{text}}}'
    assert b"".join(encode_json(columns, DocumentForm.BARE)).decode().replace("e+", "e") == text


def test_several_outputs_are_an_object_for_each_instance() -> None:
    columns = [
        column("A", "FP32", [[0.1], [np.inf]]),
        column("B", "INT8", [1, 2]),
        column("C", "BYTES", [b"x", b"\xff"]),
    ]
    assert orjson.loads(b"".join(encode_json(columns, DocumentForm.INSTANCES))) == {
        "predictions": [
            {"A": [0.1], "B": 1, "C": ["x"]},
            {"A": ["Infinity"], "B": 2, "C": [{"b64": "/w=="}]},
        ]
    }


def test_rows_may_have_different_shapes() -> None:
    ragged = OutputColumn("A", BY_NAME["FP32"], [np.ones((1, 1), np.float32), np.ones((2, 2), np.float32)])
    assert b"".join(encode_predictions([ragged])) == b'{"predictions":[[1.0],[1.0,1.0],[1.0,1.0]]}'
    assert b"".join(encode_json([ragged], DocumentForm.COLUMNS)) == b'{"outputs":[[1.0],[1.0,1.0],[1.0,1.0]]}'


def test_a_request_of_columns_gets_columns() -> None:
    columns = [column("A", "FP32", [[1], [2]]), column("B", "BOOL", [True, False])]
    assert b"".join(encode_json(columns[:1], DocumentForm.COLUMNS)) == b'{"outputs":[[1.0],[2.0]]}'
    assert b"".join(encode_json(columns, DocumentForm.COLUMNS)) == b'{"outputs":{"A":[[1.0],[2.0]],"B":[true,false]}}'


def test_whole_tensors_are_split_or_kept_whole() -> None:
    scalar, vector = column("A", "FP32", 1.5, whole=True), column("B", "INT8", [1, 2], whole=True)
    assert b"".join(encode_predictions([scalar])) == b'{"predictions":[1.5]}'
    assert b"".join(encode_predictions([vector])) == b'{"predictions":[1,2]}'
    assert b"".join(encode_predictions([scalar, vector])) == b'{"predictions":[{"A":1.5,"B":[1,2]}]}'
    assert b"".join(encode_predictions([vector, vector])) == b'{"predictions":[{"B":1},{"B":2}]}'
    assert b"".join(encode_json([scalar], DocumentForm.COLUMNS)) == b'{"outputs":1.5}'


def test_many_rows_are_written_in_parts() -> None:
    texts = [b"%d" % number for number in range(2 * ELEMENTS + 1)]
    parts = encode_predictions([column("A", "BYTES", texts)])
    assert max(map(len, parts)) < 12 * ELEMENTS
    assert orjson.loads(b"".join(parts)) == {"predictions": [[text.decode()] for text in texts]}
