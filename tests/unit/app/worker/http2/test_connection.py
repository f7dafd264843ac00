from __future__ import annotations

import logging
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

from tests.unit.app.worker.http2.raw_client import (
    HEADERS,
    TRAILERS,
    Call,
    Frame,
    RecordingApplication,
    cut,
    headers_frame,
    hold,
    split,
)
from tests.unit.app.worker.socket_pairs import socket_pair
from tests.unit.core.waiting.hub_thread import until
from trident.app.sites.site import Http2Port
from trident.app.worker.connection import CoarseClock
from trident.app.worker.http2 import frames
from trident.app.worker.http2.connection import Http2Connection, Http2Connections, Http2Service
from trident.app.worker.http2.frames import Http2Code, Http2Limits

GREETING = frames.PREFACE + frames.settings({})
LARGE = 4 << 20


class Bench:
    """A service with connections over socket pairs."""

    def __init__(self, application: RecordingApplication, limits: Http2Limits | None = None, **port: float) -> None:
        self.application = application
        self.connections = Http2Connections(CoarseClock(), 10)
        port_ = Http2Port(application=application, limits=limits or Http2Limits(), **port)
        self.service = Http2Service(port_, self.connections)
        self.clients: list[Client] = []

    def connect(self, greeting: bytes = GREETING) -> Client:
        self.clients.append(Client(self.service))
        self.clients[-1].send(greeting)
        return self.clients[-1]

    def pass_time(self, seconds: float) -> None:
        self.connections.clock.now += seconds
        self.connections.sweep()

    def close(self) -> None:
        for client in self.clients:
            client.connection.close()
            client.socket.close()


class Client:
    def __init__(self, service: Http2Service) -> None:
        ours, self.socket = socket_pair()
        self.connection = Http2Connection(ours, "", service)
        self._rest = b""

    def send(self, *parts: bytes) -> None:
        self.socket.sendall(b"".join(parts))

    def request(self, stream: int, content: bytes = b"hello") -> None:
        self.send(headers_frame(stream), frames.frame(frames.DATA, frames.END_STREAM, stream, content))

    def frames_until(self, is_last: Callable[[Frame], bool]) -> list[Frame]:
        """The frames up to one for which `is_last` is true."""
        found: list[Frame] = []
        while not any(map(is_last, found)):
            received = self.socket.recv(1 << 20)
            assert received, f"the connection ended after {found}"
            found += self._whole_frames(received)
        return found

    def frames_until_end(self) -> list[Frame]:
        whole = b""
        while received := self.socket.recv(1 << 20):
            whole += received
        return self._whole_frames(whole)

    def _whole_frames(self, received: bytes) -> list[Frame]:
        found, self._rest = cut(self._rest + received)
        return found


def ends(stream: int) -> Callable[[Frame], bool]:
    return lambda frame: frame.stream == stream and bool(frame.flags & frames.END_STREAM)


MakeBench = Callable[..., Bench]


@pytest.fixture
def bench() -> Iterator[MakeBench]:
    made: list[Bench] = []

    def make(application: RecordingApplication | None = None, **more: Any) -> Bench:
        made.append(Bench(application or RecordingApplication(), **more))
        return made[-1]

    yield make
    for each in made:
        each.close()


def test_answers_of_one_iteration_are_sent_together(bench: MakeBench) -> None:
    made = bench(RecordingApplication(answer=hold))
    client = made.connect()
    client.frames_until(lambda frame: frame.kind == frames.SETTINGS and frame.flags & frames.ACK == frames.ACK)
    for stream in (1, 3, 5):
        client.request(stream)
    until(lambda: [call.events for call in made.application.calls] == [["end"]] * 3)
    for call in made.application.calls:
        call.stream.send(HEADERS, (b"x",), 1, TRAILERS)
        call.stream.release()
    received = client.socket.recv(1 << 16)
    assert [frame.stream for frame in split(received) if frame.kind == frames.DATA] == [1, 3, 5]


def test_large_message_is_received_into_the_memory_of_its_call(bench: MakeBench) -> None:
    content = bytes(range(256)) * (LARGE // 256)

    def give_memory(call: Call) -> None:
        call.memory = bytearray(LARGE)

    made = bench(RecordingApplication(began=give_memory))
    client = made.connect()
    client.send(headers_frame(1), frames.frame(frames.DATA, frames.END_STREAM, 1, content))
    until(lambda: made.application.calls and made.application.calls[0].events == ["end"])
    (call,) = made.application.calls
    assert call.content == content


def wide_client(made: Bench) -> Client:
    """A client whose windows take an answer of LARGE bytes."""
    client = made.connect(frames.PREFACE + frames.settings({frames.INITIAL_WINDOW_SIZE: LARGE}))
    client.send(frames.window_update(0, LARGE))
    return client


def send_large(call: Call) -> None:
    call.stream.send(HEADERS, (bytes(LARGE),), LARGE, TRAILERS)
    call.stream.release()


def test_slow_reader_is_not_read_while_others_are_served(bench: MakeBench) -> None:
    made = bench(RecordingApplication(answer=send_large))
    slow = wide_client(made)
    slow.request(1)
    until(lambda: slow.connection.is_held_up())
    slow.request(3)
    made.application.answer = lambda call: (call.stream.send(HEADERS, (b"x",), 1, TRAILERS), call.stream.release())[0]
    quick = made.connect()
    quick.request(1)
    quick.frames_until(ends(1))
    assert len(made.application.calls) == 2
    found = slow.frames_until(ends(3))
    assert sum(len(frame.content) for frame in found if frame.kind == frames.DATA) == LARGE + 1


def test_answers_to_a_slow_client_are_copied_out_of_shared_memory(bench: MakeBench) -> None:
    memory = np.arange(LARGE // 4, dtype=np.int32)
    freed = weakref.ref(memory)
    answers = [memory]

    def send_shared(call: Call) -> None:
        part = answers.pop()
        call.stream.send(HEADERS, (part.view(np.uint8).data,), LARGE, TRAILERS)

    made = bench(RecordingApplication(answer=send_shared), shares_memory=True)
    client = wide_client(made)
    client.request(1)
    until(lambda: client.connection.is_held_up())
    del memory
    assert freed() is not None
    made.pass_time(3.0)
    assert freed() is None
    assert made.application.calls[0].events == ["end", "leave_shared"]
    found = client.frames_until(ends(1))
    content = b"".join(frame.content for frame in found if frame.kind == frames.DATA)
    assert content == np.arange(LARGE // 4, dtype=np.int32).tobytes()


def test_the_calls_of_a_client_that_disconnects_are_cancelled(bench: MakeBench) -> None:
    made = bench(RecordingApplication(answer=hold))
    client = made.connect()
    client.request(1)
    until(lambda: made.application.calls and made.application.calls[0].events)
    assert made.connections.in_flight() == 1
    client.socket.close()
    until(lambda: not made.connections.open)
    assert made.application.calls[0].events == ["end", "cancel"]


def test_a_connection_drains_and_ends_after_its_last_answer(bench: MakeBench) -> None:
    made = bench(RecordingApplication(answer=hold))
    client = made.connect()
    client.request(1)
    until(lambda: made.application.calls)
    made.connections.close_idle()
    assert made.application.is_exiting
    (ping,) = [frame for frame in client.frames_until(is_ping) if is_ping(frame)]
    client.request(3)  # the client did not know yet
    client.send(frames.frame(frames.PING, frames.ACK, 0, ping.content))
    (goaway,) = client.frames_until(lambda frame: frame.kind == frames.GOAWAY)
    assert goaway.content == bytes((0, 0, 0, 3, 0, 0, 0, Http2Code.NO_ERROR))
    for call in made.application.calls:
        call.stream.send(HEADERS, (b"x",), 1, TRAILERS)
        call.stream.release()
    found = client.frames_until_end()
    assert [frame.stream for frame in found if frame.kind == frames.DATA] == [1, 3]
    client.socket.close()
    until(lambda: not made.connections.open)


def is_ping(frame: Frame) -> bool:
    return frame.kind == frames.PING and not frame.flags


def test_a_failure_of_the_application_ends_the_connection_and_is_logged(
    bench: MakeBench, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(call: Call) -> None:
        raise ZeroDivisionError("in a call")

    client = bench(RecordingApplication(answer=fail)).connect()
    with caplog.at_level(logging.ERROR, "trident.grpc"):
        client.request(1)
        found = client.frames_until_end()
    assert found[-1].content[4:] == bytes((0, 0, 0, Http2Code.INTERNAL_ERROR)) + b"internal error"
    assert "in a call" in caplog.text


def test_idle_connections_make_room(bench: MakeBench) -> None:
    made = bench(RecordingApplication(answer=hold))
    busy, idle = made.connect(), made.connect()
    busy.request(1)
    until(lambda: made.application.calls)
    made.connections.sweep(others=9)
    found = idle.frames_until(lambda frame: frame.kind == frames.GOAWAY)
    assert found
    assert made.connections.in_flight() == 1
    assert busy.connection.is_idle() is False
