from __future__ import annotations

from typing import Any

import numpy as np
import orjson
import pytest

from tests.unit.packed_tensors import spec
from trident.core.config.spec import ModelSpec
from trident.core.errors import InvalidRequest
from trident.core.http.generate import decode_object, encode_object
from trident.core.inference.request import InferenceRequest, Parameter
from trident.core.inference.response import InferenceResponse, OutputTensor
from trident.core.inference.tensors import BY_NAME

# --- request object


LIMIT = 1 << 20


TEXT = spec(0, text=("BYTES", (1,)), count=("INT32", (1,)), stream=("BOOL", (1,)))


def decode(document: Any, model: ModelSpec = TEXT, limit: int = LIMIT) -> InferenceRequest:
    text = document if isinstance(document, bytes) else orjson.dumps(document)
    return decode_object(text, -1, model, limit)


def refusal(document: Any, model: ModelSpec = TEXT, limit: int = LIMIT) -> str:
    with pytest.raises(InvalidRequest) as raised:
        decode(document, model, limit)
    return raised.value.message


def tensors_of(request: InferenceRequest) -> dict[str, tuple[str, tuple[int, ...], list[Any]]]:
    return {each.name: (each.datatype, each.shape, list(each.data.tolist())) for each in request.inputs}


def test_members_become_tensors_or_parameters_or_are_omitted() -> None:
    request = decode({"text": "hi \u00e9", "count": [3], "stream": True})
    assert tensors_of(request) == {
        "text": ("BYTES", (1,), ["hi \u00e9".encode()]),
        "count": ("INT32", (1,), [3]),
        "stream": ("BOOL", (1,), [True]),
    }
    assert (request.model_name, request.model_version, request.parameters) == ("m", -1, None)
    members = {"id": "r1", "temperature": 0.5, "timeout": 7, "triton_x": "y", "sequence_id": 2, "flag": False}
    request = decode({"text": "a", **members})
    assert request.parameters == members
    assert request.id == "r1"
    assert (request.timeout_us, request.correlation_id) == (0, 0)
    request = decode({"text": "a", "parameters": {"count": 2, "temperature": 1, "parameters": "word"}})
    assert tensors_of(request)["count"] == ("INT32", (1,), [2])
    assert request.parameters == {"temperature": 1, "parameters": "word"}
    request = decode({"text": "a", "id": None, "parameters": None})
    assert (request.id, request.parameters) == ("", None)


def test_an_input_may_be_called_id_but_not_parameters() -> None:
    request = decode({"id": [5]}, spec(0, id=("INT64", (1,))))
    assert tensors_of(request) == {"id": ("INT64", (1,), [5])}
    assert (request.id, request.parameters) == ("", None)
    text = "Keyword 'parameters' for nested schema also given as input tensor name"
    assert refusal({"parameters": 1}, spec(0, parameters=("INT32", (1,)))) == text


@pytest.mark.parametrize(
    ("document", "text"),
    [
        (
            {"text": 1, "stream": 1},
            "Unable to parse JSON bytes array: attempt to access JSON non-string as string",
        ),
        ({"stream": 1, "text": 1}, "Unable to parse 'data': attempt to access JSON non-boolean as boolean"),
        *(
            (text, "[request id: <id_unknown>] input 'count' already exists in request")
            for text in (
                rb'{"count": 1, "count": 2}',
                rb'{"count": 1, "\u0063ount": 2}',
                rb'{"c\u006funt": 1, "coun\u0074": 2}',
            )
        ),
    ],
)
def test_invalid_member_is_refused_with_the_reason(document: Any, text: str) -> None:
    assert refusal(document) == text


@pytest.mark.parametrize(
    ("document", "sizes"),
    [({"count": [1] * 30}, (120, "count", 120)), ({"text": ["a" * 40, "b" * 52]}, (100, "text", 100))],
)
def test_tensors_over_the_limit_are_refused(document: Any, sizes: tuple[int, str, int]) -> None:
    model = spec(8, text=("BYTES", (1,)), count=("INT32", (1,)))
    total, name, size = sizes
    assert refusal(document, model, 99) == (
        f"request size of {total} bytes with input '{name}' of size {size} bytes exceeds the maximum allowed input "
        "size of 99. Use --http-max-input-size to increase the limit."
    )
    decode(document, model, total)


# --- response object


def output(name: str, datatype: str, content: list[Any]) -> OutputTensor:
    array = np.array(content, BY_NAME[datatype].dtype)
    return OutputTensor(name, datatype, array.shape, array)


def encode(*outputs: OutputTensor, id: str = "", parameters: dict[str, Parameter] | None = None) -> bytes:
    return encode_object(InferenceResponse("m", 3, list(outputs), id=id, parameters=parameters))


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


def test_special_values_and_bytes_are_written_and_fp16_refused() -> None:
    text = encode(
        output("a", "FP32", [float("nan")]), output("b", "FP64", [float("inf"), 1]), output("c", "BYTES", [b"null"])
    )
    assert text == b'{"a":NaN,"b":[Infinity,1.0],"c":"null","model_name":"m","model_version":"3"}'
    assert b'"x":["\xff","y"]' in encode(output("x", "BYTES", [b"\xff", b"y"]), output("n", "INT32", [1]))
    with pytest.raises(InvalidRequest, match="sending FP16 data via JSON is not supported"):
        encode(output("x", "FP16", [1]))
