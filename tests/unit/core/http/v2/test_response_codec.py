from __future__ import annotations

import json
import math

import numpy as np
import orjson
import pytest

from trident.core.config.spec import ModelSpec, OutputSpec
from trident.core.errors import InvalidRequest
from trident.core.http.long_json import ELEMENTS
from trident.core.http.v2_known import ResponsePlan
from trident.core.http.v2_response import encode_response
from trident.core.inference.response import InferenceResponse, OutputTensor
from trident.core.inference.tensors import BY_NAME, Array, bytes_array

SPEC = ModelSpec(
    name="m",
    version=2,
    platform="onnxruntime_onnx",
    backend="onnxruntime",
    max_batch_size=8,
    inputs={},
    outputs={"OUT": OutputSpec(name="OUT", datatype=BY_NAME["FP32"], dims=(2,), labels=("cat", "dog"))},
)


def response(array: Array, datatype: str, **fields: object) -> InferenceResponse:
    output = OutputTensor("OUT", datatype, array.shape, array)
    return InferenceResponse("m", 2, [output], **fields)  # type: ignore[arg-type]


def plan(binary: bool = False, classes: int = 0) -> ResponsePlan:
    return ResponsePlan(outputs={"OUT": (binary, classes)})


def test_json_response_in_tritons_order_of_keys() -> None:
    encoded = encode_response(
        response(np.array([[0.5, 0.1]], np.float32), "FP32", id="r", parameters={"p": 1}), ResponsePlan(), SPEC
    )
    assert encoded[1] is None
    assert encoded[0] == [
        b'{"id":"r","model_name":"m","model_version":"2","parameters":{"p":1},"outputs":[{"name":"OUT",'
        b'"datatype":"FP32","shape":[1,2],"data":[0.5,0.10000000149011612]}]}'
    ]


@pytest.mark.parametrize("columns", [2, 5000])
def test_binary_tensors_follow_the_json(columns: int) -> None:
    array = np.arange(columns * 2, dtype=np.int32).reshape(2, columns)
    encoded = encode_response(response(array[1:], "INT32"), ResponsePlan(binary=True), SPEC)
    text, tensor = encoded[0]
    assert encoded[1] == len(text)
    assert orjson.loads(text)["outputs"] == [
        {"name": "OUT", "datatype": "INT32", "shape": [1, columns], "parameters": {"binary_data_size": columns * 4}}
    ]
    assert bytes(tensor) == array[1:].tobytes()


def test_large_tensors_are_not_copied() -> None:
    array = np.zeros((1, 5000), np.float32)
    encoded = encode_response(response(array, "FP32"), plan(binary=True), SPEC)
    assert np.shares_memory(array, np.frombuffer(encoded[0][1], np.uint8))


def test_an_empty_binary_tensor_is_answered_as_json() -> None:
    encoded = encode_response(response(np.zeros((1, 0), np.float32), "FP32"), plan(binary=True), SPEC)
    assert encoded[1] is None
    assert orjson.loads(encoded[0][0])["outputs"][0]["parameters"] == {"binary_data_size": 0}


def test_bytes_are_packed_or_written_as_strings() -> None:
    array = bytes_array([b"a", "é".encode()], (1, 2))
    assert encode_response(response(array, "BYTES"), plan(binary=True), SPEC)[0][1] == b"\x01\0\0\0a\x02\0\0\0\xc3\xa9"
    text = encode_response(response(array, "BYTES"), plan(), SPEC)[0][0]
    assert orjson.loads(text)["outputs"][0]["data"] == ["a", "é"]


def test_bytes_that_are_not_utf8_are_written_as_they_are() -> None:
    text = encode_response(response(bytes_array([b"\xff\xfe"], (1, 1)), "BYTES"), plan(), SPEC)[0][0]
    assert b'"data":["\xff\xfe"]' in text


def test_nan_and_infinity_are_written_as_words() -> None:
    array = np.array([[np.nan, np.inf, -np.inf, 1.5]], np.float32)
    text = bytes(encode_response(response(array, "FP32"), plan(), SPEC)[0][0])
    assert text.endswith(b'"data":[NaN,Infinity,-Infinity,1.5]}]}')
    assert math.isnan(json.loads(text)["outputs"][0]["data"][0])


def test_the_word_null_in_a_string_is_not_taken_for_a_missing_number() -> None:
    text = encode_response(response(bytes_array([b"null"], (1, 1)), "BYTES"), plan(), SPEC)[0][0]
    assert orjson.loads(text)["outputs"][0]["data"] == ["null"]


def test_classification_with_labels() -> None:
    encoded = encode_response(response(np.array([[0.25, 0.75]], np.float32), "FP32"), plan(classes=1), SPEC)
    assert orjson.loads(encoded[0][0])["outputs"] == [
        {"name": "OUT", "datatype": "BYTES", "shape": [1, 1], "data": ["0.750000:1:dog"]}
    ]


@pytest.mark.parametrize("datatype", ["FP16", "BF16"])
def test_half_precision_is_binary_only(datatype: str) -> None:
    with pytest.raises(InvalidRequest, match=f"^sending {datatype} data via JSON is not supported"):
        encode_response(response(np.zeros((1, 2), np.uint16), datatype), plan(), SPEC)


@pytest.mark.parametrize("name", ["FP32", "INT64", "BOOL", "BYTES"])
def test_a_long_output_is_written_in_parts(name: str) -> None:
    numbers = np.arange(2 * ELEMENTS + 5)
    text = [f'text "{number}"'.encode() for number in numbers.tolist()]
    array = bytes_array(text, (1, len(text))) if name == "BYTES" else numbers.astype(BY_NAME[name].dtype).reshape(1, -1)
    parts, json_length = encode_response(response(array, name), ResponsePlan(), SPEC)
    assert len(parts) > 3
    assert json_length is None
    expected = [one.decode() for one in text] if name == "BYTES" else array.reshape(-1).tolist()
    assert orjson.loads(b"".join(parts))["outputs"][0]["data"] == expected


def test_a_long_output_with_words_or_bytes_is_written_as_a_short_one() -> None:
    numbers = np.full((1, ELEMENTS + 2), 1e16)
    numbers[0, -1] = np.inf
    parts, _ = encode_response(response(numbers, "FP64"), ResponsePlan(), SPEC)
    assert b"".join(parts).endswith(b'"data":[' + b"1e+16," * (ELEMENTS + 1) + b"Infinity]}]}")
    strings = bytes_array([b"a"] * ELEMENTS + [b"\xff"], (1, ELEMENTS + 1))
    parts, _ = encode_response(response(strings, "BYTES"), ResponsePlan(), SPEC)
    assert b"".join(parts).endswith(b'"a","\xff"]}]}')


def test_binary_tensors_follow_a_long_output() -> None:
    outputs = [OutputTensor(name, "INT32", (ELEMENTS + 1,), np.zeros(ELEMENTS + 1, np.int32)) for name in ("A", "B")]
    parts, json_length = encode_response(
        InferenceResponse("m", 2, outputs), ResponsePlan(outputs={"A": (False, 0), "B": (True, 0)}), SPEC
    )
    body = b"".join(parts)
    assert json_length is not None
    first, second = orjson.loads(body[:json_length])["outputs"]
    assert first["data"] == [0] * (ELEMENTS + 1)
    assert len(body) - json_length == second["parameters"]["binary_data_size"] == 4 * (ELEMENTS + 1)


def test_long_outputs_have_the_words_in_their_places() -> None:
    array = np.arange(2 * ELEMENTS + 3, dtype=np.float32)
    places = [0, 7, ELEMENTS, ELEMENTS + 1, 2 * ELEMENTS + 2]
    array[places] = [np.nan, -np.inf, np.inf, np.nan, np.inf]
    parts, _ = encode_response(response(array, "FP32"), ResponsePlan(), SPEC)
    written = json.loads(b"".join(parts))["outputs"][0]["data"]
    assert np.array_equal(np.array(written, np.float32), array, equal_nan=True)
