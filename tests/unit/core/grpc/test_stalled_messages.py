from __future__ import annotations

import pytest

from core.grpc.options import GrpcOptions
from tests.unit.core.grpc.grpc_client import Client, frame, with_client
from tests.unit.core.grpc.infer_messages import echo, infer_request
from tests.unit.core.waiting.hub_thread import until
from tests.unit.fake_engine import FakeEngine

DEADLINE_EXCEEDED = 4
MESSAGE = frame(infer_request(count=1000))


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
@pytest.mark.parametrize("size", [3, 100])
def test_half_a_message_and_then_silence_ends_the_call(method: str, size: int) -> None:
    def test(client: Client) -> None:
        stalled = client.application.front_end.stalled
        stream = client.feed(client.begin(method), MESSAGE[:size])
        stalled.expire()
        client.feed(stream, MESSAGE[size : size + 1])
        stalled.expire()
        assert not stream.has_ended
        stalled.expire()
        assert (stream.status, stream.message) == (DEADLINE_EXCEEDED, "the request was not received in time")
        assert stalled._seen == {}

    with_client(FakeEngine(echo), test)


def test_between_two_messages_a_client_may_wait() -> None:
    def test(client: Client) -> None:
        stalled = client.application.front_end.stalled
        stream = client.feed(client.begin("ModelStreamInfer"), MESSAGE[:100], MESSAGE[100:])
        until(lambda: stream.body)
        for _ in range(3):
            stalled.expire()
        assert not stream.has_ended
        assert stalled._seen == {}
        gone = client.feed(client.begin("ModelInfer"), MESSAGE[:100])
        assert gone.receiver is not None
        gone.receiver.cancel()
        assert stalled._seen == {}

    with_client(FakeEngine(echo), test)


def test_a_client_that_the_server_keeps_waiting_is_not_late() -> None:
    def test(client: Client) -> None:
        stalled = client.application.front_end.stalled
        stream = client.begin("ModelStreamInfer", window=0)
        for _ in range(2):
            client.feed(stream, MESSAGE)
        until(lambda: stream.unsent)
        stream.unsent = 2 << 20
        client.feed(stream, MESSAGE, MESSAGE[:100])
        assert stream.is_paused
        for _ in range(3):
            stalled.expire()
        assert not stream.has_ended

    with_client(FakeEngine(echo), test, GrpcOptions(stream_requests=100))
