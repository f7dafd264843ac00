"""Requests that come again are recognised by what stands before their tensors."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.core.grpc.codec_messages import FIRST, SECOND, decode, infer_message
from tests.unit.fake_engine import FakeEngine
from trident.core.grpc.request import RequestDecoder, RequestTemplates, head_of, tensors_from
from trident.core.inference.request import PackedInputs

TENSORS = 2 * (2 + 64)


@pytest.mark.parametrize("kind", [bytes, bytearray, memoryview])
def test_a_head_ends_where_the_tensors_begin_and_has_no_id(kind: type) -> None:
    plain = infer_message(model_version="1").SerializeToString()
    message = kind(infer_message(model_version="1", id="r1").SerializeToString())
    head = head_of(message)
    assert head == (plain[:-TENSORS], b"r1", len(message) - TENSORS)
    assert [bytes(tensor) for tensor in tensors_from(message, head[2]) or ()] == [FIRST, SECOND]


def test_a_message_without_tensors_is_all_head() -> None:
    assert head_of(b"") == (b"", b"", 0)
    assert head_of(b"\x0a\x01m") == (b"\x0a\x01m", b"", 3)
    assert tensors_from(b"\x0a\x01m", 3) == []


@pytest.mark.parametrize(
    "message",
    [b"\x0a", b"\x0a\x05m", b"\x08\x01", b"\x42\x00", b"\xba\x00\x00", b"\x1a\x01a\x1a\x01b", b"\x0a" + b"\x80" * 9],
)
def test_messages_that_only_protobuf_can_read_have_no_head(message: bytes) -> None:
    assert head_of(message) is None


@pytest.mark.parametrize("rest", [b"\x3a", b"\x3a\x05abc", b"\x3a\x01a\x0a\x01m", b"\x3a" + b"\x80" * 9])
def test_tensors_that_only_protobuf_can_read_are_not_cut(rest: bytes) -> None:
    assert tensors_from(rest, 0) is None


def test_small_tensors_of_a_known_request_are_one_run_with_one_layout() -> None:
    decoder = RequestDecoder(FakeEngine().model)
    decode(infer_message(), decoder=decoder)
    layouts = set()
    for request_id in ("a", "b", ""):
        inputs = decode(infer_message(id=request_id), decoder=decoder).request.inputs
        assert isinstance(inputs, PackedInputs)
        assert bytes(inputs.content) == FIRST + SECOND
        layouts.add(inputs.layout)
    assert len(layouts) == 1


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
