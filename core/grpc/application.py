"""Triton's service over gRPC, as an application for a server of HTTP/2, with health and reflection, which servers of
gRPC have in common.

Source: docs/spec/grpc.md sections 1, 2 and 5; grpc.health.v1's `health.proto`; grpc's `server-reflection.md` and
`v1/reflection.proto`, whose messages v1alpha has as well.
"""

from __future__ import annotations

import logging
from collections import deque
from dataclasses import replace
from functools import partial
from typing import Final

from prometheus_client.registry import Collector

from trident.core.buffers import Allocate
from trident.core.engine.protocol import Engine
from trident.core.errors import InvalidRequest, ModelNotFound, ModelNotReady, ServerError, ServerStopping
from trident.core.frontend.access import GRPC, Restrictions, Unauthenticated
from trident.core.frontend.gevent_bridge import GeventBridge
from trident.core.grpc import admin
from trident.core.grpc.call import Call, RefusedCall, Rpc, RpcCall, UnaryCall
from trident.core.grpc.front_end import GrpcFrontEnd, GrpcOptions, Spawn, stopping
from trident.core.grpc.headers import (
    COMPRESSED,
    VOLATILE,
    Method,
    RequestHead,
    is_custom,
    metadata_value,
    read_head,
    with_volatile,
)
from trident.core.grpc.infer import InferCall, StreamInferCall
from trident.core.grpc.messages import (
    IDENTITY,
    LENGTH,
    integer_field,
    length_field,
    parse,
    read_length,
    response_encoding,
    string_field,
)
from trident.core.grpc.status import MalformedMessage, Status
from trident.core.grpc.transport import Application, CallStream, Fields, Receiver
from trident.core.inference.pending_request import CancelCause
from trident.core.inference.request import version_number
from trident.core.inference.tensors import Buffer
from trident.core.lifecycle.state import Phase
from trident.core.observability.log import verbose_level
from trident.core.observability.switches import SWITCHES
from trident.core.shared_memory import RegionKind

_log: Final = logging.getLogger("trident.grpc")
# As for HTTP's requests.
_LEVEL: Final = verbose_level(1)

INFERENCE = "inference.GRPCInferenceService"
HEALTH = "grpc.health.v1.Health"


def methods(*, reflection: bool) -> list[Method]:
    """The rows of a front end, which counts in them."""
    versions = ("v1", "v1alpha") if reflection else ()
    return [
        Method(INFERENCE, "ModelInfer", "inference", InferCall),
        Method(INFERENCE, "ModelStreamInfer", "inference", StreamInferCall),
        Method(INFERENCE, "ServerLive", "health", partial(RpcCall, server_live, False)),
        Method(INFERENCE, "ServerReady", "health", partial(RpcCall, server_ready, False)),
        _waiting("ModelReady", "health", model_ready),
        _waiting("ServerMetadata", "metadata", admin.server_metadata),
        _waiting("ModelMetadata", "metadata", admin.model_metadata),
        _waiting("ModelConfig", "model-config", admin.model_config),
        _waiting("ModelStatistics", "statistics", admin.model_statistics),
        _waiting("RepositoryIndex", "model-repository", admin.index),
        _waiting("RepositoryModelLoad", "model-repository", admin.load),
        _waiting("RepositoryModelUnload", "model-repository", admin.unload),
        _waiting("SystemSharedMemoryStatus", "shared-memory", partial(admin.memory_status, RegionKind.SYSTEM)),
        _waiting("SystemSharedMemoryRegister", "shared-memory", admin.system_register),
        _waiting("SystemSharedMemoryUnregister", "shared-memory", partial(admin.unregister, RegionKind.SYSTEM)),
        _waiting("CudaSharedMemoryStatus", "shared-memory", partial(admin.memory_status, RegionKind.CUDA)),
        _waiting("CudaSharedMemoryRegister", "shared-memory", admin.cuda_register),
        _waiting("CudaSharedMemoryUnregister", "shared-memory", partial(admin.unregister, RegionKind.CUDA)),
        _waiting("TraceSetting", "trace", admin.trace_settings),
        _waiting("LogSettings", "logging", admin.log_settings),
        Method(HEALTH, "Check", "health", partial(RpcCall, check, False)),
        Method(HEALTH, "Watch", "health", WatchCall),
        *(
            Method(f"grpc.reflection.{version}.ServerReflection", "ServerReflectionInfo", "", ReflectionCall)
            for version in versions
        ),
    ]


def _waiting(name: str, group: str, rpc: Rpc) -> Method:
    """An RPC that may wait for the engine's process, for storage, or for protobuf to be loaded."""
    return Method(INFERENCE, name, group, partial(RpcCall, rpc, True))


class GrpcApplication(Application):
    """The application of a gRPC port. `spawn(function, *args)` starts a greenlet; `allocate` gives memory for large
    messages, None for the heap. All methods are called on the hub's thread.
    """

    def __init__(
        self, engine: Engine, options: GrpcOptions, bridge: GeventBridge, spawn: Spawn, allocate: Allocate | None = None
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
                self._apply_options(head, dict(fields))
            except ServerError as error:
                head.error = error
        return head

    def with_volatile(self, head: RequestHead, fields: Fields) -> RequestHead:
        copy = with_volatile(head, fields)
        if self.front_end.options.header_pattern is not None and copy.error is None and not copy.http_status:
            self._apply_options(copy, dict(copy.metadata.fields))
        return copy

    def open(self, stream: CallStream, head: RequestHead) -> Receiver:
        if SWITCHES.requests:
            _log.log(_LEVEL, "gRPC request: %s", head.path)
        if self._tokens is not None and head.error is None and head.method is not None:
            try:
                self._tokens.check(head.method.group, head.metadata.text)
            except Unauthenticated as error:
                # For each call, because heads are remembered and tokens are replaced.
                head = replace(head, error=error)
        if head.error is not None or head.http_status:
            refused = RefusedCall(self.front_end, stream, head)
            refused.refuse()
            return refused
        assert head.method is not None
        return head.method.make_call(self.front_end, stream, head)

    def begin_exit(self) -> None:
        """Refuse new requests on open streams. Calls that their clients have begun are answered."""
        self.front_end.begin_exit()

    @property
    def request_metrics(self) -> Collector:
        """The counts of calls, for the metrics page."""
        return self.front_end.counts

    def _apply_options(self, head: RequestHead, fields: dict[bytes, bytes]) -> None:
        """Apply the options to `head`. Raises ApiRestricted."""
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
                (name.decode("latin-1"), metadata_value(name, value).decode("utf-8", "replace"))
                for name, value in head.metadata.fields
                if is_custom(name) and pattern.matches(name.decode("latin-1"))
            )


# --- health, with Triton's own RPCs for it

# Of grpc.health.v1.HealthCheckResponse.ServingStatus.
_SERVING, _NOT_SERVING = 1, 2


def server_live(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    _check_empty(message)
    return _flag(_unless_exiting(front_end, front_end.engine.is_live()))


def server_ready(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    _check_empty(message)
    return _flag(_unless_exiting(front_end, front_end.engine.is_ready()))


def model_ready(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    """Answer if a version is loaded and can serve now; a model that cannot be found is not ready, without an error."""
    query = parse("ModelReadyRequest", message)
    version = version_number(query.version)
    try:
        is_ready = front_end.engine.is_model_ready(query.name, version)
    except (ModelNotFound, ModelNotReady, InvalidRequest):  # the lookup errors of `Engine.model`
        is_ready = False
    return _flag(is_ready)


def check(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    """Whatever service it asks for: the answer is about the server."""
    if message:
        parse("ModelReadyRequest", message)  # its name is the service of a HealthCheckRequest
    return _serving_status(_unless_exiting(front_end, front_end.engine.is_ready()))


def _check_empty(message: Buffer) -> None:
    """Raises MalformedMessage. An empty message, which nearly all clients send, does not need protobuf."""
    if message:
        parse("ServerLiveRequest", message)


def _unless_exiting(front_end: GrpcFrontEnd, state: bool) -> bool:
    """Raises ServerStopping instead of returning False while the server stops."""
    if not state and front_end.engine.phase().name == Phase.EXITING:
        raise _exiting()
    return state


# Written by hand: a server is asked before it has loaded protobuf.


def _flag(value: bool) -> bytes:
    """A ServerLiveResponse, ServerReadyResponse or ModelReadyResponse."""
    return integer_field(1, int(value))


def _serving_status(ready: bool) -> bytes:
    """A grpc.health.v1.HealthCheckResponse."""
    return integer_field(1, _SERVING if ready else _NOT_SERVING)


def _exiting() -> ServerStopping:
    return ServerStopping("Server exiting")


class WatchCall(UnaryCall):
    """Tells each change of the readiness, until the client or the server goes. As for Check, the service that the
    client names plays no part."""

    __slots__ = ("_told",)

    def __init__(self, front_end: GrpcFrontEnd, stream: CallStream, head: RequestHead) -> None:
        super().__init__(front_end, stream, head)
        self._told: bool | None = None

    def serve(self, message: Buffer) -> None:
        self.front_end.readiness.add(self._tell)

    def _tell(self, ready: bool | None) -> None:
        is_ready = ready is True
        # A client that does not read learns the latest state when it does.
        if is_ready is not self._told and not self.unsent:
            self._told = is_ready
            content = _serving_status(is_ready)
            self.send((content,), len(content))
        if ready is None:
            self.fail(_exiting())

    def on_cancel(self, cause: CancelCause) -> None:
        self.front_end.readiness.remove(self._tell)


# --- reflection: clients such as grpcurl ask which services there are and what their messages look like


class ReflectionCall(Call):
    """Answers one question after the other, in a greenlet that runs while there are some."""

    __slots__ = ("_has_ended", "_questions")

    def __init__(self, front_end: GrpcFrontEnd, stream: CallStream, head: RequestHead) -> None:
        super().__init__(front_end, stream, head)
        self._questions: deque[Buffer] = deque()
        self._has_ended = False
        front_end.streams.add(self.end_at_stop)

    def on_message(self, message: Buffer) -> None:
        self._questions.append(message)
        if not self.busy:
            self.pause()
            self.spawn(self._answer_all)

    def on_end(self) -> None:
        self._has_ended = True
        if not self.busy:
            self.finish()

    def on_cancel(self, cause: CancelCause) -> None:
        self._questions.clear()

    def end_at_stop(self) -> None:
        self.fail(stopping())

    def _end(self, status: Status) -> None:
        super()._end(status)
        self.front_end.streams.remove(self.end_at_stop)

    def _answer_all(self) -> None:
        while self._questions:
            # Off the hub: the first answer imports protobuf.
            content = self.front_end.bridge.run(answer, self._questions.popleft())
            self.send((content,), len(content))
        self.resume()
        if self._has_ended:
            self.finish()


SERVICES: Final = ("grpc.health.v1.Health", "inference.GRPCInferenceService")
# The fields of a ServerReflectionRequest. All are strings, except that of an extension, which is a message.
_HOST: Final = 1
_FILE_BY_FILENAME: Final = 3
_FILE_CONTAINING_SYMBOL: Final = 4
_EXTENSIONS: Final = (5, 6)
_LIST_SERVICES: Final = 7
# Those of a ServerReflectionResponse.
_VALID_HOST: Final = 1
_ORIGINAL_REQUEST: Final = 2
_FILES: Final = 4
_SERVICES: Final = 6
_ERROR: Final = 7


def answer(question: Buffer) -> bytes:
    """The ServerReflectionResponse to a ServerReflectionRequest. Raises MalformedMessage."""
    host, kind, asked = _read(question)
    if kind == _LIST_SERVICES:
        listed = [length_field(1, string_field(1, name)) for name in SERVICES]
        found = length_field(_SERVICES, b"".join(listed))
    elif kind in (_FILE_BY_FILENAME, _FILE_CONTAINING_SYMBOL):
        files = _files(kind, asked)
        found = length_field(_FILES, b"".join(files)) if files else _error(Status.NOT_FOUND, f"'{asked}' is not known")
    elif kind in _EXTENSIONS:
        found = _error(Status.NOT_FOUND, "the messages have no extensions")
    else:
        found = _error(Status.INVALID_ARGUMENT, "the request asks for nothing")
    return string_field(_VALID_HOST, host) + length_field(_ORIGINAL_REQUEST, bytes(question)) + found


def _read(question: Buffer) -> tuple[str, int, str]:
    """The host, and the last other field with its text; 0 without one. Raises MalformedMessage."""
    host, kind, asked = "", 0, ""
    at = 0
    try:
        while at < len(question):
            tag, start = read_length(question, at)
            size, start = read_length(question, start)
            at = start + size
            if tag & 7 != LENGTH or at > len(question):
                raise MalformedMessage
            text = bytes(question[start:at])
            if tag >> 3 == _HOST:
                host = text.decode()
            else:
                kind, asked = tag >> 3, "" if tag >> 3 == _EXTENSIONS[0] else text.decode()
    except (IndexError, ValueError):
        raise MalformedMessage from None
    return host, kind, asked


def _error(status: Status, text: str) -> bytes:
    return length_field(_ERROR, integer_field(1, status) + string_field(2, text))


def _files(kind: int, asked: str) -> list[bytes]:
    """The file that has the name, or the definition of the symbol, and those that it needs; none for an unknown one."""
    from trident.core.protos.pool import pool

    try:
        file = pool().FindFileByName(asked) if kind == _FILE_BY_FILENAME else pool().FindFileContainingSymbol(asked)
    except KeyError:
        return []
    return [length_field(1, each.serialized_pb) for each in (file, *file.dependencies)]
