"""What the calls know of the application that they belong to."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

from core.engine.model_lookup import ModelNotAtHand, ModelsAtHand
from core.engine.protocol import Engine
from core.errors import ModelNotReady
from core.frontend.bridge import HubBridge
from core.frontend.request_body import Allocate
from core.grpc.codec.infer_request import DecodedRequest, Forwarded, RequestDecoder
from core.grpc.compression import LEVELS
from core.grpc.methods import Method
from core.grpc.open_streams import OpenStreams, stopping
from core.grpc.options import GrpcOptions
from core.grpc.readiness_watch import ReadinessWatch
from core.grpc.response_counts import ResponseCounts
from core.grpc.unfinished_messages import UnfinishedMessages
from core.inference.tensors import Buffer
from core.waiting.deadlines import Deadlines

_MOST_LOOKUPS: Final = 10

# Starts a greenlet that calls the function with the arguments.
Spawn = Callable[..., Any]


class Decode(Protocol):
    def __call__(self, message: Buffer, forwarded: Forwarded, *, stream: bool = False) -> DecodedRequest:
        """As `RequestDecoder.decode`. Raises ModelNotAtHand where it would have to wait."""


class GrpcFrontEnd:
    """The engine, the bridge to it, the options, and what the server gives: greenlets and memory. On the hub's thread.

    `is_exiting`: open streams take no new requests.
    """

    def __init__(
        self,
        engine: Engine,
        options: GrpcOptions,
        bridge: HubBridge,
        spawn: Spawn,
        allocate: Allocate | None,
        methods: Sequence[Method],
    ) -> None:
        self.engine = engine
        self.trace_gate = engine.trace_gate
        self.options = options
        self.bridge = bridge
        self.spawn = spawn
        self.allocate = allocate
        self._decoder = RequestDecoder(ModelsAtHand(engine))
        self.decode: Decode = _not_loaded
        self.tensor_offset = self._decoder.tensor_offset
        self.deadlines: Deadlines = bridge.deadlines
        self.counts = ResponseCounts(methods, self.deadlines)
        self.unfinished = UnfinishedMessages(self.deadlines, options.max_unfinished_size)
        self.readiness = ReadinessWatch(engine, self.deadlines)
        self.streams = OpenStreams(self.deadlines)
        self.compression = LEVELS[options.compression_level]
        self.is_exiting = False

    def decode_waiting(self, message: Buffer, forwarded: Forwarded, *, stream: bool = False) -> DecodedRequest:
        """As `decode`, in a greenlet: it waits for whatever `decode` needs. Raises as RequestDecoder does."""
        self.load()
        for _ in range(_MOST_LOOKUPS):
            try:
                return self.decode(message, forwarded, stream=stream)
            except ModelNotAtHand as missing:
                # From then on it is at hand, unless other versions begin to serve.
                self.engine.model(missing.name, missing.version)
        raise ModelNotReady("the models of the server change too fast", hint="send the request again")

    def load(self) -> None:
        """Load protobuf on another thread, in a greenlet, if that has not been done yet."""
        if self.decode is _not_loaded:
            self.bridge.run(_load)
            if self.decode is _not_loaded:
                self.decode = self._decoder.decode

    def begin_exit(self) -> None:
        """Refuse new requests on the streams of ModelStreamInfer, and then end them. Other calls are answered."""
        self.is_exiting = True
        self.decode = self._decode_calls
        self.streams.begin_exit()

    def _decode_calls(self, message: Buffer, forwarded: Forwarded, *, stream: bool = False) -> DecodedRequest:
        """The decoder of a server that stops."""
        if stream:
            raise stopping()
        return self._decoder.decode(message, forwarded)


def _not_loaded(message: Buffer, forwarded: Forwarded, *, stream: bool = False) -> DecodedRequest:
    """The decoder before protobuf is loaded, which would stop the hub for some time."""
    raise ModelNotAtHand("", 0)


def _load() -> None:
    import core.grpc.messages.schema  # noqa: F401
