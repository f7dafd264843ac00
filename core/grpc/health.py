"""Liveness and readiness of the server and its models: Triton's RPCs and gRPC's own health service.

Source: docs/spec/grpc.md section 5; grpc.health.v1's `health.proto`.
"""

from __future__ import annotations

from trident.core.errors import InvalidRequest, ModelNotFound, ModelNotReady, ServerStopping
from trident.core.frontend.request import version_number
from trident.core.grpc.call import UnaryCall
from trident.core.grpc.front_end import GrpcFrontEnd
from trident.core.grpc.headers import RequestHead
from trident.core.grpc.protobuf import integer_field, parse
from trident.core.grpc.transport import Stream
from trident.core.inference.pending_request import CancelCause
from trident.core.inference.tensors import Buffer
from trident.core.lifecycle.state import Phase

# Of grpc.health.v1.HealthCheckResponse.ServingStatus.
_SERVING, _NOT_SERVING = 1, 2


def server_live(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    live = front_end.engine.is_live()
    if not live:
        _refuse_exiting(front_end)
    return _flag(live)


def server_ready(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    ready = front_end.engine.is_ready()
    if not ready:
        _refuse_exiting(front_end)
    return _flag(ready)


def model_ready(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    """Whether a version is loaded and can serve now; a model that cannot be found is not ready, and no error."""
    query = parse("ModelReadyRequest", message)
    version = version_number(query.version)
    try:
        is_ready = front_end.engine.is_model_ready(query.name, version)
    except (ModelNotFound, ModelNotReady, InvalidRequest):  # the lookup errors of `Engine.model`
        is_ready = False
    return _flag(is_ready)


def check(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    """Whatever service it asks for: the answer is about the server."""
    ready = front_end.engine.is_ready()
    if not ready:
        _refuse_exiting(front_end)
    return _serving_status(ready)


def _refuse_exiting(front_end: GrpcFrontEnd) -> None:
    if front_end.engine.phase().name == Phase.EXITING:
        raise _exiting()


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

    def __init__(self, front_end: GrpcFrontEnd, stream: Stream, head: RequestHead) -> None:
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
