"""The state that all calls of a gRPC port share: options, engine, decoder, counts and watches.

Source: docs/spec/grpc.md; docs/spec/server-options.md section 2 "gRPC"; docs/spec/trace-and-log.md section 5.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, field
from importlib import import_module
from typing import Any, Final

from prometheus_client import Counter, Metric

from trident.core.buffers import Allocate
from trident.core.engine.protocol import Engine, ServedModel
from trident.core.errors import ConfigInvalid, ErrorHints, ModelNotReady, ServerError, ServerStopping
from trident.core.frontend.access import AuthTokens, RestrictedApi
from trident.core.frontend.admin import LoadReports
from trident.core.frontend.dataplane import is_served
from trident.core.frontend.gevent_bridge import GeventBridge
from trident.core.frontend.request import HeaderPattern, header_pattern
from trident.core.grpc.headers import Method, RequestHead
from trident.core.grpc.messages import LEVELS, UnfinishedMessages
from trident.core.grpc.request import DecodedRequest, Forwarded, MessageDecoder
from trident.core.grpc.status import Status
from trident.core.grpc.transport import CallStream, Receiver
from trident.core.inference.tensors import Buffer
from trident.core.lifecycle.state import Phase
from trident.core.options import MAX_UNFINISHED
from trident.core.waiting import Deadlines

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
    max_unfinished_size: int = MAX_UNFINISHED
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
            raise ConfigInvalid(f"'{self.compression_level}' is not a compression level, one of {', '.join(LEVELS)}")
        pattern = header_pattern(
            "grpc-header-forward-pattern", self.header_forward_pattern, hides_token=self.tokens is not None
        )
        object.__setattr__(self, "header_pattern", pattern)


# Starts a greenlet that calls the function with the arguments.
Spawn = Callable[..., Any]
_MOST_LOOKUPS: Final = 10


class WouldBlock(Exception):
    """A request cannot be decoded on the hub: protobuf has to be loaded, or the engine's process has to be asked for
    the model."""

    def __init__(self, name: str = "", version: int = 0) -> None:
        super().__init__(name, version)
        self.name = name
        self.version = version


class GrpcFrontEnd:
    """The engine, the bridge to it, the options, and what the server gives: greenlets and memory. On the hub's thread.

    `is_exiting`: open streams take no new requests.
    """

    def __init__(
        self,
        engine: Engine,
        options: GrpcOptions,
        bridge: GeventBridge,
        spawn: Spawn,
        allocate: Allocate | None,
        methods: Sequence[Method],
    ) -> None:
        self.engine = engine
        self.trace_gate = engine.trace_gate
        self.load_reports = LoadReports(engine)
        self.options = options
        self.bridge = bridge
        self.spawn = spawn
        self.allocate = allocate
        self._decoder = MessageDecoder(self._find)
        self._is_loaded = False
        self.tensor_offset = self._decoder.tensor_offset
        self.deadlines: Deadlines = bridge.deadlines
        self.counts = ResponseCounts(methods, self.deadlines)
        self.unfinished = UnfinishedMessages(self.deadlines, options.max_unfinished_size)
        self.readiness = ReadinessWatch(engine, self.deadlines)
        self.streams = OpenStreams(self.deadlines)
        self.compression = LEVELS[options.compression_level]
        self.is_exiting = False

    def decode(self, message: Buffer, forwarded: Forwarded, *, stream: bool = False) -> DecodedRequest:
        """As `MessageDecoder.decode`. Raises WouldBlock where it would have to wait."""
        if not self._is_loaded:
            raise WouldBlock
        if stream and self.is_exiting:
            raise stopping()
        return self._decoder.decode(message, forwarded, stream=stream)

    def decode_waiting(self, message: Buffer, forwarded: Forwarded, *, stream: bool = False) -> DecodedRequest:
        """As `decode`, in a greenlet: it waits for whatever `decode` needs. Raises as MessageDecoder does."""
        self.load()
        for _ in range(_MOST_LOOKUPS):
            try:
                return self.decode(message, forwarded, stream=stream)
            except WouldBlock as missing:
                # From then on it is known, unless other versions begin to serve.
                self.engine.model(missing.name, missing.version)
        raise ModelNotReady("the models of the server change too fast", hint="send the request again")

    def load(self) -> None:
        """Load protobuf on another thread, in a greenlet, if that has not been done yet."""
        if not self._is_loaded:
            self.bridge.run(import_module, "trident.core.protos.grpc_service_pb2")
            self._is_loaded = True

    def count_error(self, method: Method | None, error: Exception, status: Status) -> None:
        model = error.model if isinstance(error, ServerError) else None
        served = model if model and is_served(self.engine, model) else ""
        self.counts.errors.labels(method.name if method is not None else "", served, status.name).inc()

    def begin_exit(self) -> None:
        """Refuse new requests on the streams of ModelStreamInfer, and then end them. Other calls are answered."""
        self.is_exiting = True
        self.streams.begin_exit()

    def _find(self, name: str, version: int) -> ServedModel:
        model = self.engine.model_nowait(name, version)
        if model is None:
            raise WouldBlock(name, version)
        return model


# In this time a request on an open stream gets an error message, as from Triton. Then the stream ends as well:
# a client that only waits would hold up the stop until the server gives up.
_GRACE_S: Final = 2.0


class OpenStreams:
    """Ends the open streams when the server stops. On the hub's thread."""

    def __init__(self, deadlines: Deadlines) -> None:
        self._deadlines = deadlines
        self._open: dict[Callable[[], None], None] = {}
        self._is_over = False

    def add(self, end: Callable[[], None]) -> None:
        """`end` ends a stream with an error, as soon as everything that the client has asked for is answered."""
        self._open[end] = None
        if self._is_over:
            self._deadlines.add(0.0, self)

    def remove(self, end: Callable[[], None]) -> None:
        self._open.pop(end, None)

    def begin_exit(self) -> None:
        """The server stops: end all of them after a grace period."""
        self._deadlines.add(_GRACE_S, self)

    def expire(self) -> None:
        self._is_over = True
        for end in list(self._open):
            end()


def stopping() -> ServerStopping:
    return ServerStopping("GRPC server is shutting down and has stopped accepting new requests.")


_LOOK_S: Final = 0.25
# Told whether the server is ready; None: the server stops, and tells nothing more.
Tell = Callable[[bool | None], None]


class ReadinessWatch:
    """Looks at the engine four times a second while a client watches. On the hub's thread."""

    def __init__(self, engine: Engine, deadlines: Deadlines) -> None:
        self._engine = engine
        self._deadlines = deadlines
        self._watchers: dict[Tell, None] = {}
        self._is_looking = False

    def add(self, tell: Tell) -> None:
        """Tell the readiness now, and again and again."""
        self._watchers[tell] = None
        self._look(tell)
        self._look_later()

    def remove(self, tell: Tell) -> None:
        self._watchers.pop(tell, None)

    def expire(self) -> None:
        self._is_looking = False
        for tell in list(self._watchers):
            self._look(tell)
        self._look_later()

    def _look(self, tell: Tell) -> None:
        ready = self._engine.is_ready()
        if not ready and self._engine.phase().name == Phase.EXITING:
            self.remove(tell)
            tell(None)
        else:
            tell(ready)

    def _look_later(self) -> None:
        if self._watchers and not self._is_looking:
            self._is_looking = True
            self._deadlines.add(_LOOK_S, self)


# Counting in the metrics library takes a microsecond and more, so the calls count in their methods, and what they
# counted is taken over from time to time.
_TAKEN_OVER_AFTER_S: Final = 0.25


class ResponseCounts:
    """On the hub's thread. A collector of the metrics library, which may be a quarter of a second behind."""

    __slots__ = ("_deadlines", "_is_due", "_methods", "_responses", "_unknown", "errors")

    def __init__(self, methods: Sequence[Method], deadlines: Deadlines) -> None:
        # Requests that are not calls, and calls of unknown methods: clients can make up as many names as they like.
        self._unknown = Method("", "", "", _never_made)
        self._methods = (*methods, self._unknown)
        self._deadlines = deadlines
        self._is_due = False
        self._responses = Counter(
            "trident_grpc_responses",
            "Calls over gRPC that have ended; a stream counts once",
            ("method", "status"),
            registry=None,
        )
        self.errors = Counter(
            "trident_grpc_errors",
            "Calls over gRPC, and requests of streams, that have ended with an error",
            ("method", "model", "status"),
            registry=None,
        )

    def collect(self) -> Iterable[Metric]:
        return [*self._responses.collect(), *self.errors.collect()]

    def count(self, method: Method | None, status: Status) -> None:
        index: int = status  # a list of a compiled module has no fast path for a member of an enum
        (method or self._unknown).ended[index] += 1
        if not self._is_due:
            self._is_due = True
            self._deadlines.add(_TAKEN_OVER_AFTER_S, self)

    def expire(self) -> None:
        self._is_due = False
        for method in self._methods:
            for number, count in enumerate(method.ended):
                if count:
                    self._responses.labels(method.name, Status(number).name).inc(count)
                    method.ended[number] = 0


def _never_made(front_end: GrpcFrontEnd, stream: CallStream, head: RequestHead) -> Receiver:
    raise NotImplementedError
