from __future__ import annotations

import base64
from typing import Any

import numpy as np
import orjson
import pytest

from tests.unit.core.http.payloads.payload_models import RULES, column, model, one
from trident.core.config.spec import InputSpec, ModelSpec
from trident.core.errors import InvalidRequest
from trident.core.http.payloads.inference import may_be_request_lines, request_lines
from trident.core.http.payloads.json import column_array, decode_instances, decode_json, decode_jsonlines, encode_json
from trident.core.http.payloads.payload import (
    DecodedPayload,
    DecodeRules,
    DocumentForm,
    ErrorLocation,
    OutputColumn,
    document_form,
    instance_name,
)
from trident.core.inference.tensors import BY_NAME, Array, Buffer

# --- decoder


def decode(document: Any, spec: Any) -> DecodedPayload:
    """Decode a small and a large document, which have different parsers, and check that the results are equal."""
    text = orjson.dumps(document)
    small = decode_json(text, spec, RULES)
    large = decode_json(memoryview(text + b" " * 2000), spec, RULES)
    assert (small.count, small.stacked, small.form, small.parameters) == (
        large.count,
        large.stacked,
        large.form,
        large.parameters,
    )
    for name, array in small.arrays.items():
        assert array.dtype == large.arrays[name].dtype
        assert array.shape == large.arrays[name].shape
        np.testing.assert_array_equal(array, large.arrays[name])
    return small


@pytest.mark.parametrize(
    ("document", "dims", "expected"),
    [
        ([[1, 2], [3, 4]], (2,), [[1, 2], [3, 4]]),
        ([1, 2], (2,), [[1, 2]]),
        ([1, 2, 3], (1,), [[1], [2], [3]]),
        ([[1], [2]], (1,), [[1], [2]]),
        ([1, 2, 3], (-1,), [[1, 2, 3]]),
        ([[1, 2], [3, 4]], (-1,), [[1, 2], [3, 4]]),
        ([[1, 2], [3, 4]], (2, 2), [[[1, 2], [3, 4]]]),
        ([1, 2], (), [1, 2]),
        ([{"IN": [1, 2, 3]}, {"IN": [4, 5, 6]}], (3,), [[1, 2, 3], [4, 5, 6]]),
        ([{"IN": [1, 2]}], (-1,), [[1, 2]]),
        ([{"IN": [[1], [2]]}], (2, 1), [[[1], [2]]]),
    ],
)
def test_a_bare_array_is_instances_or_one_instance(document: Any, dims: tuple[int, ...], expected: Any) -> None:
    payload = decode(document, one("FP32", *dims))
    assert payload.arrays["IN"].tolist() == expected
    assert payload.form is DocumentForm.BARE


def test_a_bare_array_may_have_the_models_own_batch_dimension() -> None:
    spec = one("FP32", -1, 2, batch=0)
    for document, count in (([[1, 2], [3, 4]], 2), ([1, 2], 1)):
        payload = decode(document, spec)
        assert (payload.count, payload.stacked) == (count, True)
    assert decode([[[1, 2]], [[3, 4]]], spec).stacked is False


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("{", "failed to parse the request JSON buffer"),
        ("1", "expected a JSON object with 'instances'"),
        ('{"a": {"instances": 1}}', "expected a JSON object with 'instances'"),
        ('{"instances": 1}', "'instances': expected a list of instances, got 1"),
        ('{"instances": []}', "there are no instances"),
        ('{"instances": [[1,2]], "parameters": [1]}', "'parameters': expected an object, got a list"),
        (
            '{"instances": [[1,2]], "parameter": {}}',
            "unknown member 'parameter' of the request, known are 'instances', ",
        ),
        ('{"instances": [[1,2],[3]]}', "instance 1, input 'IN': expected a list of 2, got one of 1"),
        (
            '{"instances": [[1,2],[3,1e39]]}',
            "instance 1, input 'IN', element [1]: expected a number that FP32 can hold",
        ),
        ('{"inputs": {}}', "'inputs': input 'IN' is missing"),
        ('{"inputs": {"IN": []}}', "input 'IN': expected a list of at least one row, got a list"),
        ('{"inputs": {"X": [1]}}', "'inputs': 'X' is not an input of model 'm'"),
        ('{"inputs": [1, 2]}', "row 0, input 'IN': expected a list of 2, got 1"),
    ],
)
def test_an_error_names_the_instance_and_the_input(text: str, message: str) -> None:
    for padding in ("", " " * 2000):
        with pytest.raises(InvalidRequest) as caught:
            decode_json((padding + text).encode(), one("FP32", 2), RULES)
        assert message in caught.value.message


@pytest.mark.parametrize(
    "text", [b"[" * 100_000, b'{"instances":' + b"[" * 900 + b"]" * 900 + b"}", b'{"a":' * 100_000]
)
def test_deep_nesting_is_refused(text: bytes) -> None:
    with pytest.raises(InvalidRequest):
        decode_json(text, one("FP32", 2), RULES)


def test_columns_with_different_numbers_of_rows_are_refused() -> None:
    spec = model({"A": ("FP32", ()), "B": ("FP32", ())})
    with pytest.raises(InvalidRequest, match="input 'B' has 2 rows, input 'A' has 1: expected the same"):
        decode_json(b'{"inputs": {"A": [1], "B": [1, 2]}}', spec, RULES)


# --- values


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
        ([1, 2], "INT32", (), [1, 2]),
        ([[1, 2, 3], [4, 5, 6]], "INT64", (-1,), [[1, 2, 3], [4, 5, 6]]),
        ([[], []], "INT64", (-1,), [[], []]),
        ([[1.0], [2.0]], "UINT8", (1,), [[1], [2]]),
        ([2**64 - 1], "UINT64", (1,), [[2**64 - 1]]),
        ([1.0, 2**63 - 1], "INT64", (1,), [[1], [2**63 - 1]]),
        ([True, False], "BOOL", (1,), [[True], [False]]),
        ([["é", "b"]], "BYTES", (2,), [["é".encode(), b"b"]]),
        ([{"b64": "AACA\r\nPwAAAEA=\r\n"}], "FP32", (2,), [[1, 2]]),
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


@pytest.mark.parametrize(
    ("values", "datatype", "dims", "message"),
    [
        ([[1, 2], [3]], "FP32", (2,), "instance 1, input 'IN': expected a list of 2, got one of 1"),
        ([[1, 2], [3]], "FP32", (-1,), "instance 1, input 'IN': expected a list of 2, as instance 0, input 'IN' has"),
        ([[[1], [2, 3]]], "FP32", (2, -1), "instance 0, input 'IN', element [1]: expected a list of 1"),
        ([1], "FP32", (2,), "instance 0, input 'IN': expected a list of 2, got 1"),
        ([1], "FP32", (-1,), "instance 0, input 'IN': expected a list, got 1"),
        ([[[1]]], "FP32", (1,), "instance 0, input 'IN', element [0]: expected a number that FP32 can hold"),
        ([[0, "x"]], "FP32", (2,), "element [1]: expected a number that FP32 can hold"),
        ([[0, True]], "FP64", (2,), "element [1]: expected a number that FP64 can hold"),
        ([[0, "NaN"]], "INT8", (2,), "element [1]: expected an integer from -128 to 127 (INT8), got 'NaN'"),
        ([[0, 300]], "INT8", (2,), "element [1]: expected an integer from -128 to 127 (INT8), got 300"),
        ([[0, 2**70]], "INT64", (2,), "element [1]: expected an integer from"),
        ([[-1, 2**64 - 1]], "UINT64", (2,), "element [0]: expected an integer from 0"),
        ([[0, 10**400]], "FP64", (2,), "element [1]: expected a number that FP64 can hold"),
        ([[0, 1e39]], "FP32", (2,), "element [1]: expected a number that FP32 can hold"),
        ([[True, 1]], "BOOL", (2,), "element [1]: expected true or false, got 1"),
        ([["a", 1]], "BYTES", (2,), 'element [1]: expected a string or {"b64": "..."}, got 1'),
        (["\ud800"], "BYTES", (1,), "expected Unicode text, got half of a surrogate pair"),
        ([{"b64": 1}], "BYTES", (1,), "instance 0, input 'IN', element [0], 'b64': expected a string of base64"),
        ([{"b64": "a"}], "FP32", (1,), "instance 0, input 'IN', 'b64': invalid base64"),
        ([{"b64": "AACAPw==="}], "FP32", (1,), "'b64': invalid base64: its length, 9, is not a multiple of 4"),
        ([{"b64": "_-_-"}], "FP32", (1,), "'b64': invalid base64"),
        ([b64(b"123")], "FP32", (1,), "instance 0, input 'IN': expected 4 bytes, got 3"),
        ([b64(b"123")], "FP32", (-1,), "instance 0, input 'IN': expected a multiple of 4 bytes, got 3"),
        ([b64(b"12"), b64(b"1")], "INT8", (-1,), "instance 1, input 'IN': expected 2 bytes, as instance 0"),
        ([b64(b"12")], "INT8", (-1, -1), "raw bytes cannot determine 2 variable dimensions"),
        ([b64(b"\0\2")], "BOOL", (2,), "expected bytes that are 0 or 1"),
    ],
)
def test_first_error_is_named(values: list[Any], datatype: str, dims: tuple[int, ...], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        array(values, datatype, *dims)
    assert message in caught.value.message


# --- instances


TWO = model({"A": ("FP32", (2,)), "B": ("BYTES", (1,))}, optional="B")


def test_one_input_takes_values_or_objects_but_not_both() -> None:
    for instances in ([[1, 2]], [{"IN": [1, 2]}]):
        assert decode_instances(instances, one("FP32", 2), RULES, instance_name).arrays["IN"].tolist() == [[1, 2]]
    with pytest.raises(InvalidRequest, match="instance 0: expected an object with a value by input name"):
        decode_instances([[1, 2], {"IN": [1, 2]}], one("FP32", 2), RULES, instance_name)


def test_a_flat_row_has_the_elements_of_all_inputs() -> None:
    payload = decode_instances([[1, 2, "x"], [3, 4, "y"]], TWO, RULES, instance_name)
    assert {name: array.tolist() for name, array in payload.arrays.items()} == {
        "A": [[1, 2], [3, 4]],
        "B": [[b"x"], [b"y"]],
    }


@pytest.mark.parametrize("count", [1, 200])
@pytest.mark.parametrize(("dims", "batch"), [((1, 2, 4), 4), ((2, -1), 4), ((1, 2, 4), 0)])
def test_a_flat_row_of_the_only_input_takes_its_shape(dims: tuple[int, ...], batch: int, count: int) -> None:
    spec, rows = one("FP32", *dims, batch=batch), [list(range(8))] * count
    payload = decode_json(orjson.dumps({"instances": rows}), spec, RULES)
    assert payload.arrays["IN"].shape[1:] == tuple(4 if dim == -1 else dim for dim in dims)
    assert payload.arrays["IN"].reshape(-1, 8).tolist() == rows
    assert payload.stacked is (batch > 0)


def test_an_object_is_base64_or_members_by_the_names_of_the_inputs() -> None:
    assert decode_instances([{"b64": "YWI="}], one("BYTES", 1), RULES, instance_name).arrays["IN"].tolist() == [[b"ab"]]
    spec = model({"b64": ("FP32", (1,))})
    assert decode_instances([{"b64": 1}], spec, RULES, instance_name).arrays["b64"].tolist() == [[1]]
    rules = DecodeRules(ignored_fields=frozenset({"key"}))
    instances = [{"key": 7, "IN": 1}, {"IN": 2}]
    assert decode_instances(instances, one("FP32", 1), rules, instance_name).arrays["IN"].tolist() == [[1], [2]]
    spec = model({"key": ("FP32", (1,))})
    assert decode_instances([{"key": 7}], spec, rules, instance_name).arrays["key"].tolist() == [[7]]


def test_without_a_batch_dimension_instances_are_separate_and_may_differ_in_shape() -> None:
    payload = decode_instances([[1, 2], [3, 4]], one("FP32", 2, batch=0), RULES, instance_name)
    assert (payload.count, payload.stacked) == (2, False)
    instances = [{"A": [], "B": 1}, {"A": [1, 2], "B": 2}, {"A": {"b64": "AACAPw=="}, "B": 3}]
    payload = decode_instances(instances, APART, RULES, instance_name)
    assert (payload.arrays, payload.count, payload.stacked) == ({}, 3, False)
    assert payload.rows is not None
    assert [(row["A"].tolist(), row["B"].tolist()) for row in payload.rows] == [([], 1), ([1, 2], 2), ([1], 3)]
    assert {(row["A"].ndim, row["A"].dtype.name, row["B"].shape) for row in payload.rows} == {(1, "float32", ())}


APART = model({"A": ("FP32", (-1,)), "B": ("INT64", ())}, batch=0)


@pytest.mark.parametrize(
    ("instances", "message"),
    [
        ([], "there are no instances"),
        ([1], "instance 0, input 'A': expected a list of 2, got 1"),
        ([[1]], "instance 0: expected 3 columns (2 for 'A', 1 for 'B'), got 1"),
        ([[1, 2], [1, 2, "x"]], "instance 1: expected 2 columns, as instance 0 has, got 3"),
        (
            [{"A": [1, 2]}, [1, 2]],
            "instance 1: expected an object with a value by input name, like the others, got a list",
        ),
        ([1, {"A": [1, 2]}], "instance 0: expected an object with a value by input name, like the others, got 1"),
        ([{"b64": ""}], "instance 0: 'b64' is not an input of model 'm', whose inputs are 'A', 'B'"),
        ([{"A": [1, 2]}, {"A": [1, 2], "C": 1}], "instance 1: 'C' is not an input"),
        ([{"A": [1, 2]}, {"A": [1, 2], "B": "x"}], "instance 1 has 'B' and instance 0 has not"),
        ([{"A": [1, 2]}, {"B": "x"}], "instance 1: input 'A' is missing"),
        ([{}], "instance 0: input 'A' is missing"),
        ([{"A": [1, 2], "B": 5}], "instance 0, input 'B', element [0]: expected a string"),
    ],
)
def test_an_error_names_the_instance(instances: list[Any], message: str) -> None:
    with pytest.raises(InvalidRequest) as caught:
        decode_instances(instances, TWO, RULES, instance_name)
    assert message in caught.value.message


# --- document form


@pytest.mark.parametrize(
    ("text", "form"),
    [
        ("[1]", DocumentForm.BARE),
        (' {"instances": []}', DocumentForm.INSTANCES),
        ('{"parameters": {}, "instances": []}', DocumentForm.INSTANCES),
        ('{"inputs": [], "instances": []}', DocumentForm.INSTANCES),
        ('{"inputs": [{"name": "instances"}]}', DocumentForm.V2),
        ('{"inputs": {"A": [1]}}', DocumentForm.COLUMNS),
        ('{"inputs": [[1]]}', DocumentForm.COLUMNS),
        ('{"signature_name": "s", "inputs" : [ "text" ]}', DocumentForm.COLUMNS),
        ('{"parameters": {"inputs": [1]}, "inputs": [{"name": "A"}]}', DocumentForm.V2),
        ('{"inputs": []}', DocumentForm.V2),
        ('{"a": 1}', DocumentForm.V2),
        ("", DocumentForm.V2),
    ],
)
def test_document_form_is_detected(text: str, form: DocumentForm) -> None:
    assert document_form(text.encode()) is form


# --- encoder


def test_several_outputs_are_an_object_for_each_instance() -> None:
    columns = [
        column("A", "FP32", [[0.1], [np.inf]]),
        column("B", "INT8", [1, 2]),
        column("C", "BYTES", [b"x", b"\xff"]),
    ]
    assert orjson.loads(encode_json(columns, DocumentForm.INSTANCES)) == {
        "predictions": [
            {"A": [0.1], "B": 1, "C": ["x"]},
            {"A": ["Infinity"], "B": 2, "C": [{"b64": "/w=="}]},
        ]
    }


def test_outputs_are_rows_of_any_shape_columns_or_whole() -> None:
    ragged = OutputColumn("A", BY_NAME["FP32"], [np.ones((1, 1), np.float32), np.ones((2, 2), np.float32)])
    assert encode_json([ragged]) == b'{"predictions":[[1.0],[1.0,1.0],[1.0,1.0]]}'
    assert encode_json([ragged], DocumentForm.COLUMNS) == b'{"outputs":[[1.0],[1.0,1.0],[1.0,1.0]]}'
    columns = [column("A", "FP32", [[1], [2]]), column("B", "BOOL", [True, False])]
    assert encode_json(columns[:1], DocumentForm.COLUMNS) == b'{"outputs":[[1.0],[2.0]]}'
    assert encode_json(columns, DocumentForm.COLUMNS) == b'{"outputs":{"A":[[1.0],[2.0]],"B":[true,false]}}'
    scalar, vector = column("A", "FP32", 1.5, whole=True), column("B", "INT8", [1, 2], whole=True)
    assert encode_json([scalar]) == b'{"predictions":[1.5]}'
    assert encode_json([vector]) == b'{"predictions":[1,2]}'
    assert encode_json([scalar, vector]) == b'{"predictions":[{"A":1.5,"B":[1,2]}]}'
    assert encode_json([vector, vector]) == b'{"predictions":[{"B":1},{"B":2}]}'
    assert encode_json([scalar], DocumentForm.COLUMNS) == b'{"outputs":1.5}'


# --- json lines


@pytest.mark.parametrize(
    "text",
    [
        "[1,2]\n[3,4]",
        "\n[1,2]\n\n \r\n[3,4]\n\n",
        "[1,2]\r\n[3,4]\r\n",
        " [1, 2]\n[3,4] ",
        '{"IN":[1,2]}\n{"IN":[3,4]}',
    ],
)
def test_each_line_is_an_instance(text: str) -> None:
    payload = decode_jsonlines(text.encode(), one("FP32", 2), RULES)
    assert payload.arrays["IN"].tolist() == [[1, 2], [3, 4]]
    assert (payload.count, payload.stacked) == (2, True)


# --- request lines


ONE = one("FP32", 2)
V2 = b'{"inputs":[{"name":"IN"}]}'
INSTANCES = b'{"instances":[[1,2]]}'
COLUMNS = b'{"inputs":{"IN":[[1,2]]}}'
JSON = "application/json"
LINES = "application/jsonlines"


def documents(content_type: str, body: Buffer, spec: ModelSpec = ONE) -> list[bytes] | None:
    return request_lines(content_type, body, spec) if may_be_request_lines(content_type, body) else None


def test_request_lines_are_recognized() -> None:
    rows = b"[1,2]\n[3,4]\n"
    assert documents(JSON, rows) == [b"[1,2]", b"[3,4]"]
    assert documents(LINES, rows) is None
    assert documents("", rows) is None
    for document in (V2, INSTANCES, COLUMNS):
        assert documents(JSON, document + b"\n") is None
    assert documents(LINES, V2 + b"\n") is None
    assert documents(LINES, INSTANCES + b"\n") == [INSTANCES]
    for each in (JSON, ""):
        for body in (
            b"\n\n%b\n%b",
            b" \r\n%b\r\n%b\r\n",
            b"%b\n\n%b\n\n",
            b"%b \n \n\t%b",
            b"\n%b\n" + b"\n" * 100 + b"%b",
        ):
            found = documents(each, body % (INSTANCES, COLUMNS))
            assert [line.strip() for line in found or ()] == [INSTANCES, COLUMNS]


@pytest.mark.parametrize(
    ("content_type", "body"),
    [
        (JSON, b'{\n"instances": [\n[1,2],\n[3,4]\n]\n}'),
        (JSON, b'{"instances": [[1,2]\n]\n}'),
        (JSON, b'{"instances": [\n{"IN": [1,2]},\n{"IN": [1,2]}]}'),
        (JSON, b'{"a":1}\n{"a":2}'),
        (JSON, b"[1,2}\n[3,4]"),
        (LINES, b'{"IN":[1,2]}\n{"IN":[3,4]}'),
        (LINES, b'{"IN":["inputs"]}\n{"IN":["\\"instances\\""]}'),
        (LINES, b'{"inputs"\n'),
        ("text/csv", b"1,2\n3,4\n"),
        ("text/csv", INSTANCES + b"\n" + INSTANCES),
        ("application/x-npy", V2 + b"\n" + V2),
        ("", b"{\0}\n{\0}\n"),
        (JSON, b""),
        (LINES, b""),
    ],
)
def test_other_bodies_have_no_request_lines(content_type: str, body: bytes) -> None:
    assert documents(content_type, body) is None
