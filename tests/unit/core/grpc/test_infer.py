"""ModelInfer, over a stream that only notes what is sent on it."""

from __future__ import annotations

import gc
import threading
import time
import weakref
import zlib
from base64 import b64decode
from typing import Any

import gevent
import numpy as np
import pytest
from tritonclient.grpc import service_pb2 as pb

from tests.project import pure_python_only
from tests.unit.core.grpc.grpc_client import echo, frame, infer_request, infer_response, numbers, on_hub, serve
from tests.unit.core.waiting.hub_thread import until
from tests.unit.fake_engine import FakeEngine
from trident.core.errors import BackendFailed, QueueFull
from trident.core.grpc.front_end import GrpcOptions
from trident.core.grpc.messages import inflate_message
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import InferenceResponse, OutputTensor
from trident.core.inference.tensors import Buffer, bytes_array, pack_bytes
from trident.core.observability.statistics import MetricsSnapshot

INVALID_ARGUMENT, DEADLINE_EXCEEDED, NOT_FOUND, EXHAUSTED, UNIMPLEMENTED, INTERNAL, UNAVAILABLE = 3, 4, 5, 8, 12, 13, 14


@on_hub
def test_load_report_is_a_trailer_in_the_requested_format() -> None:
    class Busy(FakeEngine):
        def metrics(self) -> MetricsSnapshot:
            return MetricsSnapshot()

    client = serve(Busy(echo))
    stream = client.call("ModelInfer", infer_request("a"), {"endpoint-load-metrics-format": "bin"})
    until(lambda: stream.releases == 1)
    assert stream.trailers.keys() == {"grpc-status", "endpoint-load-metrics-bin"}
    assert b"pending_requests" in b64decode(stream.trailers["endpoint-load-metrics-bin"])
    assert numbers(infer_response(stream.messages[0])) == [0, 1, 2, 3]


@on_hub
def test_a_large_message_is_received_in_place() -> None:
    message = frame(infer_request(count=20_000))
    allocated: list[int] = []

    def allocate(size: int) -> Any:
        allocated.append(size)
        return np.empty(size, np.uint8)

    client = serve(FakeEngine(echo), allocate=allocate)
    stream = client.feed(client.begin("ModelInfer"), message[:20])
    at = 20
    while at < len(message):
        assert stream.receiver is not None
        room = stream.receiver.room(7000)
        assert room is not None
        assert len(room) <= 7000
        room[:] = message[at : at + len(room)]
        at += len(room)
        stream.receiver.filled(len(room))
    client.end(stream)
    until(lambda: stream.releases)
    assert numbers(infer_response(stream.messages[0])) == list(range(20_000))
    assert len(allocated) == 1


@on_hub
def test_tensor_of_a_repeated_large_message_is_aligned() -> None:
    message = frame(infer_request("x", count=20_000))
    places: list[int] = []

    def respond(request: InferenceRequest) -> InferenceResponse:
        places.append(np.frombuffer(request.inputs[0].data, np.uint8).__array_interface__["data"][0] % 64)
        return echo(request)

    client = serve(FakeEngine(respond))
    for _ in range(4):
        stream = client.begin("ModelInfer")
        client.end(client.feed(stream, message[:100], message[100:]))
        until(lambda stream=stream: stream.releases)  # type: ignore[misc]
    assert places[-2:] == [0, 0]
    assert any(places[:2])


@on_hub
def test_model_error_has_its_hint_and_retry_delay() -> None:
    def respond(request: InferenceRequest) -> InferenceResponse:
        return InferenceResponse.failed(request, QueueFull("the queue is full: 100 %", hint="add instances… or wait"))

    client = serve(FakeEngine(respond))
    stream = client.call("ModelInfer", infer_request())
    assert stream.status == UNAVAILABLE
    assert stream.trailers["grpc-message"] == "the queue is full: 100 %25"
    assert stream.trailers["trident-hint"] == "add instances? or wait"
    assert stream.trailers["grpc-retry-pushback-ms"] == "1000"


STRINGS = [b"string %d" % number for number in range(10_000)]


def strings_request() -> bytes:
    message = pb.ModelInferRequest(model_name="simple")
    message.inputs.add(name="IN", datatype="BYTES", shape=[len(STRINGS)])
    message.raw_input_contents.append(bytes(pack_bytes(STRINGS)))
    return bytes(message.SerializeToString())


@pure_python_only
@pytest.mark.parametrize(
    ("metadata", "encoding"), [({}, b""), ({"grpc-accept-encoding": "gzip"}, b"gzip")], ids=["plain", "compressed"]
)
@on_hub
def test_many_strings_are_unpacked_and_packed_on_another_thread(metadata: dict[str, str], encoding: bytes) -> None:
    threads: list[threading.Thread] = []

    class Packed(OutputTensor):
        def content(self) -> Buffer:
            threads.append(threading.current_thread())
            return super().content()

    def respond(request: InferenceRequest) -> InferenceResponse:
        threads.append(threading.current_thread())
        output = Packed("OUT", "BYTES", (len(STRINGS),), bytes_array(STRINGS, (len(STRINGS),)))
        return InferenceResponse("simple", 1, [output], id=request.id)

    client = serve(FakeEngine(respond), GrpcOptions(compression_level="low"))
    stream = client.call("ModelInfer", strings_request(), metadata)
    ((flag, message),) = stream.frames
    content = inflate_message(message, encoding, 1 << 30) if flag else message
    assert flag == bool(encoding)
    assert infer_response(content).raw_output_contents[0] == pack_bytes(STRINGS)
    assert len(threads) == 2
    assert threading.current_thread() not in threads
    threads.clear()
    request = pb.ModelInferRequest.FromString(strings_request())
    request.parameters["sequence_id"].int64_param = 7
    assert client.call("ModelInfer", request.SerializeToString()).status == 0
    assert set(threads) == {threading.current_thread()}  # it stays in its order


@on_hub
def test_unexpected_errors_reveal_nothing_to_clients() -> None:
    def respond(request: InferenceRequest) -> InferenceResponse:
        response = echo(request)
        response.outputs = [None]  # type: ignore[list-item]
        return response

    client = serve(FakeEngine(respond))
    stream = client.call("ModelInfer", infer_request())
    assert (stream.status, stream.message) == (INTERNAL, "unexpected error in the server, its log says more")


@pytest.mark.parametrize(
    ("pieces", "status", "text"),
    [
        ([], UNIMPLEMENTED, "/inference.GRPCInferenceService/ModelInfer takes one message, and got none"),
        ([frame(b"")] * 2, UNIMPLEMENTED, "/inference.GRPCInferenceService/ModelInfer takes one message, and got more"),
        ([b"\0\0"], INTERNAL, "the stream ended in the middle of a message"),
        ([frame(b"abc")[:-1]], INTERNAL, "the stream ended in the middle of a message"),
        ([frame(b"", flag=2)], INTERNAL, "a message begins with the flag 2, expected 0 or 1"),
        ([frame(b"", flag=1)], INTERNAL, "a message is marked as compressed, but the call has no grpc-encoding"),
        ([b"\0\x7f\xff\xff\xff"], EXHAUSTED, "Received message larger than max (2147483647 vs. 1000)"),
        ([frame(b"x" * 1001)], EXHAUSTED, "Received message larger than max (1001 vs. 1000)"),
    ],
)
@on_hub
def test_broken_framing_ends_the_call(pieces: list[bytes], status: int, text: str) -> None:
    client = serve(FakeEngine(echo), GrpcOptions(max_message_size=1000))
    stream = client.end(client.feed(client.begin("ModelInfer"), *pieces))
    assert (stream.status, stream.message) == (status, text)
    assert stream.releases == 1


@pytest.mark.parametrize("encoding", ["gzip", "deflate"])
@pytest.mark.parametrize("count", [4, 100_000])
@on_hub
def test_a_compressed_request_is_inflated(encoding: str, count: int) -> None:
    deflater = zlib.compressobj(wbits=31 if encoding == "gzip" else 15)
    content = deflater.compress(infer_request(count=count)) + deflater.flush()
    client = serve(FakeEngine(echo))
    stream = client.begin("ModelInfer", {"grpc-encoding": encoding})
    client.end(client.feed(stream, frame(content, flag=1)))
    until(lambda: stream.releases)
    assert numbers(infer_response(stream.messages[0])) == list(range(count))


@pytest.mark.parametrize(
    ("content", "status", "text"),
    [
        (b"nonsense", INTERNAL, "failed to decompress a message: Error -3"),
        (zlib.compress(b"x" * 100)[:-3], INTERNAL, "failed to decompress a message: it ends before"),
        (zlib.compress(b"x") + b"more", INTERNAL, "failed to decompress a message: there is more after"),
        (zlib.compress(b"\0" * 1001), EXHAUSTED, "Received message larger than max (1001 vs. 1000)"),
        (zlib.compress(b"\0" * 500_000), EXHAUSTED, "Received message larger than max (1001 vs. 1000)"),
    ],
)
@on_hub
def test_broken_and_bombing_compression_ends_the_call(content: bytes, status: int, text: str) -> None:
    client = serve(FakeEngine(echo), GrpcOptions(max_message_size=1000))
    stream = client.begin("ModelInfer", {"grpc-encoding": "deflate"})
    client.end(client.feed(stream, frame(content, flag=1)))
    until(lambda: stream.releases)
    assert stream.status == status
    assert stream.message.startswith(text)


@pytest.mark.parametrize(
    ("level", "accepted", "encoding"),
    [
        ("none", "gzip, deflate", None),
        ("low", "identity, deflate, gzip", "gzip"),
        ("medium", "identity, deflate, gzip", "deflate"),
        ("high", "gzip", "gzip"),
        ("high", "identity", None),
    ],
)
@pytest.mark.parametrize("count", [2000, 100_000])
@on_hub
def test_a_response_is_compressed_at_the_level(level: str, accepted: str, encoding: str | None, count: int) -> None:
    client = serve(FakeEngine(echo), GrpcOptions(compression_level=level))
    stream = client.call("ModelInfer", infer_request(count=count), {"grpc-accept-encoding": accepted})
    assert stream.headers.get("grpc-encoding") == encoding
    ((flag, message),) = stream.frames
    assert flag == (encoding is not None)
    if encoding is not None:
        message = zlib.decompress(message, 31 if encoding == "gzip" else 15)
    assert numbers(infer_response(message)) == list(range(count))


@on_hub
def test_cancelled_call_counts_as_open_until_the_model_answers() -> None:
    kept: list[Any] = []

    class Deaf(FakeEngine):
        """Does not look at cancellations."""

        def submit(self, pending: Any) -> None:
            kept.append(pending)

        def cancel(self, pending: Any) -> None:
            """Ignored."""

    client = serve(Deaf())
    stream = client.send("ModelInfer", infer_request())
    until(lambda: kept)
    assert stream.receiver is not None
    stream.receiver.cancel()
    assert kept[0].cancelled
    assert stream.releases == 0
    kept[0].on_response(echo(kept[0].request))
    assert stream.releases == 1
    assert stream.messages == []


@on_hub
def test_answers_after_the_deadline_are_dropped() -> None:
    """Also within the 20 ms in which deadlines are looked at together."""

    def respond(request: InferenceRequest) -> InferenceResponse:
        until_ns = time.monotonic_ns() + 2_000_000
        while time.monotonic_ns() < until_ns:
            pass
        return echo(request)

    client = serve(FakeEngine(respond))
    stream = client.call("ModelInfer", infer_request("late"), {"grpc-timeout": "2m"})
    assert (stream.status, stream.messages) == (DEADLINE_EXCEEDED, [])
    assert client.call("ModelInfer", infer_request("in time"), {"grpc-timeout": "1M"}).status == 0


@pytest.mark.parametrize("method", ["ModelInfer", "ModelStreamInfer"])
@on_hub
def test_forwarded_metadata_become_parameters(method: str) -> None:
    seen: list[InferenceRequest] = []

    def respond(request: InferenceRequest) -> InferenceResponse:
        seen.append(request)
        return echo(request)

    client = serve(FakeEngine(respond), GrpcOptions(header_forward_pattern="MY"))
    metadata = {"my-name": "é", "other": "x", "grpc-my": "x", "user-agent": "my"}
    assert client.call(method, infer_request(), metadata).status == 0
    assert seen[0].parameters == {"my-name": "é"}
    refused = client.call("ModelInfer", infer_request(), {"triton_my": "1"})
    assert refused.message == "Header 'triton_my' is reserved for Triton usage and cannot be forwarded."


@pytest.mark.parametrize("way", ["answered", "failed", "cancelled", "expired", "refused"])
def test_a_finished_call_is_freed_without_the_garbage_collector(way: str) -> None:
    """Its message may be in shared memory, which others need."""
    memory: list[weakref.ref[Any]] = []

    def allocate(size: int) -> Any:
        array = np.empty(size, np.uint8)
        memory.append(weakref.ref(array))
        return array

    def respond(request: InferenceRequest) -> InferenceResponse | None:
        if way == "failed":
            return InferenceResponse.failed(request, BackendFailed("no", hint="none"))
        return echo(request) if way == "answered" else None

    model = "nope" if way == "refused" else "simple"
    message = frame(infer_request(model=model, count=20_000))

    engine = FakeEngine(respond)

    @on_hub
    def call() -> None:
        client = serve(engine, allocate=allocate)
        metadata = {"grpc-timeout": "1m"} if way == "expired" else {}
        client.call("ModelInfer", infer_request(model=model, count=20_000)) if way in ("answered", "failed") else None
        gc.disable()
        stream = client.begin("ModelInfer", metadata)
        client.end(client.feed(stream, message[:100], message[100:]))
        if way == "cancelled":
            gevent.sleep(0.02)
            assert stream.receiver is not None
            stream.receiver.cancel()
        until(lambda: stream.releases)
        stream.body.clear()
        engine.cancelled.clear()
        until(lambda: not any(ref() is not None for ref in memory))
        assert memory

    try:
        call()
    finally:
        gc.enable()
