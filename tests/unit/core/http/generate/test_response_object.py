from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest

from trident.core.errors import InvalidRequest
from trident.core.http.generate import ObjectEncoder, encode_object
from trident.core.inference.request import Parameter
from trident.core.inference.response import InferenceResponse, OutputTensor, ReceivedOutput
from trident.core.inference.tensors import BY_NAME, wire_bytes


def output(name: str, datatype: str, content: list[Any]) -> OutputTensor:
    array = np.array(content, BY_NAME[datatype].dtype)
    return OutputTensor(name, datatype, array.shape, array)


def received(name: str, datatype: str, content: list[Any]) -> ReceivedOutput:
    """The output as another process sends it."""
    array = output(name, datatype, content).array
    return ReceivedOutput(name, datatype, array.shape, memoryview(wire_bytes(array)))


def encode(*outputs: OutputTensor, id: str = "", parameters: dict[str, Parameter] | None = None) -> bytes:
    return encode_object(InferenceResponse("m", 3, list(outputs), id=id, parameters=parameters))


def test_one_value_stands_alone_and_more_are_a_flat_array() -> None:
    text = encode(
        output("scores", "FP32", [[0.5, 0.1], [2, 3]]), output("TEXT", "BYTES", [[b"hi"]]), output("none", "INT64", [])
    )
    assert text == (
        b'{"TEXT":"hi","model_name":"m","model_version":"3","none":[],"scores":[0.5,0.10000000149011612,2.0,3.0]}'
    )


@pytest.mark.parametrize(
    ("datatype", "value"), [("BOOL", True), ("INT64", -(2**63)), ("UINT64", 2**64 - 1), ("FP64", 0.1), ("FP32", 1.5)]
)
def test_a_number_keeps_its_value(datatype: str, value: Any) -> None:
    assert orjson.loads(encode(output("x", datatype, [value])))["x"] == value


def test_id_model_and_parameters_come_before_outputs_of_the_same_name() -> None:
    outputs = [output(name, "INT32", [1]) for name in ("id", "model_name", "speed", "x")]
    text = encode(*outputs, id="r", parameters={"speed": 2.5, "model_version": "9", "last": True})
    assert orjson.loads(text) == {
        "id": "r",
        "last": True,
        "model_name": "m",
        "model_version": "3",
        "speed": 2.5,
        "x": 1,
    }


def test_numbers_that_json_lacks_are_written_as_words() -> None:
    text = encode(
        output("a", "FP32", [float("nan")]), output("b", "FP64", [float("inf"), 1]), output("c", "BYTES", [b"null"])
    )
    assert text == b'{"a":NaN,"b":[Infinity,1.0],"c":"null","model_name":"m","model_version":"3"}'


def test_bytes_that_are_not_utf8_are_written_as_they_are() -> None:
    assert b'"x":["\xff","y"]' in encode(output("x", "BYTES", [b"\xff", b"y"]), output("n", "INT32", [1]))


def test_halves_have_no_json_form() -> None:
    with pytest.raises(InvalidRequest, match="sending FP16 data via JSON is not supported"):
        encode(output("x", "FP16", [1]))


@pytest.mark.parametrize(
    "outputs",
    [
        [("out", "BYTES", [b'word "\xc3\xa9"'])],
        [("z", "INT32", [[1, -2]]), ("A", "FP32", [0.1]), ("n", "BOOL", [True, False]), ("u", "UINT64", [2**64 - 1])],
        [("x", "FP64", [float("nan")]), ("y", "FP32", [float("-inf"), 1])],
        [("x", "BYTES", [b"\xff"])],
        [("x", "BYTES", [b"a", b"b"])],
        [("x", "BYTES", [])],
        [("x", "INT64", [])],
        [("x", "INT16", list(range(100)))],
        [("model_name", "INT8", [1]), ("id", "INT8", [2])],
        [],
    ],
)
@pytest.mark.parametrize("id", ["", "r"])
def test_the_encoder_of_a_stream_writes_the_same(outputs: list[tuple[str, str, list[Any]]], id: str) -> None:
    encoder = ObjectEncoder()
    for parameters in (None, {"speed": 1}, None):
        response = InferenceResponse("m", 3, [received(*each) for each in outputs], id=id, parameters=parameters)
        assert encoder(response) == encode_object(response)


def test_the_encoder_of_a_stream_knows_responses_by_their_form() -> None:
    encoder = ObjectEncoder()
    for number in range(40):
        for datatype in ("INT32", "BYTES"):
            content = [number if datatype == "INT32" else str(number).encode()] * (1 + number % 3)
            response = InferenceResponse("m", number // 4, [received("x", datatype, content)])
            assert encoder(response) == encode_object(response)


def test_the_encoder_of_a_stream_refuses_what_json_cannot_carry() -> None:
    with pytest.raises(InvalidRequest, match="sending FP16 data via JSON is not supported"):
        ObjectEncoder()(InferenceResponse("m", 3, [received("x", "FP16", [1])]))
