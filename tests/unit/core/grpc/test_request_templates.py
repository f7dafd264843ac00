"""Requests that come again are recognised by what stands before their tensors."""

from __future__ import annotations

import pytest

from tests.unit.core.grpc.codec_messages import FIRST, SECOND, decode, infer_message
from tests.unit.fake_engine import FakeEngine
from trident.core.grpc.request import RequestDecoder


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
