"""Whether the server and its models are live and ready: Triton's RPCs, and those of gRPC's own health service.

Source: docs/spec/grpc.md section 5; grpc.health.v1's `health.proto`.
"""

from __future__ import annotations

from trident.core.errors import InvalidRequest, ModelNotFound, ModelNotReady, ServerStopping
from trident.core.frontend.request import version_number
from trident.core.grpc.admin_messages import flag_message, health_message, read_model_query
from trident.core.grpc.call import UnaryCall
from trident.core.grpc.front_end import GrpcFrontEnd
from trident.core.grpc.headers import RequestHead
from trident.core.grpc.transport import Stream
from trident.core.inference.pending_request import CancelCause
from trident.core.inference.tensors import Buffer
from trident.core.lifecycle.state import Phase


def server_live(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    live = front_end.engine.is_live()
    if not live:
        _refuse_exiting(front_end)
    return flag_message(live)


def server_ready(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    ready = front_end.engine.is_ready()
    if not ready:
        _refuse_exiting(front_end)
    return flag_message(ready)


def model_ready(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    """Whether a version is loaded and can serve now; a model that cannot be found is not ready, and no error."""
    name, version_text = read_model_query(message)
    version = version_number(version_text)
    try:
        is_ready = front_end.engine.is_model_ready(name, version)
    except (ModelNotFound, ModelNotReady, InvalidRequest):  # the lookup errors of `Engine.model`
        is_ready = False
    return flag_message(is_ready)


def check(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    """Whatever service it asks for: the answer is about the server."""
    ready = front_end.engine.is_ready()
    if not ready:
        _refuse_exiting(front_end)
    return health_message(ready)


def _refuse_exiting(front_end: GrpcFrontEnd) -> None:
    if front_end.engine.phase().name == Phase.EXITING:
        raise _exiting()


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
            content = health_message(is_ready)
            self.send((content,), len(content))
        if ready is None:
            self.fail(_exiting())

    def on_cancel(self, cause: CancelCause) -> None:
        self.front_end.readiness.remove(self._tell)
