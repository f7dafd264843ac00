from __future__ import annotations

import pytest
from tritonclient.grpc.service_pb2 import ModelInferRequest, ModelStatistics

from trident.core.grpc.messages import integer_field, packed_integers, read_length, string_field, varint


@pytest.mark.parametrize("number", [0, 1, 127, 128, 300, 2**31 - 1, 2**35 - 1])
def test_a_length_is_read_as_it_was_written(number: int) -> None:
    content = b"x" + varint(number)
    assert read_length(content, 1) == (number, len(content))


def test_a_length_that_is_too_long_or_cut_off_is_refused() -> None:
    with pytest.raises(ValueError, match="longer than any message"):
        read_length(b"\x80\x80\x80\x80\x80\x01", 0)
    with pytest.raises(IndexError):
        read_length(b"\x80\x80", 0)


@pytest.mark.parametrize("number", [0, 1, 127, 128, 2**63, 2**64 - 1])
def test_integers_are_written_as_protobuf_does(number: int) -> None:
    assert integer_field(5, number) == ModelStatistics(execution_count=number).SerializeToString()


@pytest.mark.parametrize("shape", [(), (0,), (-1, 16), (2**63 - 1, 300)])
def test_packed_integers_are_written_as_protobuf_does(shape: tuple[int, ...]) -> None:
    assert packed_integers(3, shape) == ModelInferRequest.InferInputTensor(shape=shape).SerializeToString()


@pytest.mark.parametrize("text", ["", "a", "ä" * 70])
def test_strings_are_written_as_protobuf_does(text: str) -> None:
    assert string_field(1, text) == ModelInferRequest.InferInputTensor(name=text).SerializeToString()


def test_a_lone_surrogate_is_written_as_a_question_mark() -> None:
    assert ModelInferRequest.InferInputTensor.FromString(string_field(1, "a\udcff")).name == "a?"
