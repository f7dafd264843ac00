"""Properties of every call: its head, its line in the access log, and its count in the metrics."""

from __future__ import annotations

import json
import re

import pytest

from tests.unit.core.grpc.grpc_client import echo, infer_request, on_hub, serve
from tests.unit.fake_engine import FakeEngine
from trident.core.errors import BackendFailed
from trident.core.grpc.front_end import GrpcOptions
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import InferenceResponse
from trident.core.observability.switches import SWITCHES

UNIMPLEMENTED, INTERNAL, UNAVAILABLE = 12, 13, 14


@pytest.mark.parametrize(
    ("fields", "status"),
    [
        ({":method": "GET"}, "405"),
        ({"content-type": "application/json"}, "415"),
        ({"content-type": "application/grpc-web+proto"}, "415"),
        ({"content-type": "application/grpcx"}, "415"),
    ],
)
@on_hub
def test_requests_that_are_not_grpc_get_an_http_error(fields: dict[str, str], status: str) -> None:
    client = serve(FakeEngine())
    stream = client.begin("ServerLive", fields)
    assert stream.receiver is not None
    stream.receiver.take(b"{}")
    assert not stream.headers
    stream.receiver.end()
    assert stream.headers[":status"] == status
    assert stream.headers.get("allow") == ("POST" if status == "405" else None)
    assert b"this port serves gRPC" in stream.body
    assert stream.has_ended
    assert stream.releases == 1


@pytest.mark.parametrize("method", ["ServerLive", "ModelReady", "/grpc.health.v1.Health/Check"])
@on_hub
def test_a_request_for_health_has_a_small_limit(method: str) -> None:
    client = serve(FakeEngine())
    stream = client.feed(client.begin(method), b"\0\0\1\0\1")
    assert (stream.status, stream.message) == (8, "Received message larger than max (65537 vs. 65536)")


@pytest.mark.parametrize(
    ("method", "metadata", "status", "text"),
    [
        ("Nope", {}, UNIMPLEMENTED, "unknown method /inference.GRPCInferenceService/Nope"),
        ("/other.Service/Do", {}, UNIMPLEMENTED, "unknown method /other.Service/Do"),
        ("ServerLive", {"grpc-encoding": "br"}, UNIMPLEMENTED, "Compression algorithm 'br' is not supported"),
        ("ServerLive", {"grpc-timeout": "1x"}, INTERNAL, "invalid grpc-timeout '1x'"),
        ("ServerLive", {"grpc-timeout": "123456789S"}, INTERNAL, "invalid grpc-timeout '123456789S'"),
    ],
)
@on_hub
def test_calls_with_invalid_headers_are_rejected(method: str, metadata: dict[str, str], status: int, text: str) -> None:
    client = serve(FakeEngine())
    stream = client.begin(method, metadata)
    assert (stream.status, stream.message) == (status, text)
    assert stream.trailers[":status"] == "200"
    assert ("grpc-accept-encoding" in stream.trailers) == ("grpc-encoding" in metadata)
    assert stream.releases == 1


@on_hub
def test_calls_share_a_parsed_head_except_for_volatile_fields() -> None:
    client = serve(FakeEngine(), GrpcOptions(header_forward_pattern="my-|x-"))
    application = client.application
    fields = ((b":method", b"POST"), (b":path", b"/inference.GRPCInferenceService/ModelInfer"))
    head = application.parse_head((*fields, (b"content-type", b"application/grpc"), (b"my-a", b"1")))
    other = application.with_volatile(head, ((b"grpc-timeout", b"2S"), (b"x-request-id", b"r")))
    assert (head.timeout_s, other.timeout_s) == (None, 2.0)
    assert head.method is other.method
    assert other.metadata.text("x-request-id") == "r"
    assert (head.forwarded, other.forwarded) == ((("my-a", "1"),), (("my-a", "1"), ("x-request-id", "r")))


RESPONSE_SIZE = 51
PATH = "/inference.GRPCInferenceService/"


def respond(request: InferenceRequest) -> InferenceResponse:
    if request.id == "bad":
        return InferenceResponse.failed(request, BackendFailed("no"))
    return echo(request)


def lines(caplog: pytest.LogCaptureFixture, scope: str) -> list[str]:
    """The lines of some calls, without their durations."""
    SWITCHES.set(access=scope)
    caplog.set_level(1)

    @on_hub
    def call() -> None:
        client = serve(FakeEngine(respond))
        client.call("ModelInfer", infer_request("r 1"))
        client.call("ModelInfer", infer_request("bad"))
        client.call("ServerLive")
        client.begin("Nope")
        gone = client.feed(client.begin("ModelStreamInfer"), bytes(3))
        assert gone.receiver is not None
        gone.receiver.cancel()

    call()
    records = [record for record in caplog.records if record.name == "trident.access"]
    assert all(record.__dict__["duration_ms"] >= 0 for record in records)
    return [re.sub(r"duration_ms=[0-9.]+", "", record.getMessage()) for record in records]


def test_access_log_has_a_line_for_each_call(caplog: pytest.LogCaptureFixture) -> None:
    assert lines(caplog, "false") == []
    written = lines(caplog, "true")
    first = f"received_bytes={5 + len(infer_request('r 1'))} sent_bytes={5 + RESPONSE_SIZE}"
    second = f"received_bytes={5 + len(infer_request('bad'))} sent_bytes=0"
    assert written == [
        f'127.0.0.1 "gRPC {PATH}ModelInfer" OK  {first} request_id={json.dumps("r 1")} model=simple version=3',
        f'127.0.0.1 "gRPC {PATH}ModelInfer" INTERNAL  {second} request_id=bad model=simple',
        f'127.0.0.1 "gRPC {PATH}Nope" UNIMPLEMENTED  received_bytes=0 sent_bytes=0',
        f'127.0.0.1 "gRPC {PATH}ModelStreamInfer" CANCELLED  received_bytes=3 sent_bytes=0',
    ]
