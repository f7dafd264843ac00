"""Requests that come again are recognised by what stands before their tensors."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.core.grpc.codec_messages import FIRST, SECOND, decode, infer_message
from tests.unit.fake_engine import FakeEngine
from trident.core.grpc.request import RequestDecoder, RequestTemplates, head_of


@pytest.mark.parametrize(
    "message",
    [b"\x0a", b"\x0a\x05m", b"\x08\x01", b"\x42\x00", b"\xba\x00\x00", b"\x1a\x01a\x1a\x01b", b"\x0a" + b"\x80" * 9],
)
def test_messages_that_only_protobuf_can_read_have_no_head(message: bytes) -> None:
    assert head_of(message) is None


def test_large_tensors_of_a_known_request_are_views_of_its_message() -> None:
    decoder = RequestDecoder(FakeEngine().model)
    large = infer_message()
    large.raw_input_contents[0] = bytes(100_000)
    decode(large, decoder=decoder)
    message = bytearray(large.SerializeToString())
    inputs = decode(memoryview(message), decoder=decoder).request.inputs
    assert [len(tensor.data) for tensor in inputs] == [100_000, 64]
    message[-1] = 7
    assert bytes(inputs[1].data)[-1] == 7


def test_tensors_whose_boundary_has_moved_are_read_apart() -> None:
    decoder = RequestDecoder(FakeEngine().model)
    for large in (b"", bytes(100_000)):
        first = infer_message()
        first.raw_input_contents[0] = large + FIRST
        decode(first, decoder=decoder)
        moved = infer_message()
        moved.raw_input_contents[0] = large + FIRST[:-4]
        moved.raw_input_contents[1] = SECOND + bytes(4)
        inputs = decode(moved, decoder=decoder).request.inputs
        assert [bytes(tensor.data) for tensor in inputs] == list(moved.raw_input_contents)


def test_two_heads_in_messages_of_one_size_are_told_apart() -> None:
    decoder = RequestDecoder(FakeEngine().model)
    shapes = ([1, 16], [16, 1])
    for _ in range(3):
        for shape in shapes:
            message = infer_message()
            message.inputs[0].shape[:] = shape
            assert decode(message, decoder=decoder).request.inputs[0].shape == tuple(shape)


def test_a_request_with_an_id_that_is_no_text_is_not_known() -> None:
    known = RequestTemplates()
    decoder = RequestDecoder(FakeEngine().model)
    decode(infer_message(id="a"), decoder=decoder)
    message = infer_message(id="a").SerializeToString().replace(b"\x1a\x01a", b"\x1a\x01\xff")
    assert known.fill(message) is None
    assert decoder._templates.fill(message) is None


@pytest.mark.parametrize("size", [0, 2048])
def test_requests_without_tensors_or_with_long_heads_are_not_remembered(size: int) -> None:
    decoder = RequestDecoder(FakeEngine().model)
    message = infer_message()
    if size:
        message.inputs[0].name = "n" * size
    else:
        message.ClearField("inputs")
        message.ClearField("raw_input_contents")
    content = message.SerializeToString()
    decode(content, decoder=decoder)
    assert decoder._templates.fill(content) is None


def test_unaligned_tensors_of_a_known_request_become_aligned_arrays() -> None:
    decoder = RequestDecoder(FakeEngine().model)
    message = infer_message()
    message.raw_input_contents[0] = b"odd"
    message.inputs[0].datatype = "INT8"
    message.inputs[0].shape[:] = [3]
    decode(message, decoder=decoder)
    second = decode(message, decoder=decoder).request.inputs[1]
    assert second.array.flags.aligned
    assert np.array_equal(second.array, np.ones((1, 16), np.int32))


def test_the_place_of_the_first_tensor_is_known_by_the_size_of_its_message() -> None:
    decoder = RequestDecoder(FakeEngine().model)
    large = infer_message(id="a")
    large.raw_input_contents[0] = bytes(100_000)
    message = large.SerializeToString()
    assert decoder.tensor_offset(len(message)) == 0
    for _ in range(2):
        decode(message, decoder=decoder)
    offset = decoder.tensor_offset(len(message))
    assert message[offset - 4 : offset] == b"\x3a\xa0\x8d\x06"
    assert decoder.tensor_offset(len(message) + 1) == 0
