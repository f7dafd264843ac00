"""The methods of the services.

Source: docs/spec/grpc.md section 1, groups: section 2.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Final

from prometheus_client import Counter

from trident.core.errors import ServerStopping
from trident.core.grpc import admin as health
from trident.core.grpc import admin as metadata
from trident.core.grpc import admin as repository
from trident.core.grpc import admin as shared_memory
from trident.core.grpc.admin import log_settings, trace_settings
from trident.core.grpc.admin_messages import health_message
from trident.core.grpc.call import Method, RefusedCall, Rpc, UnaryCall
from trident.core.grpc.infer import InferCall
from trident.core.grpc.reflection import ReflectionCall
from trident.core.grpc.status import Status
from trident.core.grpc.stream_infer import StreamInferCall
from trident.core.grpc.transport import Stream
from trident.core.inference.pending_request import CancelCause
from trident.core.inference.tensors import Buffer
from trident.core.waiting.waiting import Deadlines

if TYPE_CHECKING:
    from trident.core.grpc.application import GrpcFrontEnd
    from trident.core.grpc.transport import RequestHead


class RpcCall(UnaryCall):
    __slots__ = ()

    def serve(self, message: Buffer) -> None:
        method = self.head.method
        assert method is not None
        self.busy += 1
        if method.waits:
            self.front_end.spawn(self._run, message)
        else:
            self._run(message)

    def _run(self, message: Buffer) -> None:
        method = self.head.method
        assert method is not None
        assert method.rpc is not None
        try:
            if method.waits:
                self.front_end.load()
            if not self.ended:
                answer = method.rpc(self.front_end, message)
                self.reply((answer,), len(answer))
        except Exception as error:  # the request boundary: whatever goes wrong in an RPC becomes a status here
            self.fail(error)
        finally:
            self.free()


# As for Check, the service that the client names plays no part.


class WatchCall(UnaryCall):
    """Ends when the client or the server goes."""

    __slots__ = ("_told",)

    def __init__(self, front_end: GrpcFrontEnd, stream: Stream, head: RequestHead) -> None:
        super().__init__(front_end, stream, head)
        self._told: bool | None = None

    def serve(self, message: Buffer) -> None:
        self.front_end.readiness.add(self)

    def tell(self, ready: bool) -> None:
        # A client that does not read learns the latest state when it does.
        if ready is not self._told and not self.unsent:
            self._told = ready
            content = health_message(ready)
            self.send((content,), len(content))

    def tell_exit(self) -> None:
        self.tell(False)
        self.fail(ServerStopping("Server exiting"))

    def on_cancel(self, cause: CancelCause) -> None:
        self.front_end.readiness.remove(self)


INFERENCE = "inference.GRPCInferenceService"
HEALTH = "grpc.health.v1.Health"


def methods(*, reflection: bool) -> list[Method]:
    """The rows of a front end, which counts in them."""
    versions = ("v1", "v1alpha") if reflection else ()
    return [
        Method(INFERENCE, "ModelInfer", "inference", InferCall),
        Method(INFERENCE, "ModelStreamInfer", "inference", StreamInferCall),
        Method(INFERENCE, "ServerLive", "health", RpcCall, health.server_live),
        Method(INFERENCE, "ServerReady", "health", RpcCall, health.server_ready),
        _waiting("ModelReady", "health", health.model_ready),
        _waiting("ServerMetadata", "metadata", metadata.server_metadata),
        _waiting("ModelMetadata", "metadata", metadata.model_metadata),
        _waiting("ModelConfig", "model-config", metadata.model_config),
        _waiting("ModelStatistics", "statistics", metadata.model_statistics),
        _waiting("RepositoryIndex", "model-repository", repository.index),
        _waiting("RepositoryModelLoad", "model-repository", repository.load),
        _waiting("RepositoryModelUnload", "model-repository", repository.unload),
        _waiting("SystemSharedMemoryStatus", "shared-memory", shared_memory.system_status),
        _waiting("SystemSharedMemoryRegister", "shared-memory", shared_memory.system_register),
        _waiting("SystemSharedMemoryUnregister", "shared-memory", shared_memory.system_unregister),
        _waiting("CudaSharedMemoryStatus", "shared-memory", shared_memory.cuda_status),
        _waiting("CudaSharedMemoryRegister", "shared-memory", shared_memory.cuda_register),
        _waiting("CudaSharedMemoryUnregister", "shared-memory", shared_memory.cuda_unregister),
        _waiting("TraceSetting", "trace", trace_settings),
        _waiting("LogSettings", "logging", log_settings),
        Method(HEALTH, "Check", "health", RpcCall, health.check),
        Method(HEALTH, "Watch", "health", WatchCall),
        *(
            Method(f"grpc.reflection.{version}.ServerReflection", "ServerReflectionInfo", "", ReflectionCall)
            for version in versions
        ),
    ]


def _waiting(name: str, group: str, rpc: Rpc) -> Method:
    """An RPC that may wait for the engine's process, for storage, or for protobuf to be loaded."""
    return Method(INFERENCE, name, group, RpcCall, rpc, waits=True)


# Counting in the metrics library takes a microsecond and more, so the calls count in their methods, and what they
# counted is taken over from time to time.


_TAKEN_OVER_AFTER_S: Final = 0.25


class ResponseCounts:
    """On the hub's thread. `counter` is a collector of the metrics library, and may be a quarter of a second behind."""

    __slots__ = ("_deadlines", "_is_due", "_methods", "_unknown", "counter")

    def __init__(self, methods: Sequence[Method], deadlines: Deadlines) -> None:
        # What is no call, and calls of methods that there are not: clients can make up as many names as they like.
        self._unknown = Method("", "", "", RefusedCall)
        self._methods = (*methods, self._unknown)
        self._deadlines = deadlines
        self._is_due = False
        self.counter = Counter(
            "trident_grpc_responses",
            "Calls over gRPC that have ended; a stream counts once",
            ("method", "status"),
            registry=None,
        )

    def count(self, method: Method | None, status: Status) -> None:
        index: int = status  # a list of a compiled module has no fast way for a member of an enum
        (method or self._unknown).ended[index] += 1
        if not self._is_due:
            self._is_due = True
            self._deadlines.add(_TAKEN_OVER_AFTER_S, self)

    def expire(self) -> None:
        """Take over what was counted."""
        self._is_due = False
        for method in self._methods:
            for status, count in zip(Status, method.ended, strict=True):
                if count:
                    self.counter.labels(method.name, status.name).inc(count)
                    method.ended[status] = 0
