from __future__ import annotations

import pytest

from tests.unit.core.grpc.codec.messages import FIRST, SECOND, infer_message
from trident.core.grpc.request import HeadSizes, head_of, tensors_from

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
def test_what_protobuf_must_judge_has_no_head(message: bytes) -> None:
    assert head_of(message) is None


@pytest.mark.parametrize("rest", [b"\x3a", b"\x3a\x05abc", b"\x3a\x01a\x0a\x01m", b"\x3a" + b"\x80" * 9])
def test_what_protobuf_must_judge_has_no_tensors(rest: bytes) -> None:
    assert tensors_from(rest, 0) is None


@pytest.mark.parametrize("request_id", ["", "a", "i" * 127])
@pytest.mark.parametrize("version", ["", "1"])
def test_a_head_is_guessed_from_the_last_message_of_its_size(request_id: str, version: str) -> None:
    sizes = HeadSizes()
    first = infer_message(model_version=version, id="first").SerializeToString()
    assert sizes.guess(first) is None
    head = head_of(first)
    assert head is not None
    sizes.learn(first, head)
    message = infer_message(model_version=version, id=request_id).SerializeToString()
    assert sizes.guess(message) == head_of(message)
    assert sizes.guess(memoryview(message)) == head_of(message)
    assert sizes.guess(message + b"\x3a\x00") is None


@pytest.mark.parametrize(
    "message", [b"", b"\x0a", b"\x0a\x00", b"\x0a\x00\x12", b"\x0a\x00\x1a", b"\x0a\xff\x01", b"\x0a\0\x12\xff"]
)
def test_no_head_is_guessed_for_odd_messages(message: bytes) -> None:
    sizes = HeadSizes()
    assert sizes.guess(message) is None
    sizes.learn(b"\x0a\x00", (b"", b"", 0))
    assert sizes.guess(message) in (None, (b"", b"", 0))
