"""The request of the smoke test in its forms, and the responses of all forms as comparable rows."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from deploy.smoke_forms import BadFile, Form, Request, WrongAnswer, difference, read_rows
from trident.core.inference.tensors import pack_bytes

BINARY_TYPE = "application/vnd.sagemaker-triton.binary+json"
TWO: dict[str, Any] = {
    "inputs": [
        {"name": "A", "datatype": "INT32", "shape": [2, 2], "data": [[1, 2], [3, 4]]},
        {"name": "B", "datatype": "BYTES", "shape": [2, 1], "data": ["x,y", "z"]},
    ],
    "outputs": [{"name": "OUTPUT", "parameters": {"classification": 3}}],
}


def request_of(folder: Path, document: object) -> Request:
    path = folder / "request.json"
    path.write_text(json.dumps(document))
    return Request.read(path)


def test_instances_of_several_inputs_have_names(tmp_path: Path) -> None:
    several = json.loads(request_of(tmp_path, TWO).body(Form.INSTANCES, BINARY_TYPE).content)
    assert several == {"instances": [{"A": [1, 2], "B": ["x,y"]}, {"A": [3, 4], "B": ["z"]}]}
    one = json.loads(request_of(tmp_path, {"inputs": TWO["inputs"][:1]}).body(Form.INSTANCES, BINARY_TYPE).content)
    assert one == {"instances": [[1, 2], [3, 4]]}


def test_csv_has_one_item_per_line_and_quotes(tmp_path: Path) -> None:
    assert request_of(tmp_path, TWO).body(Form.CSV, BINARY_TYPE).content == b'1,2,"x,y"\n3,4,z\n'


@pytest.mark.parametrize(
    "inputs",
    [
        [],
        [{"name": "A", "datatype": "INT32", "shape": [2, 2], "data": [1, 2, 3]}],
        [{"name": "A", "datatype": "INT31", "shape": [1], "data": [1]}],
        [{"name": "A", "datatype": "INT32", "shape": [], "data": [1]}],
        [{"name": "A", "shape": [1], "data": [1]}],
        "A",
    ],
)
def test_malformed_request_file_is_refused(tmp_path: Path, inputs: object) -> None:
    with pytest.raises(BadFile):
        request_of(tmp_path, {"inputs": inputs})


def test_all_forms_of_a_response_give_the_same_rows() -> None:
    outputs = [
        {"name": "S", "datatype": "FP32", "shape": [2, 2], "data": [0.1, 1, 2, 3]},
        {"name": "T", "datatype": "BYTES", "shape": [2, 1], "data": ["six", "se,ven"]},
    ]
    tensors = [np.array([0.1, 1, 2, 3], "<f4").tobytes(), bytes(pack_bytes([b"six", b"se,ven"]))]
    bare = [{key: each[key] for key in ("name", "datatype", "shape")} for each in outputs]
    described = [
        {**each, "parameters": {"binary_data_size": len(tensor)}} for each, tensor in zip(bare, tensors, strict=True)
    ]
    header = json.dumps({"outputs": described}).encode()
    predictions = [{"S": [0.1, 1], "T": ["six"]}, {"S": [2, 3], "T": ["se,ven"]}]
    answers = {
        Form.V2: (json.dumps({"outputs": outputs}).encode(), "application/json"),
        Form.BINARY: (header + b"".join(tensors), f"{BINARY_TYPE};json-header-size={len(header)}"),
        Form.INSTANCES: (json.dumps({"predictions": predictions}).encode(), "application/json"),
        Form.CSV: (b'0.1,1.0,six\n2.0,3.0,"se,ven"\n', "text/csv"),
    }
    expected = [[0.1, 1, "six"], [2, 3, "se,ven"]]
    assert {form: difference(read_rows(form, *answer), expected) for form, answer in answers.items()} == dict.fromkeys(
        Form, ""
    )


@pytest.mark.parametrize(
    ("form", "content", "content_type"),
    [
        (Form.V2, b'{"error": "no"}', "application/json"),
        (Form.V2, b"<html>", "text/html"),
        (Form.V2, b'{"outputs": [{"shape": [2], "data": [1, 2]}, {"shape": [1], "data": [1]}]}', "application/json"),
        (Form.BINARY, b"{}", "application/json"),
        (Form.INSTANCES, b"[1]", "application/json"),
        (Form.CSV, b"1,2\n", "application/json"),
        (Form.CSV, b"\xff\xfe\n", "text/csv"),
    ],
)
def test_response_of_another_form_fails_and_is_shown(form: Form, content: bytes, content_type: str) -> None:
    with pytest.raises(WrongAnswer, match=f"^{form}: the answer cannot be read .*{content_type}"):
        read_rows(form, content, content_type)


@pytest.mark.parametrize(
    ("found", "text"),
    [
        ([[1.00005, "six"]], ""),
        ([["1.0", "six"]], ""),
        ([[1.1, "six"]], "row 1, column 1 is 1.1, not 1"),
        ([[1, "sex"]], "row 1, column 2 is sex, not six"),
        ([[float("nan"), "six"]], "row 1, column 1 is nan, not 1"),
        ([[1]], "row 1, column 2 is None, not six"),
        ([], "0 rows, not 1"),
    ],
)
def test_difference_names_its_first_position(found: list[list[object]], text: str) -> None:
    assert difference(found, [[1, "six"]]) == text


def test_booleans_and_nan_equal_themselves() -> None:
    assert difference([["true", "NaN"]], [[True, float("nan")]]) == ""
