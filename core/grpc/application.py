"""Triton's service over gRPC, as an application for a server of HTTP/2.

Source: docs/spec/grpc.md sections 1 and 2.
"""

from __future__ import annotations

import logging
from dataclasses import replace
from functools import partial
from typing import Final

from prometheus_client.registry import Collector

from trident.core.buffers import Allocate
from trident.core.engine.protocol import Engine
from trident.core.errors import ServerError
from trident.core.frontend.access import GRPC, AuthTokens, Restrictions, Unauthenticated
from trident.core.frontend.gevent_bridge import GeventBridge
from trident.core.grpc import admin, services
from trident.core.grpc.call import RefusedCall, Rpc, RpcCall
from trident.core.grpc.front_end import GrpcFrontEnd, GrpcOptions, Spawn
from trident.core.grpc.headers import (
    COMPRESSED,
    VOLATILE,
    Method,
    RequestHead,
    is_custom,
    read_head,
    with_volatile,
)
from trident.core.grpc.infer import InferCall, StreamInferCall
from trident.core.grpc.receiving import IDENTITY, response_encoding
from trident.core.grpc.transport import Application, Fields, Receiver, Stream
from trident.core.observability.log import verbose_level
from trident.core.observability.switches import SWITCHES

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
        Method(INFERENCE, "ServerLive", "health", partial(RpcCall, services.server_live, False)),
        Method(INFERENCE, "ServerReady", "health", partial(RpcCall, services.server_ready, False)),
        _waiting("ModelReady", "health", services.model_ready),
        _waiting("ServerMetadata", "metadata", admin.server_metadata),
        _waiting("ModelMetadata", "metadata", admin.model_metadata),
        _waiting("ModelConfig", "model-config", admin.model_config),
        _waiting("ModelStatistics", "statistics", admin.model_statistics),
        _waiting("RepositoryIndex", "model-repository", admin.index),
        _waiting("RepositoryModelLoad", "model-repository", admin.load),
        _waiting("RepositoryModelUnload", "model-repository", admin.unload),
        _waiting("SystemSharedMemoryStatus", "shared-memory", admin.system_status),
        _waiting("SystemSharedMemoryRegister", "shared-memory", admin.system_register),
        _waiting("SystemSharedMemoryUnregister", "shared-memory", admin.system_unregister),
        _waiting("CudaSharedMemoryStatus", "shared-memory", admin.cuda_status),
        _waiting("CudaSharedMemoryRegister", "shared-memory", admin.cuda_register),
        _waiting("CudaSharedMemoryUnregister", "shared-memory", admin.cuda_unregister),
        _waiting("TraceSetting", "trace", admin.trace_settings),
        _waiting("LogSettings", "logging", admin.log_settings),
        Method(HEALTH, "Check", "health", partial(RpcCall, services.check, False)),
        Method(HEALTH, "Watch", "health", services.WatchCall),
        *(
            Method(f"grpc.reflection.{version}.ServerReflection", "ServerReflectionInfo", "", services.ReflectionCall)
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

    def open(self, stream: Stream, head: RequestHead) -> Receiver:
        if SWITCHES.requests:
            _log.log(_LEVEL, "gRPC request: %s", head.path)
        if self._tokens is not None and head.error is None and head.method is not None:
            head = self._with_token(self._tokens, head, head.method)
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
        return self.front_end.counts.counter

    def _with_token(self, tokens: AuthTokens, head: RequestHead, method: Method) -> RequestHead:
        """The head, or one with an error. For each call, because heads are remembered and tokens are replaced."""
        try:
            tokens.check(method.group, head.metadata.text)
        except Unauthenticated as error:
            return replace(head, error=error)
        return head

    def _apply_options(self, head: RequestHead, fields: dict[bytes, bytes]) -> None:
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
