from __future__ import annotations

import pytest

from tests.unit.core.grpc.grpc_client import Client, with_client
from tests.unit.core.grpc.infer_messages import echo, infer_request
from tests.unit.fake_engine import FakeEngine
from trident.core.frontend.access import GRPC, parse_restricted
from trident.core.grpc.application import GrpcOptions
from trident.core.observability.switches import SWITCHES

CHECK = "/grpc.health.v1.Health/Check"
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
def test_what_is_no_call_is_refused_in_words_of_http(fields: dict[str, str], status: str) -> None:
    def test(client: Client) -> None:
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

    with_client(FakeEngine(), test)


@pytest.mark.parametrize("content_type", ["application/grpc", "application/grpc+proto", "application/grpc;x=y"])
def test_the_content_types_of_grpc_are_taken(content_type: str) -> None:
    def test(client: Client) -> None:
        assert client.call("ServerLive", b"", {"content-type": content_type}).status == 0

    with_client(FakeEngine(), test)


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
def test_a_call_may_be_refused_by_its_head(method: str, metadata: dict[str, str], status: int, text: str) -> None:
    def test(client: Client) -> None:
        stream = client.begin(method, metadata)
        assert (stream.status, stream.message) == (status, text)
        assert stream.trailers[":status"] == "200"
        assert ("grpc-accept-encoding" in stream.trailers) == ("grpc-encoding" in metadata)
        assert stream.releases == 1

    with_client(FakeEngine(), test)


def test_restricted_groups_need_their_metadata() -> None:
    restricted = parse_restricted(["health,inference:Key=secret"], GRPC)
    infer = infer_request()

    def test(client: Client) -> None:
        for metadata in ({}, {"triton-grpc-protocol-key": "other"}):
            for method in ("ServerLive", "ServerReady", "ModelReady", CHECK, "ModelInfer", "ModelStreamInfer"):
                stream = client.begin(method, metadata)
                assert stream.status == UNAVAILABLE
                expected = "This protocol is restricted, expecting header 'triton-grpc-protocol-Key'"
                assert stream.message == expected
        opened = {"triton-grpc-protocol-key": "secret"}
        assert client.call("ModelInfer", infer, opened).status == 0
        assert client.call("ServerMetadata").status == 0

    with_client(FakeEngine(echo), test, GrpcOptions(restricted=restricted))


def test_a_head_serves_all_calls_but_for_its_volatile_fields() -> None:
    def test(client: Client) -> None:
        application = client.application
        fields = ((b":method", b"POST"), (b":path", b"/inference.GRPCInferenceService/ModelInfer"))
        head = application.parse_head((*fields, (b"content-type", b"application/grpc"), (b"my-a", b"1")))
        other = application.with_volatile(head, ((b"grpc-timeout", b"2S"), (b"x-request-id", b"r")))
        assert (head.timeout_s, other.timeout_s) == (None, 2.0)
        assert head.method is other.method
        assert other.metadata.text("x-request-id") == "r"
        assert (head.forwarded, other.forwarded) == ((("my-a", "1"),), (("my-a", "1"), ("x-request-id", "r")))

    with_client(FakeEngine(), test, GrpcOptions(header_forward_pattern="my-|x-"))


@pytest.mark.parametrize("log_calls", [True, False])
def test_a_line_for_each_call_is_in_the_log_if_it_is_wanted(log_calls: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(1, "trident.grpc")

    def test(client: Client) -> None:
        client.call("ServerLive")
        client.begin("Nope")

    SWITCHES.set(verbose=int(log_calls))
    with_client(FakeEngine(), test)
    lines = [record.getMessage() for record in caplog.records if "gRPC request" in record.getMessage()]
    expected = [f"gRPC request: /inference.GRPCInferenceService/{name}" for name in ("ServerLive", "Nope")]
    assert lines == (expected if log_calls else [])
