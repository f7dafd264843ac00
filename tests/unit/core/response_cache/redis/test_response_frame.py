from __future__ import annotations

import json
from struct import Struct
from typing import Any
from zlib import crc32

import numpy as np
import pytest

from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import InferenceResponse, OutputTensor
from trident.core.response_cache.redis_cache import LARGEST, BadFrame, decode, encode
from trident.core.response_cache.response_cache import CachedResponse

NAME = b"trident:1:m:1:abc"


def response(**fields: Any) -> CachedResponse:
    outputs = [
        OutputTensor("N", "INT32", (1, 3), np.arange(3, dtype=np.int32).reshape(1, 3)),
        OutputTensor("W", "BYTES", (2,), np.array([b"a", b"bcd"], object)),
        OutputTensor("E", "FP32", (0, 4), np.empty((0, 4), np.float32)),
    ]
    return CachedResponse.of(InferenceResponse("m", 1, outputs, **fields))


def forged(outputs: Any, content: bytes = b"", parameters: Any = None) -> bytes:
    """A value with a right checksum and any head."""
    head = json.dumps([outputs, {} if parameters is None else parameters]).encode()
    checksum = crc32(content, crc32(head, crc32(NAME)))
    return Struct("<8sIQI").pack(b"TRIDENT1", len(head), len(content), checksum) + head + content


def test_a_response_comes_back_as_it_was() -> None:
    parameters = {"score": 2, "huge": 2**70, "part": 0.1, "nan": float("inf"), "last": True, "text": "ü\ud800"}
    value = encode(NAME, response(parameters=parameters))
    assert value is not None
    found = decode(NAME, value)
    answer = found.answer(InferenceRequest("m", [], id="7"), "m", 1)
    assert [(out.name, out.datatype, out.shape, out.array.tolist()) for out in answer.outputs] == [
        ("N", "INT32", (1, 3), [[0, 1, 2]]),
        ("W", "BYTES", (2,), [b"a", b"bcd"]),
        ("E", "FP32", (0, 4), []),
    ]
    assert (answer.id, answer.parameters) == ("7", parameters)


def test_every_damaged_byte_is_seen() -> None:
    value = encode(NAME, response())
    assert value is not None
    for at in range(len(value)):
        with pytest.raises(BadFrame):
            decode(NAME, value[:at] + bytes([value[at] ^ 0x40]) + value[at + 1 :])
        with pytest.raises(BadFrame):
            decode(NAME, value[:at])


def test_the_value_of_another_name_is_no_answer() -> None:
    value = encode(NAME, response())
    assert value is not None
    with pytest.raises(BadFrame, match="its checksum is wrong"):
        decode(b"trident:1:m:2:abc", value)


@pytest.mark.parametrize("value", [b"", b"TRIDENT1", b"hello" * 20, b"TRIDENT1" + b"\xff" * 40])
def test_what_another_program_wrote_is_no_answer(value: bytes) -> None:
    with pytest.raises(BadFrame):
        decode(NAME, value)


@pytest.mark.parametrize(
    "value",
    [
        forged(None),
        forged(7),
        forged({"a": 1}),
        forged([["OUT", "INT32", [1], 4]]),  # no content
        forged([["OUT", "INT32", [2], 4]], bytes(4)),
        forged([["OUT", "INT32", [1], 4]], bytes(8)),
        forged([["OUT", "INT32", [-1, -1], 4]], bytes(4)),
        forged([["OUT", "INT32", [True], 4]], bytes(4)),
        forged([["OUT", "INT32", ["1"], 4]], bytes(4)),
        forged([["OUT", "INT32", [1], 4.0]], bytes(4)),
        forged([["OUT", "INT32", 1, 4]], bytes(4)),
        forged([["OUT", "INT31", [1], 4]], bytes(4)),
        forged([["OUT", ["INT32"], [1], 4]], bytes(4)),
        forged([[1, "INT32", [1], 4]], bytes(4)),
        forged([["OUT", "INT32", [1]]], bytes(4)),
        forged([["OUT", "BYTES", [1], 4]], b"\xff\xff\xff\x7f"),
        forged([["OUT", "BYTES", [2**62], 4]], bytes(4)),
        forged([["A", "INT32", [1], 4], ["B", "BYTES", [1], -4]], bytes(4)),
        forged([], b"", [1]),
        forged([], b"", {"a": None}),
        forged([], b"", {"a": [1]}),
        forged(json.loads("[" * 500 + "]" * 500)),
    ],
)
def test_a_forged_head_is_no_answer(value: bytes) -> None:
    with pytest.raises(BadFrame):
        decode(NAME, value)


def test_a_response_that_would_not_be_read_is_not_written() -> None:
    array = np.zeros(LARGEST, np.uint8)
    large = CachedResponse.of(InferenceResponse("m", 1, [OutputTensor("O", "UINT8", array.shape, array)]))
    assert encode(NAME, large) is None
    many = {str(number): number for number in range(20_000)}
    assert encode(NAME, response(parameters=many)) is None
