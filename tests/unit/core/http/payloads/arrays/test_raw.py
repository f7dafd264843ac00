from __future__ import annotations

import numpy as np
import pytest

from tests.unit.core.http.payloads.payload_models import RULES, model, one
from trident.core.config.spec import ModelSpec
from trident.core.errors import InvalidRequest
from trident.core.http.payloads.arrays import decode_octets, decode_raw


@pytest.mark.parametrize(
    ("body", "spec", "expected"),
    [
        (np.array([1, 2], np.float32).tobytes(), one("FP32", 2), [[1, 2]]),
        (np.array([1, 2, 3, 4], np.float32).tobytes(), one("FP32", 2), [[1, 2], [3, 4]]),
        (b"\1\0", one("INT16", 1), [[1]]),
        (b"\1\2\3\4", one("UINT8", -1, 2), [[[1, 2], [3, 4]]]),
        (b"\1\0\1", one("BOOL", 1), [[True], [False], [True]]),
        (b"\xff\xd8jpeg", one("BYTES", 1), [[b"\xff\xd8jpeg"]]),
        (b"text", one("BYTES", -1), [[b"text"]]),
    ],
)
def test_bytes_become_the_only_input(body: bytes, spec: ModelSpec, expected: list[object]) -> None:
    payload = decode_raw(memoryview(body), spec, RULES)
    assert payload.arrays["IN"].tolist() == expected
    assert payload.arrays["IN"].dtype == spec.inputs["IN"].datatype.dtype
    assert (payload.count, payload.stacked) == (len(expected), True)


def test_a_model_without_batching_gets_instances() -> None:
    payload = decode_raw(b"\1\2\3\4", one("UINT8", 2, batch=0), RULES)
    assert (payload.count, payload.stacked) == (2, False)


@pytest.mark.parametrize("padding", [b"", b" " * 2000])
@pytest.mark.parametrize("body", [b'{"instances":[[1,2]]}', b' {"inputs":{"IN":[[1,2]]}}', b"[[1,2]]"])
def test_json_without_a_type_is_decoded_as_json(body: bytes, padding: bytes) -> None:
    text = body + padding + b" " * (-len(body + padding) % 8)
    assert decode_octets(memoryview(text), one("FP32", 2), RULES).arrays["IN"].tolist() == [[1, 2]]


def test_an_error_in_a_document_is_reported() -> None:
    with pytest.raises(InvalidRequest, match="instance 0, input 'IN': expected a list of 2, got one of 3"):
        decode_octets(b'{"instances":[[1,2,3]]} ', one("FP32", 2), RULES)


@pytest.mark.parametrize("body", [b"[\0\0\0\1\0\0\0", b'{"a":"instances"}   ', b"[[1,2],["])
def test_bytes_that_begin_like_json_are_decoded_as_bytes(body: bytes) -> None:
    array = decode_octets(body, one("UINT32", -1), RULES).arrays["IN"]
    assert array.tobytes() == body


@pytest.mark.parametrize("body", [b'["a",1]', b'{"text":"the \\"instances\\""}', b'{"a":"instances"}'])
def test_a_string_input_may_be_json_text(body: bytes) -> None:
    assert decode_octets(body, one("BYTES", 1), RULES).arrays["IN"].tolist() == [[body]]


def test_a_document_may_have_strings() -> None:
    payload = decode_octets(b'{"instances":["a",{"b64":"AAE="}]}', one("BYTES", 1), RULES)
    assert payload.arrays["IN"].tolist() == [[b"a"], [b"\0\1"]]


@pytest.mark.parametrize(
    ("body", "spec", "message"),
    [
        (b"", one("FP32", 2), "the body is empty"),
        (b"123", one("FP32", 2), "input 'IN': expected a multiple of 8 bytes, got 3"),
        (b"123", one("FP32", -1), "input 'IN': expected a multiple of 4 bytes, got 3"),
        (b"1234", one("FP32", -1, -1), "raw bytes cannot determine 2 variable dimensions"),
        (b"\1\2", one("BOOL", 2), "expected bytes that are 0 or 1"),
        (b"12", one("BYTES", 2), "raw bytes are one string, input 'IN' needs 2"),
        (b"12", one("FP32", 0), "expected a multiple of 0 bytes"),
        (b"12", model({"A": ("FP32", ()), "B": ("FP32", ())}), "a body of raw bytes needs a model with one input"),
    ],
)
def test_an_error_names_the_input(body: bytes, spec: ModelSpec, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        decode_raw(body, spec, RULES)
