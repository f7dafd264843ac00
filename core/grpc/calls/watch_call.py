"""grpc.health.v1's Watch: the readiness of the server, and each change of it.

As for Check, the service that the client names plays no part.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.errors import ServerStopping
from core.grpc.calls.unary_call import UnaryCall
from core.grpc.messages.health import health_message
from core.grpc.transport import Stream
from core.inference.cancel_cause import CancelCause
from core.inference.tensors import Buffer

if TYPE_CHECKING:
    from core.grpc.front_end import GrpcFrontEnd
    from core.grpc.request_head import RequestHead


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
