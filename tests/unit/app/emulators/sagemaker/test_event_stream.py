"""The framing, parsed by the SDK's own parser."""

from __future__ import annotations

import json

from botocore.eventstream import EventStreamBuffer

from trident.app.emulators.sagemaker.invocation import LARGEST_PART, payload_part, stream_error


def read(*events: bytes) -> list[tuple[dict[str, object], bytes]]:
    buffer = EventStreamBuffer()
    buffer.add_data(b"".join(events))
    return [(event.headers, event.payload) for event in buffer]


def test_parts_survive_encoding() -> None:
    bodies = [b"", b"one", bytes(LARGEST_PART)]
    events = read(*(payload_part(body) for body in bodies))
    assert [payload for _, payload in events] == bodies
    assert {headers[":event-type"] for headers, _ in events} == {"PayloadPart"}
    assert {headers[":message-type"] for headers, _ in events} == {"event"}


def test_an_error_event_ends_a_stream() -> None:
    ((headers, payload),) = read(stream_error("the container broke off", "StreamBroken"))
    assert headers[":message-type"] == "exception"
    assert headers[":exception-type"] == "ModelStreamError"
    assert json.loads(payload) == {"Message": "the container broke off", "ErrorCode": "StreamBroken"}
