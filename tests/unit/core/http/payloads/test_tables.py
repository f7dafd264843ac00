"""Tables of MLflow and Azure ML are made into instances, or refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from tests.unit.core.http.payloads.payload_models import RULES, model, one
from trident.core.config.spec import ModelSpec
from trident.core.errors import InvalidRequest
from trident.core.http.payloads.json import decode_json
from trident.core.http.payloads.tables import table_as_instances

ROWS = [[1, 2], [3, 4]]
RECORDS = [{"a": 1, "b": 2}, {"a": 3, "b": 4}]
# As mlflow's flavor for ONNX: an only input gets the rows, several get the columns of their names.
MATRIX, COLUMNS = one("FP32", 2), model({"b": ("FP32", (1,)), "a": ("INT64", (1,))})
OPTIONAL = model({"text": ("BYTES", (1,)), "more": ("BYTES", (1,))}, optional="more")


@pytest.mark.parametrize(
    ("body", "spec", "expected"),
    [
        ({"dataframe_split": {"columns": ["a", "b"], "index": [0, 1], "data": ROWS}}, MATRIX, {"IN": ROWS}),
        ({"dataframe_split": {"data": ROWS}}, MATRIX, {"IN": ROWS}),
        ({"dataframe_records": RECORDS}, MATRIX, {"IN": ROWS}),
        ({"input_data": ROWS}, MATRIX, {"IN": ROWS}),
        ({"dataframe_split": {"columns": ["a", "b"], "data": ROWS}}, COLUMNS, {"a": [[1], [3]], "b": [[2], [4]]}),
        ({"dataframe_records": RECORDS}, COLUMNS, {"a": [[1], [3]], "b": [[2], [4]]}),
        ({"input_data": {"columns": ["b", "a"], "data": ROWS}}, COLUMNS, {"b": [[1], [3]], "a": [[2], [4]]}),
        ({"dataframe_split": {"columns": ["text"], "data": [["x"], ["y"]]}}, OPTIONAL, {"text": [[b"x"], [b"y"]]}),
        ({"input_data": ["x", "y"]}, OPTIONAL, {"text": [[b"x"], [b"y"]]}),
        ({"dataframe_records": [{"text": "x", "more": "y"}]}, OPTIONAL, {"text": [[b"x"]], "more": [[b"y"]]}),
    ],
)
def test_tables_become_instances(body: dict[str, Any], spec: ModelSpec, expected: dict[str, Any]) -> None:
    made = table_as_instances(json.dumps(body).encode(), spec)
    assert made is not None
    assert made.startswith(b"[" if "input_data" in body else b'{"instances":')
    found = decode_json(made, spec, RULES)
    assert {name: array.tolist() for name, array in found.arrays.items()} == expected


@pytest.mark.parametrize("body", [b'{"instances": [[1]]}', b"[[1]]", b'{"input": 1}', b"", b'"input_data": 1'])
def test_other_bodies_are_unchanged(body: bytes) -> None:
    assert table_as_instances(body, MATRIX) is None


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ({"dataframe_split": {"columns": ["a"], "data": ROWS}}, "row 0 of 'dataframe_split': expected a list of 1"),
        ({"dataframe_split": {"columns": ["a", "c"], "data": ROWS}}, "needs the inputs 'b', 'a'"),
        ({"dataframe_split": {"columns": ["a"], "data": []}}, "expected an object with 'columns' and 'data'"),
        ({"dataframe_split": {"columns": [1, 2], "data": ROWS}}, "expected a list of names"),
        ({"dataframe_split": {"names": [], "data": ROWS}}, "'dataframe_split' has 'names'"),
        ({"dataframe_split": {"data": ROWS}, "params": {}}, "'params' is not supported beside 'dataframe_split'"),
        ({"dataframe_records": [{"a": 1}, {"b": 1}]}, "row 1 of 'dataframe_records' has other columns"),
        ({"dataframe_records": []}, "expected a list of objects"),
        ({"input_data": {"input_string": []}}, "'input_data': expected an object"),
        ({"input_data": [1, 2]}, "row 0 of 'input_data': expected a list of values, got 1"),
    ],
)  # fmt: skip
def test_invalid_tables_are_refused(body: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        table_as_instances(json.dumps(body).encode(), COLUMNS)
    with pytest.raises(InvalidRequest, match="the body is not JSON"):
        table_as_instances(json.dumps(body).encode()[:-1], COLUMNS)
