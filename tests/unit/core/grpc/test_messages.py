"""Messages as they arrive, and the memory of those that are not complete."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from tests.unit.core.grpc.grpc_client import echo, frame, infer_request, on_hub, serve
from tests.unit.core.waiting.hub_thread import run_on_hub, until
from tests.unit.fake_engine import FakeEngine
from trident.core.buffers import ALIGNMENT, SILENCE_S
from trident.core.grpc.front_end import GrpcOptions
from trident.core.grpc.messages import MessageReader, UnfinishedMessages
from trident.core.waiting import Deadlines

SIZE = 100_000


def test_slow_message_is_copied_out_of_shared_memory() -> None:
    given: list[Any] = []

    def allocate(size: int) -> Any:
        given.append(np.zeros(size, np.uint8))
        return given[-1]

    reader = MessageReader(SIZE, allocate, lambda size: 0)
    content = bytes(range(250)) * (SIZE // 250)
    assert reader.take(b"\0" + SIZE.to_bytes(4, "big") + content[:1000]) == []
    reader.leave_shared()  # it may have begun a moment ago
    assert reader.take(content[1000:2000]) == []
    (shared,) = given
    assert content[:2000] in shared.tobytes()
    reader.leave_shared()
    (message,) = reader.take(content[2000:])
    assert message.content == content
    assert not shared[2000 + ALIGNMENT :].any()
    assert len(given) == 1


DEADLINE_EXCEEDED, RESOURCE_EXHAUSTED = 4, 8
MESSAGE = frame(infer_request(count=1000))


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
@pytest.mark.parametrize("size", [3, 100])
@on_hub
def test_stalled_message_ends_the_call(method: str, size: int) -> None:
    client = serve(FakeEngine(echo))
    unfinished = client.application.front_end.unfinished
    stream = client.feed(client.begin(method), MESSAGE[:size])
    unfinished.expire()
    client.feed(stream, MESSAGE[size : size + 1])
    unfinished.expire()
    assert not stream.has_ended
    unfinished.expire()
    assert (stream.status, stream.message) == (DEADLINE_EXCEEDED, "the request was not received in time")
    assert not unfinished


@on_hub
def test_a_client_held_back_by_the_server_does_not_time_out() -> None:
    client = serve(FakeEngine(echo), GrpcOptions(stream_requests=100))
    unfinished = client.application.front_end.unfinished
    stream = client.begin("ModelStreamInfer", window=0)
    for _ in range(2):
        client.feed(stream, MESSAGE)
    until(lambda: stream.unsent)
    stream.unsent = 2 << 20
    client.feed(stream, MESSAGE, MESSAGE[:100])
    assert stream.is_paused
    for _ in range(3):
        unfinished.expire()
    assert not stream.has_ended


class Messages:
    """Messages by name, and the names of those that were refused. `now` is the time in seconds."""

    def __init__(self, hub: Any, limit: int) -> None:
        self.now = 0.0
        self.refused: list[str] = []
        self._messages: dict[str, Held] = {}
        self._unfinished = UnfinishedMessages(Deadlines(hub), limit, lambda: self.now)

    def grow(self, name: str, received: int, *, is_held_up: bool = False) -> None:
        message = self._messages.setdefault(name, Held(name, self.refused))
        message.received, message.is_held_up = received, is_held_up
        self._unfinished.grew(message)

    @property
    def total(self) -> int:
        return self._unfinished.total


class Held:
    def __init__(self, name: str, refused: list[str]) -> None:
        self.received = 0
        self.is_held_up = False
        self._name = name
        self._refused = refused

    def stall(self) -> None:
        raise AssertionError("nobody looks for silent clients")

    def crowd_out(self) -> None:
        self._refused.append(self._name)


def test_silent_and_largest_messages_are_refused_first() -> None:
    def test(hub: Any) -> None:
        messages = Messages(hub, limit=800)
        messages.grow("silent and small", 100)
        messages.grow("silent", 300)
        messages.grow("held up by the server", 310, is_held_up=True)
        messages.now = SILENCE_S + 1
        messages.grow("small", 50)
        messages.grow("medium", 250)
        messages.grow("large", 100)
        assert messages.refused == []  # together they have 800 besides the largest
        messages.grow("large", 130)
        assert messages.refused == ["silent"]
        messages.grow("medium", 1000)
        messages.grow("large", 900)
        assert messages.refused == ["silent", "silent and small", "medium"]
        messages.grow("small", 400)
        assert messages.refused == ["silent", "silent and small", "medium"]
        assert messages.total == 310 + 900 + 400

    run_on_hub(test)


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
@on_hub
def test_calls_are_rejected_when_unfinished_messages_exceed_the_limit(method: str) -> None:
    client = serve(FakeEngine(echo), GrpcOptions(max_unfinished_size=4000))
    first = client.feed(client.begin(method), MESSAGE[:3000])
    second = client.feed(client.begin(method), MESSAGE[:2000])
    assert not first.has_ended
    third = client.feed(client.begin(method), MESSAGE[:2500])
    assert (first.status, first.releases) == (RESOURCE_EXHAUSTED, 1)
    assert "more than 4000 bytes together" in first.message
    for stream, begun in ((second, 2000), (third, 2500)):
        client.end(client.feed(stream, MESSAGE[begun:]))
        until(lambda stream=stream: stream.releases)
        assert stream.status == 0
    assert client.application.front_end.unfinished.total == 0
