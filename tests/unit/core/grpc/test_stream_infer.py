"""ModelStreamInfer, over a stream that only notes what is sent on it."""

from __future__ import annotations

import zlib
from dataclasses import replace
from typing import Any

import gevent
import pytest

from tests.unit.core.grpc.grpc_client import (
    Client,
    ClientStream,
    echo,
    frame,
    infer_request,
    numbers,
    on_hub,
    serve,
    stream_response,
)
from tests.unit.core.waiting.hub_thread import until
from tests.unit.fake_engine import FakeEngine
from trident.core.config.spec import ModelSpec
from trident.core.errors import BackendFailed, ErrorCode
from trident.core.grpc.front_end import GrpcOptions
from trident.core.grpc.status import STATUS_OF_CODE
from trident.core.inference.pending_request import PendingRequest, StreamedRequest
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import InferenceResponse, Origin

CANCELLED, INTERNAL, UNAVAILABLE = 1, 13, 14


class SlowEngine(FakeEngine):
    """Keeps all requests until the test answers them."""

    def __init__(self) -> None:
        super().__init__()
        self.kept: dict[str, PendingRequest] = {}

    def submit(self, pending: PendingRequest) -> None:
        self.kept[pending.request.id] = pending

    def cancel(self, pending: PendingRequest) -> None:
        self.cancelled.append(pending.request)

    def answer(self, identifier: str) -> None:
        pending = self.kept.pop(identifier)
        pending.on_response(echo(pending.request))


class DecoupledEngine(SlowEngine):
    """Its models answer as often as the test wants."""

    def model_spec(self, name: str, version: int = -1) -> ModelSpec:
        return replace(super().model_spec(name, version), decoupled=name == "a%2Fb")


def answers(stream: ClientStream) -> list[Any]:
    return [stream_response(message) for message in stream.messages]


def ids(stream: ClientStream) -> list[str]:
    return [answer.infer_response.id for answer in answers(stream)]


def send(client: Client, stream: ClientStream, *identifiers: str, model: str = "simple", count: int = 4) -> None:
    for identifier in identifiers:
        client.feed(stream, frame(infer_request(identifier, model, count=count)))


def failing(error: Exception, origin: Origin = Origin.FAILED) -> Any:
    def respond(request: InferenceRequest) -> InferenceResponse:
        if request.id == "bad":
            return InferenceResponse.failed(request, error, origin)
        return echo(request)

    return respond


@pytest.mark.parametrize("count", [1000, 100_000])
@on_hub
def test_triton_grpc_error_sends_compressed_responses_before_the_failure(count: int) -> None:
    client = serve(FakeEngine(failing(BackendFailed("no"))), GrpcOptions(compression_level="low"))
    metadata = {"triton_grpc_error": "true", "grpc-accept-encoding": "gzip"}
    stream = client.begin("ModelStreamInfer", metadata)
    send(client, stream, "a", "b", count=count)
    send(client, stream, "bad")
    until(lambda: stream.releases)
    found = [stream_response(zlib.decompress(message, 31)) for _, message in stream.frames]
    assert [each.infer_response.id for each in found] == ["a", "b"]
    assert (stream.status, stream.message) == (INTERNAL, "no")


@pytest.mark.parametrize("mode", ["", "triton_grpc_error"])
@pytest.mark.parametrize("origin", [Origin.REFUSED, Origin.REJECTED, Origin.FAILED])
@pytest.mark.parametrize("code", ErrorCode)
@on_hub
def test_error_origin_decides_how_it_is_answered(code: ErrorCode, origin: Origin, mode: str) -> None:
    client = serve(FakeEngine(failing(BackendFailed("no", code=code), origin)))
    stream = client.begin("ModelStreamInfer", {mode: "true"} if mode else {})
    send(client, stream, "bad")
    until(lambda: stream.messages or stream.releases)
    if mode and origin is not Origin.REFUSED:
        assert (stream.messages, stream.status, stream.message) == ([], STATUS_OF_CODE[code].value, "no")
        return
    (found,) = answers(stream)
    assert (found.error_message, found.infer_response.id) == ("no", "bad")
    names = ("", False) if origin is Origin.REFUSED else ("simple", True)
    parameters = found.infer_response.parameters
    assert (found.infer_response.model_name, "triton_final_response" in parameters) == names
    send(client, stream, "good")
    until(lambda: len(stream.messages) == 2)


def decoupled_answer(pending: PendingRequest, count: int, *, final: bool) -> None:
    response = echo(pending.request)
    response.outputs = response.outputs if count else []
    response.final = final
    pending.on_response(response)


@on_hub
def test_decoupled_model_is_notified_of_sent_responses() -> None:
    engine = DecoupledEngine()
    taken: list[str] = []
    client = serve(engine)
    stream = client.begin("ModelStreamInfer", window=0)
    send(client, stream, "a", "b", model="a%2Fb")
    until(lambda: len(engine.kept) == 2)
    a, b = engine.kept["a"], engine.kept["b"]
    for pending in (a, b):
        assert isinstance(pending, StreamedRequest)
        pending.on_take = lambda request, count: taken.extend([request.request.id] * count)
    decoupled_answer(a, 1, final=False)
    size = stream.unsent
    decoupled_answer(b, 1, final=False)
    decoupled_answer(a, 1, final=False)
    assert taken == []
    stream.take(size)
    assert taken == ["a"]
    stream.take_all()
    assert taken == ["a", "b", "a"]
    decoupled_answer(b, 1, final=False)
    assert taken == ["a", "b", "a", "b"]
    for pending in (a, b):
        decoupled_answer(pending, 0, final=True)
    assert taken == ["a", "b", "a", "b"]


@on_hub
def test_the_end_of_a_stream_cancels_the_requests_of_decoupled_models() -> None:
    engine = DecoupledEngine()
    client = serve(engine)
    stream = client.begin("ModelStreamInfer")
    send(client, stream, "a", model="a%2Fb")
    until(lambda: engine.kept)
    decoupled_answer(engine.kept["a"], 1, final=False)
    assert stream.receiver is not None
    stream.receiver.cancel()
    assert [request.id for request in engine.cancelled] == ["a"]
    decoupled_answer(engine.kept["a"], 1, final=False)
    assert stream.releases == 0
    decoupled_answer(engine.kept["a"], 0, final=True)
    assert len(answers(stream)) == stream.releases == 1


@on_hub
def test_requests_wait_for_the_model_lookup_of_an_earlier_one() -> None:
    engine = FakeEngine(echo)
    engine.knows_models = False
    client = serve(engine)
    stream = client.begin("ModelStreamInfer")
    send(client, stream, "a", "b")
    client.end(stream)
    assert not stream.has_ended
    engine.knows_models = True
    until(lambda: stream.releases)
    assert ids(stream) == ["a", "b"]
    assert stream.pauses == 1
    assert stream.status == 0


@on_hub
def test_a_stream_with_too_many_requests_in_flight_is_paused() -> None:
    engine = SlowEngine()
    client = serve(engine, GrpcOptions(stream_requests=2))
    stream = client.begin("ModelStreamInfer")
    send(client, stream, "a")
    until(lambda: "a" in engine.kept)
    engine.answer("a")
    send(client, stream, "b", "c", "d")
    gevent.sleep(0.01)
    assert set(engine.kept) == {"b", "c"}
    assert stream.is_paused
    client.end(stream)
    engine.answer("b")
    until(lambda: "d" in engine.kept)
    assert not stream.is_paused
    engine.answer("c")
    engine.answer("d")
    assert ids(stream) == ["a", "b", "c", "d"]
    assert stream.status == 0


@on_hub
def test_error_of_a_refused_request_keeps_its_order() -> None:
    engine = SlowEngine()
    client = serve(engine)
    stream = client.begin("ModelStreamInfer")
    send(client, stream, "a")
    client.feed(stream, frame(infer_request("bad", model_version="no number")))
    send(client, stream, "b")
    client.end(stream)
    until(lambda: len(engine.kept) == 2)
    engine.answer("b")
    assert stream.messages == []
    engine.answer("a")
    assert ids(stream) == ["a", "bad", "b"]
    assert [bool(answer.error_message) for answer in answers(stream)] == [False, True, False]


@pytest.mark.parametrize("count", [4, 100_000])
@on_hub
def test_compressed_requests_and_responses_keep_their_order(count: int) -> None:
    metadata = {"grpc-encoding": "gzip", "grpc-accept-encoding": "gzip"}

    def compressed(identifier: str) -> bytes:
        deflater = zlib.compressobj(wbits=31)
        return frame(deflater.compress(infer_request(identifier, count=count)) + deflater.flush(), flag=1)

    client = serve(FakeEngine(echo), GrpcOptions(compression_level="low"))
    stream = client.begin("ModelStreamInfer", metadata)
    client.feed(stream, compressed("a"), frame(infer_request("b", count=4)), compressed("c"))
    client.end(stream)
    until(lambda: stream.releases)
    found = [stream_response(zlib.decompress(each, 31) if flag else each) for flag, each in stream.frames]
    assert [each.infer_response.id for each in found] == ["a", "b", "c"]
    assert numbers(found[2].infer_response) == list(range(count))
    assert stream.status == 0
