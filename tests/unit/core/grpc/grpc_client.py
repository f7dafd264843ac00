"""A client of a GrpcApplication in the same thread, with a stream that only notes what is sent on it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from functools import wraps
from typing import Any, ParamSpec
from urllib.parse import unquote

import gevent
import numpy as np
from tritonclient.grpc.service_pb2 import ModelInferRequest, ModelInferResponse, ModelStreamInferResponse

from tests.unit.core.waiting.hub_thread import run_on_hub, until
from trident.core.buffers import Allocate
from trident.core.engine.protocol import Engine
from trident.core.frontend.gevent_bridge import GeventBridge
from trident.core.grpc.application import GrpcApplication
from trident.core.grpc.front_end import GrpcOptions
from trident.core.grpc.transport import HeaderFields, Receiver
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import InferenceResponse, OutputTensor
from trident.core.inference.tensors import Buffer

P = ParamSpec("P")
SERVICE = "/inference.GRPCInferenceService/"


def frame(message: bytes, flag: int = 0) -> bytes:
    """A message with its prefix."""
    return bytes((flag,)) + len(message).to_bytes(4, "big") + message


class ClientStream:
    """One call. `window` is how many bytes the client takes; the rest is unsent until `take_all`."""

    peer = "127.0.0.1:50000"

    def __init__(self, window: int = 1 << 40) -> None:
        self.window = window
        self.headers: dict[str, str] = {}
        self.trailers: dict[str, str] = {}
        self.body = bytearray()
        self.unsent = 0
        self.is_paused = False
        self.pauses = 0
        self.has_ended = False
        self.was_reset = False
        self.releases = 0
        self.receiver: Receiver | None = None

    # --- the CallStream of the application

    def send(
        self,
        headers: HeaderFields | None,
        parts: Sequence[Buffer] = (),
        size: int = 0,
        trailers: HeaderFields | None = None,
    ) -> None:
        assert not self.has_ended, "sent after the end"
        assert sum(map(len, parts)) == size
        if headers is not None:
            assert self.headers == {}, "two header sections"
            self.headers = _texts(headers)
        for part in parts:
            self.body += part
        self.unsent = max(0, self.unsent + size - self.window)
        self.window = max(0, self.window - size)
        if trailers is not None:
            self.has_ended = True
            self.trailers = _texts(trailers)
            assert bool(self.headers) == (":status" not in self.trailers)

    def pause(self) -> None:
        assert not self.is_paused
        self.is_paused = True
        self.pauses += 1

    def resume(self) -> None:
        assert self.is_paused
        self.is_paused = False

    def reset(self) -> None:
        self.was_reset = self.has_ended = True

    def release(self) -> None:
        self.releases += 1
        self.receiver = None

    # --- the client

    def take(self, size: int) -> None:
        """Read a part of the waiting data."""
        self.unsent -= size
        assert self.unsent > 0
        if self.receiver is not None:
            self.receiver.moved()

    def take_all(self) -> None:
        """Read everything, and from now on at once."""
        self.window = 1 << 40
        self.unsent = 0
        if self.receiver is not None:
            self.receiver.drained()

    @property
    def status(self) -> int:
        return int(self.trailers["grpc-status"])

    @property
    def message(self) -> str:
        return unquote(self.trailers.get("grpc-message", ""))

    @property
    def frames(self) -> list[tuple[int, bytes]]:
        """The messages of the server with their flags."""
        return list(_frames(bytes(self.body)))

    @property
    def messages(self) -> list[bytes]:
        assert all(flag == 0 for flag, _ in self.frames)
        return [message for _, message in self.frames]


class Client:
    """Calls `application`."""

    def __init__(self, application: GrpcApplication) -> None:
        self.application = application

    def begin(self, method: str, metadata: dict[str, str] | None = None, *, window: int = 1 << 40) -> ClientStream:
        """A stream on which nothing was sent yet. `method` without a slash is one of Triton's service."""
        path = method if "/" in method else SERVICE + method
        fields = {
            ":method": "POST",
            ":scheme": "http",
            ":path": path,
            ":authority": "localhost",
            "te": "trailers",
            "content-type": "application/grpc",
            **(metadata or {}),
        }
        stream = ClientStream(window)
        encoded = tuple((key.encode(), value.encode()) for key, value in fields.items())
        volatile = tuple(field for field in encoded if field[0] in self.application.volatile)
        head = self.application.parse_head(tuple(field for field in encoded if field not in volatile))
        if volatile:
            head = self.application.with_volatile(head, volatile)
        receiver = self.application.open(stream, head)
        if not stream.releases:
            stream.receiver = receiver
        return stream

    def feed(self, stream: ClientStream, *pieces: bytes) -> ClientStream:
        """Send bytes as they are."""
        for piece in pieces:
            if stream.receiver is not None:
                stream.receiver.take(piece)
        return stream

    def end(self, stream: ClientStream) -> ClientStream:
        if stream.receiver is not None:
            stream.receiver.end()
        return stream

    def send(self, method: str, message: bytes = b"", metadata: dict[str, str] | None = None) -> ClientStream:
        """A call with one message; it may not have been answered yet."""
        return self.end(self.feed(self.begin(method, metadata), frame(message)))

    def call(self, method: str, message: bytes = b"", metadata: dict[str, str] | None = None) -> ClientStream:
        """A call with one message, after its end."""
        stream = self.send(method, message, metadata)
        until(lambda: stream.releases)
        assert stream.has_ended
        return stream


_bridges: list[GeventBridge] = []


def on_hub(test: Callable[P, None]) -> Callable[P, None]:
    """Run a test in a greenlet of a new hub. What it made with `serve` is closed at its end."""

    @wraps(test)
    def run(*args: P.args, **kwargs: P.kwargs) -> None:
        def body(hub: Any) -> None:
            try:
                test(*args, **kwargs)
            finally:
                while _bridges:
                    _bridges.pop().close()

        run_on_hub(body)

    return run


def serve(engine: Engine, options: GrpcOptions | None = None, allocate: Allocate | None = None) -> Client:
    """The client of an application in front of `engine`, on the hub of this thread."""
    _bridges.append(GeventBridge(gevent.get_hub()))
    return Client(GrpcApplication(engine, options or GrpcOptions(), _bridges[-1], gevent.spawn, allocate))


def _texts(section: HeaderFields) -> dict[str, str]:
    texts = {name.decode("ascii"): value.decode("ascii") for name, value in section.fields}
    assert len(texts) == len(section.fields), "a field twice"
    return texts


def _frames(body: bytes) -> Iterator[tuple[int, bytes]]:
    while body:
        end = 5 + int.from_bytes(body[1:5], "big")
        assert len(body) >= end, "half a message"
        yield body[0], body[5:end]
        body = body[end:]


# --- messages for the models of `tests.unit.fake_engine`, which echo the input IN as OUT


def infer_request(identifier: str = "", model: str = "simple", *, count: int = 4, **fields: Any) -> bytes:
    """A request with the numbers from 0."""
    request = ModelInferRequest(model_name=model, id=identifier, **fields)
    request.inputs.add(name="IN", datatype="INT32", shape=[count])
    request.raw_input_contents.append(np.arange(count, dtype=np.int32).tobytes())
    return bytes(request.SerializeToString())


def echo(request: InferenceRequest) -> InferenceResponse:
    """The response of a model that echoes its input."""
    tensor = request.inputs[0]
    array = np.frombuffer(tensor.data, np.int32)
    output = OutputTensor("OUT", "INT32", tensor.shape, array)
    return InferenceResponse(request.model_name, 3, [output], id=request.id)


def infer_response(message: bytes) -> Any:
    return ModelInferResponse.FromString(message)


def stream_response(message: bytes) -> Any:
    return ModelStreamInferResponse.FromString(message)


def numbers(response: Any) -> list[int]:
    """The numbers of a ModelInferResponse."""
    return list(np.frombuffer(response.raw_output_contents[0], np.int32))
