from __future__ import annotations

from typing import Any

import orjson
import pytest

from trident.core.config.spec import InputSpec, ModelSpec
from trident.core.errors import InvalidRequest
from trident.core.http.generate import decode_object
from trident.core.http.v2_json import NESTED_TOO_DEEP
from trident.core.inference.request import InferenceRequest
from trident.core.inference.tensors import BY_NAME

LIMIT = 1 << 20


def spec(max_batch_size: int = 0, **inputs: tuple[str, tuple[int, ...]]) -> ModelSpec:
    return ModelSpec(
        name="m",
        version=1,
        platform="",
        backend="python",
        max_batch_size=max_batch_size,
        inputs={
            name: InputSpec(name=name, datatype=BY_NAME[datatype], dims=dims)
            for name, (datatype, dims) in inputs.items()
        },
        outputs={},
    )


TEXT = spec(text=("BYTES", (1,)), count=("INT32", (1,)), stream=("BOOL", (1,)))


def decode(document: Any, model: ModelSpec = TEXT, limit: int = LIMIT) -> InferenceRequest:
    text = document if isinstance(document, bytes) else orjson.dumps(document)
    return decode_object(text, -1, model, limit)


def refusal(document: Any, model: ModelSpec = TEXT, limit: int = LIMIT) -> str:
    with pytest.raises(InvalidRequest) as raised:
        decode(document, model, limit)
    return raised.value.message


def values(request: InferenceRequest) -> dict[str, tuple[str, tuple[int, ...], list[Any]]]:
    return {each.name: (each.datatype, each.shape, list(each.data.tolist())) for each in request.inputs}


def test_members_with_the_name_of_an_input_are_tensors() -> None:
    request = decode({"text": "hi \u00e9", "count": [3], "stream": True})
    assert values(request) == {
        "text": ("BYTES", (1,), ["hi \u00e9".encode()]),
        "count": ("INT32", (1,), [3]),
        "stream": ("BOOL", (1,), [True]),
    }
    assert (request.model_name, request.model_version, request.parameters) == ("m", -1, None)


def test_all_other_members_are_parameters_of_the_model() -> None:
    members = {"id": "r1", "temperature": 0.5, "timeout": 7, "triton_x": "y", "sequence_id": 2, "flag": False}
    request = decode({"text": "a", **members})
    assert request.parameters == members
    assert request.id == "r1"
    assert (request.timeout_us, request.correlation_id) == (0, 0)


def test_the_members_of_parameters_are_tensors_and_parameters_too() -> None:
    request = decode({"text": "a", "parameters": {"count": 2, "temperature": 1, "parameters": "word"}})
    assert values(request)["count"] == ("INT32", (1,), [2])
    assert request.parameters == {"temperature": 1, "parameters": "word"}


def test_null_means_that_an_optional_field_is_absent() -> None:
    request = decode({"text": "a", "id": None, "parameters": None})
    assert (request.id, request.parameters) == ("", None)


def test_an_input_may_be_called_id() -> None:
    request = decode({"id": [5]}, spec(id=("INT64", (1,))))
    assert values(request) == {"id": ("INT64", (1,), [5])}
    assert (request.id, request.parameters) == ("", None)


@pytest.mark.parametrize(
    ("dims", "max_batch_size", "content", "shape"),
    [
        ((1,), 0, 7, (1,)),
        ((1,), 8, 7, (1, 1)),
        ((1,), 8, [7, 8], (2, 1)),
        ((-1,), 8, [7, 8], (1, 2)),
        ((-1,), 0, [], (0,)),
        ((-1,), 8, [], (1, 0)),
        ((-1, 3), 8, [1, 2, 3, 4, 5, 6], (1, 2, 3)),
        ((-1, -1), 0, [1, 2], (1, 2)),
        ((2, -1), 0, [1, 2, 3, 4], (2, 2)),
        ((2, 2), 0, [1, 2, 3, 4], (2, 2)),
        ((), 0, 7, ()),
        ((), 8, [7, 8], (2,)),
    ],
)
def test_the_shape_follows_from_the_number_of_values(
    dims: tuple[int, ...], max_batch_size: int, content: Any, shape: tuple[int, ...]
) -> None:
    (tensor,) = decode({"x": content}, spec(max_batch_size, x=("INT32", dims))).inputs
    assert tensor.shape == shape


@pytest.mark.parametrize(
    ("dims", "max_batch_size", "content"),
    [((2,), 0, 7), ((2,), 8, [1, 2, 3]), ((1,), 0, [1, 2]), ((1,), 0, []), ((0,), 0, [1]), ((), 0, [1, 2])],
)
def test_values_without_a_shape_are_refused(dims: tuple[int, ...], max_batch_size: int, content: Any) -> None:
    model = spec(max_batch_size, x=("INT32", dims))
    assert refusal({"x": content}, model) == "The schema can not convert input 'x' to tensor with proper shape"


@pytest.mark.parametrize(
    ("document", "text"),
    [
        (
            {"text": 1, "stream": 1},
            "Unable to parse JSON bytes array: attempt to access JSON non-string as string",
        ),
        ({"stream": 1, "text": 1}, "Unable to parse 'data': attempt to access JSON non-boolean as boolean"),
        (
            {"text": {"user": "a"}},
            "Unable to parse JSON bytes array: attempt to access JSON non-string as string",
        ),
        ({"count": 1.5}, "Unable to parse 'data': attempt to access JSON non-signed-integer as signed-integer"),
        ({"id": 3}, "Unable to parse 'id': attempt to access JSON non-string as string"),
        (
            {"other": {"a": 1}},
            "parameter 'other' has invalid type. It should be either 'int', 'bool', or 'string'.",
        ),
        ({"other": None}, "parameter 'other' has invalid type. It should be either 'int', 'bool', or 'string'."),
        (
            {"parameters": 1},
            "Expected JSON object for keyword: 'parameters': attempt to access JSON non-object as object",
        ),
        (
            {"parameters": {"nested": {"twice": 1}}},
            "Converting keyword: 'parameters': parameter 'nested' has invalid type. "
            "It should be either 'int', 'bool', or 'string'.",
        ),
        (b"[1]", "attempt to get members for non-object"),
        (b'{"text": }', "failed to parse the request JSON buffer: unexpected character, expected a JSON value at 9"),
    ],
)
def test_what_is_wrong_with_a_member(document: Any, text: str) -> None:
    assert refusal(document) == text


@pytest.mark.parametrize(
    ("document", "name"),
    [
        (b'{"text": "a", "stream": true, "text": "b"}', "text"),
        (b'{"text": "a", "stream": true, "text": "b", "stream": true}', "text"),
        (b'{"text": "a", "stream": true, "stream": true, "text": "b"}', "stream"),
    ],
)
def test_an_input_cannot_be_given_twice(document: bytes, name: str) -> None:
    assert refusal(document) == f"[request id: <id_unknown>] input '{name}' already exists in request"


@pytest.mark.parametrize("depth", [50, 900, 5000])
def test_a_deep_document_with_the_name_of_an_input_twice_is_refused(depth: int) -> None:
    text = b'{"text": "text", "other": %b%b}' % (b"[" * depth, b"]" * depth)
    wrong = "parameter 'other' has invalid type. It should be either 'int', 'bool', or 'string'."
    assert refusal(text) in (NESTED_TOO_DEEP, wrong)


@pytest.mark.parametrize("digits", ["7", "-7", str(2**64 - 1), str(2**64), str(-(2**63) - 1), "9" * 300])
def test_a_number_does_not_depend_on_the_strings_beside_it(digits: str) -> None:
    once, twice = (decode(b'{"text": "%b", "speed": %b}' % (text, digits.encode())) for text in (b"other", b"text"))
    assert once.parameters == twice.parameters
    assert isinstance((once.parameters or {})["speed"], int) is (len(digits) < 21 and -(2**63) <= int(digits) < 2**64)


def test_an_input_cannot_be_given_again_under_parameters() -> None:
    text = refusal({"id": "r", "text": "a", "parameters": {"text": "b"}})
    assert text == "Converting keyword: 'parameters': [request id: r] input 'text' already exists in request"


def test_a_string_that_is_the_name_of_an_input_is_no_second_input() -> None:
    assert values(decode({"text": "text", "count": 1}))["text"] == ("BYTES", (1,), [b"text"])


def test_an_input_called_parameters_cannot_be_given() -> None:
    text = "Keyword 'parameters' for nested schema also given as input tensor name"
    assert refusal({"parameters": 1}, spec(parameters=("INT32", (1,)))) == text


def test_halves_have_no_json_form() -> None:
    text = "receiving FP16 data via JSON is not supported. Please use the binary data format for input x"
    assert refusal({"x": 1.0}, spec(x=("FP16", (1,)))) == text


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
