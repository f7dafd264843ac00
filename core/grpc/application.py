"""Triton's service over gRPC, as an application for a server of HTTP/2.

Source: docs/spec/grpc.md.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from typing import Any, Final, Protocol

from prometheus_client.registry import Collector

from trident.core.engine.model_lookup import ModelNotAtHand, ModelsAtHand
from trident.core.engine.protocol import Engine
from trident.core.errors import ConfigInvalid, ErrorHints, ModelNotReady, ServerError
from trident.core.frontend.access import GRPC, AuthTokens, RestrictedApi, Restrictions, Unauthenticated
from trident.core.frontend.bridge import HubBridge
from trident.core.frontend.request import Allocate, HeaderPattern, header_pattern
from trident.core.grpc.call import (
    CountedReceiver,
    CountedStream,
    Method,
    OpenStreams,
    ReadinessWatch,
    RefusedCall,
    UnfinishedMessages,
    stopping,
)
from trident.core.grpc.methods import ResponseCounts, methods
from trident.core.grpc.request import DecodedRequest, Forwarded, RequestDecoder
from trident.core.grpc.transport import (
    COMPRESSED,
    IDENTITY,
    LEVELS,
    VOLATILE,
    Application,
    Fields,
    Receiver,
    RequestHead,
    Stream,
    is_custom,
    read_head,
    response_encoding,
    with_volatile,
)
from trident.core.inference.tensors import Buffer
from trident.core.observability.log import verbose_level
from trident.core.observability.switches import SWITCHES
from trident.core.waiting.waiting import Deadlines

_log: Final = logging.getLogger("trident.grpc")
# As for HTTP's requests.
_LEVEL: Final = verbose_level(1)


class GrpcApplication(Application):
    """The application of a gRPC port. `spawn(function, *args)` starts a greenlet; `allocate` gives memory for large
    messages, None for the heap. All methods are called on the hub's thread.
    """

    def __init__(
        self, engine: Engine, options: GrpcOptions, bridge: HubBridge, spawn: Spawn, allocate: Allocate | None = None
    ) -> None:
        rows = methods(reflection=options.reflection)
        self.front_end = GrpcFrontEnd(engine, options, bridge, spawn, allocate, rows)
        self._methods = {method.path: method for method in rows}
        self._restrictions = Restrictions(options.restricted, GRPC)
        self._tokens = options.tokens

    @property
    def volatile(self) -> frozenset[bytes]:
        return VOLATILE

    def parse_head(self, fields: Fields) -> RequestHead:
        head = read_head(fields, self._methods)
        if head.error is None and not head.http_status:
            try:
                self._judge(head, dict(fields))
            except ServerError as error:
                head.error = error
        return head

    def with_volatile(self, head: RequestHead, fields: Fields) -> RequestHead:
        copy = with_volatile(head, fields)
        if self.front_end.options.header_pattern is not None and copy.error is None and not copy.http_status:
            self._judge(copy, dict(copy.metadata.fields))
        return copy

    def open(self, stream: Stream, head: RequestHead) -> Receiver:
        if SWITCHES.requests:
            _log.log(_LEVEL, "gRPC request: %s", head.path)
        counted = None
        if SWITCHES.access:
            stream = counted = CountedStream(stream)
        if self._tokens is not None and head.error is None and head.method is not None:
            head = self._with_token(self._tokens, head, head.method)
        if head.error is not None or head.http_status:
            refused = RefusedCall(self.front_end, stream, head)
            refused.refuse()
            return refused
        assert head.method is not None
        call = head.method.make_call(self.front_end, stream, head)
        return call if counted is None else CountedReceiver(counted, call)

    def begin_exit(self) -> None:
        """Refuse new requests on open streams. Calls that their clients have begun are answered."""
        self.front_end.begin_exit()

    @property
    def request_metrics(self) -> Collector:
        """The counts of calls, for the metrics page."""
        return self.front_end.counts.counter

    def _with_token(self, tokens: AuthTokens, head: RequestHead, method: Method) -> RequestHead:
        """The head, or one with an error. For each call, because heads are remembered and tokens are replaced."""
        try:
            tokens.check(method.group, head.metadata.text)
        except Unauthenticated as error:
            return replace(head, error=error)
        return head

    def _judge(self, head: RequestHead, fields: dict[bytes, bytes]) -> None:
        """Add to `head` what the options say about it. Raises ApiRestricted."""
        front_end, method = self.front_end, head.method
        assert method is not None
        if method.group:
            self._restrictions.check(method.group, head.metadata.text)
        if method.group != "inference":
            return
        encoding = response_encoding(front_end.compression, fields.get(b"grpc-accept-encoding", b""))
        if encoding is not IDENTITY:
            head.response_encoding = encoding
            head.response_headers = COMPRESSED[encoding]
        pattern = front_end.options.header_pattern
        if pattern is not None:
            head.forwarded = tuple(
                (name.decode("latin-1"), value.decode("utf-8", "replace"))
                for name, value in head.metadata.fields
                if is_custom(name) and pattern.matches(name.decode("latin-1"))
            )


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
    import trident.core.grpc.schema  # noqa: F401


# Source: docs/spec/server-options.md section 2 "gRPC", docs/spec/trace-and-log.md section 5.


LARGEST_MESSAGE = 2147483647


@dataclass(frozen=True, kw_only=True)
class GrpcOptions:
    """`max_message_size` is in bytes, of one message without its prefix; `max_unfinished_size` is the limit of
    UnfinishedMessages. `header_forward_pattern` matches a part of a metadata name, ignoring case; empty forwards
    nothing, and a token is never forwarded if there are `tokens`, of which a client must have one.
    `compression_level` is one of `LEVELS`. `reflection` tells clients the services and their messages.
    `stream_requests` is how many requests of one stream may be in flight: a client that sends more waits.
    `allow_client_shm`: clients may register regions of shared memory. `error_hints` says how they get the hint of an
    error.

    Raises ConfigInvalid.
    """

    max_message_size: int = LARGEST_MESSAGE
    max_unfinished_size: int = 512 << 20
    header_forward_pattern: str = ""
    restricted: tuple[RestrictedApi, ...] = ()
    tokens: AuthTokens | None = None
    compression_level: str = "none"
    reflection: bool = True
    stream_requests: int = 1024
    allow_client_shm: bool = False
    error_hints: ErrorHints = ErrorHints.FIELD
    header_pattern: HeaderPattern | None = field(init=False, repr=False, default=None)

    def __post_init__(self) -> None:
        if self.compression_level not in LEVELS:
            raise ConfigInvalid(f"'{self.compression_level}' is no compression level, one of {', '.join(LEVELS)}")
        pattern = header_pattern(
            "grpc-header-forward-pattern", self.header_forward_pattern, hides_token=self.tokens is not None
        )
        object.__setattr__(self, "header_pattern", pattern)
