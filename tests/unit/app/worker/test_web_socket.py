"""Streams on a WebSocket, from the client's frames to an engine of the test and back.

Source: docs/spec/streams.md.
"""

from __future__ import annotations

import json
import struct
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import gevent
import numpy as np
import pytest
from gunicorn.config import Config
from websockets.client import ClientProtocol
from websockets.frames import Frame, Opcode
from websockets.http11 import Response
from websockets.uri import parse_uri

from tests.unit.app.worker.socket_pairs import LIMIT_S, socket_pair
from tests.unit.core.http.streaming_engine import StreamingEngine, end, failed, said
from tests.unit.core.waiting.hub_thread import until
from tests.unit.fake_engine import FakeEngine, FakeModel
from trident.app.worker.connection import CoarseClock, Connections, Stage
from trident.app.worker.http1.connection import Http1Connection, Http1Service
from trident.app.worker.listening_sockets import ConnectionLimits
from trident.core.config.spec import ModelSpec, SequenceSpec
from trident.core.errors import BackendFailed, ErrorCode, InvalidRequest, ModelNotReady, SequenceNotFound, ServerError
from trident.core.frontend.access import AuthTokens, Scope
from trident.core.frontend.gevent_bridge import GeventBridge
from trident.core.http import stream as model_stream
from trident.core.http.application import V2Application
from trident.core.http.front_end import HttpOptions
from trident.core.inference.pending_request import CancelCause, PendingRequest
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import InferenceResponse, Origin, OutputTensor

FINAL = "triton_final_response"
ADDRESS = "ws://h/v2/models/simple/stream"
TOKEN = "0123456789abcdef"


def echoed(request: InferenceRequest) -> InferenceResponse:
    numbers = np.frombuffer(bytes(request.inputs[0].data), np.int32)
    output = OutputTensor("OUT", "INT32", (len(numbers),), numbers)
    return InferenceResponse("simple", 3, [output], id=request.id)


def ask(*numbers: int, id: str = "") -> str:
    tensor = {"name": "IN", "datatype": "INT32", "shape": [len(numbers)], "data": list(numbers)}
    return json.dumps({"id": id, "inputs": [tensor]})


class Stream:
    """A client's end of a WebSocket that a greenlet serves with `engine`."""

    def __init__(self, engine: FakeEngine, query: str = "", **options: Any) -> None:
        ours, self.socket = socket_pair()
        self.bridge = GeventBridge(gevent.get_hub())
        headers = options.pop("headers", {})
        application = V2Application(engine, HttpOptions(**options), self.bridge)
        self.connections = Connections(CoarseClock(), ConnectionLimits(), 10)
        service = Http1Service(application, ("127.0.0.1", 8000), Config(), self.connections)
        self.connection = Http1Connection(ours, ("1.2.3.4", 5), service)
        self.serving = gevent.spawn(self.connection.serve)
        self.protocol = ClientProtocol(parse_uri(ADDRESS + query), max_size=None)
        request = self.protocol.connect()
        request.headers.update(headers)
        self.protocol.send_request(request)
        self.flush()
        self.events: list[Any] = []
        self.response: Response = self.event()
        if self.response.status_code == 101:
            self.wait_for(Stage.STREAM)

    def flush(self) -> None:
        self.socket.sendall(b"".join(self.protocol.data_to_send()))

    def event(self) -> Any:
        while not self.events:
            part = self.socket.recv(65536)
            if part:
                self.protocol.receive_data(part)
            else:
                self.protocol.receive_eof()
            self.events += self.protocol.events_received()
            assert part or self.events, "the connection ended"
        return self.events.pop(0)

    def send(self, message: str | bytes) -> None:
        if isinstance(message, str):
            self.protocol.send_text(message.encode())
        else:
            self.protocol.send_binary(message)
        self.flush()

    def receive(self) -> Frame:
        frame: Frame = self.event()
        return frame

    def answer(self) -> dict[str, Any]:
        frame = self.receive()
        assert frame.opcode is Opcode.TEXT, frame
        document: dict[str, Any] = json.loads(frame.data)
        return document

    def close_code(self) -> int:
        frame = self.receive()
        assert frame.opcode is Opcode.CLOSE, frame
        assert self.protocol.close_rcvd is not None
        return self.protocol.close_rcvd.code

    def wait_for(self, phase: Stage) -> None:
        until(lambda: self.connection.stage is phase)

    def pass_time(self, seconds: float) -> None:
        self.connections.clock.now += seconds
        self.connections.sweep()

    def close(self) -> None:
        self.socket.close()
        self.serving.join(LIMIT_S)
        assert self.serving.successful()
        assert self.connections.open == set()
        self.bridge.close()


@pytest.fixture
def made() -> Iterator[list[Stream]]:
    """The streams of a test, which end with it."""
    streams: list[Stream] = []
    yield streams
    for each in streams:
        each.close()


def opened(made: list[Stream], engine: FakeEngine, query: str = "", **options: Any) -> Stream:
    made.append(Stream(engine, query, **options))
    return made[-1]


def test_json_is_answered_with_json_and_a_final_flag(made: list[Stream]) -> None:
    stream = opened(made, FakeEngine(echoed))
    stream.send(ask(1, 2, id="7"))
    output = {"name": "OUT", "datatype": "INT32", "shape": [2], "data": [1, 2]}
    answer = {"id": "7", "model_name": "simple", "model_version": "3", "parameters": {FINAL: True}, "outputs": [output]}
    assert stream.answer() == answer


def test_binary_messages_begin_with_the_length_of_their_json(made: list[Stream]) -> None:
    stream = opened(made, FakeEngine(echoed))
    tensor = {"name": "IN", "datatype": "INT32", "shape": [2], "parameters": {"binary_data_size": 8}}
    text = json.dumps({"parameters": {"binary_data_output": True}, "inputs": [tensor]}).encode()
    stream.send(struct.pack("<I", len(text)) + text + struct.pack("<2i", 5, 6))
    frame = stream.receive()
    (length,) = struct.unpack_from("<I", frame.data)
    assert frame.opcode is Opcode.BINARY
    assert json.loads(frame.data[4 : 4 + length])["outputs"][0]["parameters"] == {"binary_data_size": 8}
    assert frame.data[4 + length :] == struct.pack("<2i", 5, 6)


def test_chunks_are_raw_content_in_both_directions(made: list[Stream]) -> None:
    stream = opened(made, FakeEngine(echoed), "?binary=chunk&answers=chunk")
    stream.protocol.send_binary(struct.pack("<i", 1), fin=False)
    stream.protocol.send_continuation(struct.pack("<i", 2), fin=True)
    stream.flush()
    frame = stream.receive()
    assert (frame.opcode, frame.data) == (Opcode.BINARY, struct.pack("<2i", 1, 2))


@pytest.mark.parametrize(
    ("message", "error"),
    [
        ("[", "failed to parse the request JSON buffer"),
        (b"\xff\0\0\0{}", "a binary message of 6 bytes does not begin with the length of its JSON"),
        ('{"id": "9"}', "Unable to parse 'inputs'"),
        ('{"id": "9", "inputs": [NaN]}', "Input must set only one of the following fields: 'data'"),
    ],
)
def test_stream_continues_after_an_error_response(made: list[Stream], message: str | bytes, error: str) -> None:
    stream = opened(made, FakeEngine(echoed))
    stream.send(message)
    answer = stream.answer()
    assert answer["error"].startswith(error)
    assert answer.get("id") == ("9" if '"9"' in str(message) else None)
    assert answer["parameters"] == {FINAL: True}
    stream.send(ask(1))
    assert stream.answer()["outputs"][0]["data"] == [1]


def test_refusals_have_the_ids_of_their_requests_while_the_model_is_looked_up(made: list[Stream]) -> None:
    """Front ends ask the engine for a model that does not serve, and other answers are sent meanwhile."""

    class Unloaded(FakeEngine):
        is_loaded = True

        def model(self, name: str, version: int = -1) -> FakeModel:
            if self.is_loaded:
                return super().model(name, version)
            gevent.sleep(0)
            raise ModelNotReady(f"model '{name}' is still being loaded", model=name)

    engine = Unloaded(echoed)
    stream = opened(made, engine)
    engine.is_loaded = False
    text = ask(1, id="3").encode()
    stream.protocol.send_text(ask(1, id="1").encode())
    stream.protocol.send_text(ask(1, id="2").encode())
    stream.protocol.send_binary(struct.pack("<I", len(text)) + text)
    stream.protocol.send_text(ask(1).encode())
    stream.flush()
    assert [stream.answer()["id"] for _ in range(3)] == ["1", "2", "3"]
    assert "id" not in stream.answer()


def test_non_utf_8_strings_are_not_sent_as_text(made: list[Stream]) -> None:
    def of_bytes(request: InferenceRequest) -> InferenceResponse:
        output = OutputTensor("OUT", "BYTES", (1,), np.array([bytes(request.inputs[0].data)], object))
        return InferenceResponse("simple", 3, [output], id=request.id)

    stream = opened(made, FakeEngine(of_bytes))
    stream.send(ask(-1, id="a"))
    stream.send(ask(0x20202041, id="b"))
    refused, answer = stream.answer(), stream.answer()
    assert "strings that are not UTF-8" in refused["error"]
    assert refused["id"] == "a"
    assert answer["outputs"][0]["data"] == ["A   "]
    chunks = opened(made, FakeEngine(of_bytes), "?binary=chunk&answers=chunk")
    for number, opcode in ((-1, Opcode.BINARY), (0x20202041, Opcode.TEXT)):
        chunks.send(struct.pack("<i", number))
        frame = chunks.receive()
        assert (frame.opcode, frame.data) == (opcode, struct.pack("<i", number))


def test_answers_of_a_decoupled_model_are_sent_immediately(made: list[Stream]) -> None:
    script = [said("one"), failed(BackendFailed("too loud")), said("two"), end()]
    stream = opened(made, StreamingEngine(lambda request: script))
    stream.send(ask(1))
    answers = [stream.answer() for _ in script]
    assert [answer["parameters"][FINAL] for answer in answers] == [False, False, False, True]
    assert [answer.get("error") for answer in answers] == [None, "too loud", None, None]
    assert [answer.get("outputs", [{}])[0].get("data") for answer in answers[::2]] == [["one"], ["two"]]
    assert answers[3]["outputs"] == []


class HoldingEngine(FakeEngine):
    """Keeps the requests, for the test to answer."""

    def __init__(self) -> None:
        super().__init__(lambda request: None)
        self.held: list[PendingRequest] = []

    def submit(self, pending: PendingRequest) -> None:
        super().submit(pending)
        self.held.append(pending)

    def wait_for(self, count: int) -> None:
        until(lambda: len(self.held) >= count)


def test_answers_are_in_the_order_of_the_requests(made: list[Stream]) -> None:
    engine = HoldingEngine()
    stream = opened(made, engine)
    for name in "ab":
        stream.send(ask(1, id=name))
    engine.wait_for(2)
    for pending in reversed(engine.held):
        pending.on_response(echoed(pending.request))
    assert [stream.answer()["id"] for _ in "ab"] == ["a", "b"]


def test_client_with_too_many_requests_in_flight_is_not_read(
    made: list[Stream], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(model_stream, "MOST_REQUESTS", 2)
    engine = HoldingEngine()
    stream = opened(made, engine)
    for name in "abc":
        stream.send(ask(1, id=name))
    engine.wait_for(2)
    gevent.sleep(0.02)
    assert len(engine.held) == 2
    engine.held[0].on_response(echoed(engine.held[0].request))
    engine.wait_for(3)


def test_disconnect_cancels_requests(made: list[Stream]) -> None:
    engine = HoldingEngine()
    stream = opened(made, engine)
    stream.send(ask(1))
    engine.wait_for(1)
    stream.protocol.send_close(1000)
    stream.flush()
    assert stream.close_code() == 1000
    assert engine.cancelled == [engine.held[0].request]


class SequenceEngine(HoldingEngine):
    """Its model has sequences."""

    def model_spec(self, name: str, version: int = -1) -> ModelSpec:
        sequence = SequenceSpec(is_direct=False, slots=1, max_idle_ns=10**9, preferred_batch_sizes=())
        return replace(super().model_spec(name, version), sequence=sequence)

    def take(self) -> PendingRequest:
        """The oldest request that is not answered."""
        self.wait_for(1)
        return self.held.pop(0)


def part(*, end: bool = False, **parameters: Any) -> str:
    return json.dumps({**json.loads(ask(1)), "parameters": {**parameters, **({"sequence_end": True} if end else {})}})


def flags(pending: PendingRequest) -> str:
    request = pending.request
    assert request.correlation_id
    return ("s" if request.sequence_start else "") + ("e" if request.sequence_end else "")


def succeed(stream: Stream, pending: PendingRequest) -> None:
    pending.on_response(echoed(pending.request))
    assert "error" not in stream.answer()


def fail(stream: Stream, pending: PendingRequest, origin: Origin, error: ServerError | None = None) -> None:
    refusal = error or BackendFailed("no", code=ErrorCode.CANCELLED)
    pending.on_response(InferenceResponse.failed(pending.request, refusal, origin))
    assert "error" in stream.answer()


@pytest.mark.parametrize("origin", Origin)
def test_a_first_request_that_was_not_accepted_begins_no_sequence(made: list[Stream], origin: Origin) -> None:
    engine = SequenceEngine()
    stream = opened(made, engine)
    stream.send("[")  # nor does one that cannot be read
    assert "error" in stream.answer()
    for _ in range(3):
        stream.send(part())
    first = engine.take()
    assert flags(first) == "s"
    gevent.sleep(0.01)
    assert engine.held == [], "the others wait: one of them may be the first"
    fail(stream, first, origin)
    left = [] if origin is not Origin.REJECTED else [engine.take()]
    assert [(flags(each), each.cancelled) for each in left] == [("e", CancelCause.CLIENT)] * len(left)
    second = engine.take()
    if origin is Origin.FAILED:  # the model failed, and has the sequence
        assert (flags(second), second.request.correlation_id) == ("", first.request.correlation_id)
    else:
        assert flags(second) == "s"
        assert second.request.correlation_id != first.request.correlation_id
    succeed(stream, second)
    third = engine.take()
    assert (flags(third), third.request.correlation_id) == ("", second.request.correlation_id)
    succeed(stream, third)


def test_a_last_request_that_was_refused_ends_no_sequence(made: list[Stream]) -> None:
    engine = SequenceEngine()
    stream = opened(made, engine)
    stream.send(part())
    first = engine.take()
    succeed(stream, first)
    stream.send(part(end=True))
    fail(stream, engine.take(), Origin.REFUSED, InvalidRequest("wrong shape"))
    for expected in ("", "e", "s"):
        stream.send(part(end=expected == "e"))
        pending = engine.take()
        assert flags(pending) == expected
        assert (pending.request.correlation_id == first.request.correlation_id) == (expected != "s")
        succeed(stream, pending)


def test_refused_end_keeps_the_slot_of_a_newer_sequence(made: list[Stream]) -> None:
    engine = SequenceEngine()
    stream = opened(made, engine)
    stream.send(part())
    first = engine.take()
    succeed(stream, first)
    stream.send(part(end=True))
    stream.send(part())
    last, next_first = engine.take(), engine.take()
    assert (flags(last), flags(next_first)) == ("e", "s")
    fail(stream, last, Origin.REFUSED)
    left = engine.take()
    assert (flags(left), left.cancelled) == ("e", CancelCause.CLIENT)
    assert left.request.correlation_id == first.request.correlation_id
    assert left.request.inputs is first.request.inputs, "those of the last one may be what was refused"
    succeed(stream, next_first)
    stream.send(part())
    assert engine.take().request.correlation_id == next_first.request.correlation_id


@pytest.mark.parametrize("origin", Origin)
def test_first_and_last_request_is_a_whole_sequence(made: list[Stream], origin: Origin) -> None:
    engine = SequenceEngine()
    stream = opened(made, engine)
    for _ in range(2):
        stream.send(part(end=True))
    stream.send(part())
    pending = [engine.take() for _ in range(3)]
    assert [flags(each) for each in pending] == ["se", "se", "s"]
    assert len({each.request.correlation_id for each in pending}) == 3
    for each in pending[:2]:
        fail(stream, each, origin)
    succeed(stream, pending[2])
    stream.send(part())
    assert flags(engine.take()) == ""


def test_request_after_a_lost_sequence_begins_a_new_one(made: list[Stream]) -> None:
    engine = SequenceEngine()
    stream = opened(made, engine)
    stream.send(part())
    succeed(stream, engine.take())
    for _ in range(2):  # the second one was sent before the answer to the first
        stream.send(part())
    for pending in (engine.take(), engine.take()):
        assert flags(pending) == ""
        fail(stream, pending, Origin.REFUSED, SequenceNotFound("it was idle"))
    stream.send(part())
    assert flags(engine.take()) == "s"


def test_requests_that_wait_for_the_first_one_end_with_the_stream(made: list[Stream]) -> None:
    engine = SequenceEngine()
    stream = opened(made, engine)
    for _ in range(3):
        stream.send(part())
    first = engine.take()
    stream.protocol.send_close(1000)
    stream.flush()
    assert stream.close_code() == 1000
    left = engine.take()
    assert (flags(left), left.cancelled) == ("e", CancelCause.CLIENT)
    assert (left.request.correlation_id, first.cancelled) == (first.request.correlation_id, CancelCause.CLIENT)
    first.on_response(InferenceResponse.failed(first.request, BackendFailed("gone"), Origin.CANCELLED))
    assert engine.held == []


def test_requests_of_named_sequences_do_not_wait_for_the_first_one(made: list[Stream]) -> None:
    engine = SequenceEngine()
    stream = opened(made, engine)
    stream.send(part())
    stream.send(part(sequence_id=7, sequence_start=True))
    assert [engine.take().request.correlation_id == 7 for _ in range(2)] == [False, True]


def test_stop_answers_open_requests_and_closes_with_1001(made: list[Stream]) -> None:
    engine = HoldingEngine()
    stream = opened(made, engine)
    stream.send(ask(1, id="last"))
    engine.wait_for(1)
    stream.connections.close_idle()
    assert stream.connections.in_flight() == 1
    engine.held[0].on_response(echoed(engine.held[0].request))
    assert stream.answer()["id"] == "last"
    assert stream.close_code() == 1001


@pytest.mark.parametrize(("message", "code"), [(b"x" * 101, 1009), (b"\xff", 1007)])
def test_oversized_or_non_text_message_closes_the_stream(made: list[Stream], message: bytes, code: int) -> None:
    stream = opened(made, FakeEngine(echoed), max_input_size=100)
    stream.protocol.send_text(message)
    stream.flush()
    assert stream.close_code() == code
    assert stream.socket.recv(1) == b""


def test_pings_are_answered_and_sent_and_silence_ends_the_stream(made: list[Stream]) -> None:
    stream = opened(made, FakeEngine(echoed))
    stream.protocol.send_ping(b"there?")
    stream.flush()
    frame = stream.receive()
    assert (frame.opcode, frame.data) == (Opcode.PONG, b"there?")
    stream.pass_time(21)
    assert stream.receive().opcode is Opcode.PING  # which the protocol of the client has answered
    stream.flush()
    stream.send(ask(1))
    stream.answer()
    stream.pass_time(21)
    assert stream.receive().opcode is Opcode.PING
    stream.pass_time(21)
    assert stream.close_code() == 1011


def test_refused_upgrade_gets_an_http_error(made: list[Stream], tmp_path: Path) -> None:
    (tmp_path / "tokens").write_text(TOKEN)
    tokens = AuthTokens(str(tmp_path / "tokens"), Scope.ALL)
    assert opened(made, FakeEngine(), tokens=tokens).response.status_code == 401
    bearer = {"Authorization": f"Bearer {TOKEN}"}
    assert opened(made, FakeEngine(), tokens=tokens, headers=bearer).response.status_code == 101
    assert opened(made, FakeEngine(), headers={"Origin": "http://elsewhere"}).response.status_code == 403
    assert opened(made, FakeEngine(), headers={"Origin": "http://h"}).response.status_code == 101
    assert opened(made, FakeEngine(), "?binary=rows").response.status_code == 400
    engine = FakeEngine()
    engine.versions = {}
    assert opened(made, engine).response.status_code == 404


def test_request_without_an_upgrade_is_refused(made: list[Stream]) -> None:
    stream = opened(made, FakeEngine(), headers={"Origin": "http://elsewhere"})
    stream.socket.sendall(b"GET /v2/models/simple/stream HTTP/1.1\r\nHost: h\r\n\r\n")
    assert b" 426 " in stream.socket.recv(65536)
