from __future__ import annotations

import pytest

from trident.core.errors import ErrorCode
from trident.core.grpc.messages import message_of
from trident.core.grpc.status import MalformedMessage


def test_a_message_is_read_from_any_buffer() -> None:
    for content in (b"\x0a\x01m", bytearray(b"\x0a\x01m"), memoryview(b"\x0a\x01m")):
        assert message_of("ModelReadyRequest", content).name == "m"


def test_what_is_no_message_is_an_internal_error_as_in_grpc() -> None:
    with pytest.raises(MalformedMessage, match="Unable to parse request") as refusal:
        message_of("ModelReadyRequest", b"\x0a\x05m")
    assert refusal.value.code is ErrorCode.INTERNAL
