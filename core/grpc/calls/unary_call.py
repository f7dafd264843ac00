"""A call with exactly one request."""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.grpc.calls.call import Call
from core.grpc.status import GrpcError, Status
from core.grpc.transport import Stream
from core.inference.tensors import Buffer

if TYPE_CHECKING:
    from core.grpc.front_end import GrpcFrontEnd
    from core.grpc.request_head import RequestHead


class UnaryCall(Call):
    """A subclass has `serve(message)`, which is called once, when the client has sent everything."""

    __slots__ = ("_has_ended", "_message")

    def __init__(self, front_end: GrpcFrontEnd, stream: Stream, head: RequestHead) -> None:
        super().__init__(front_end, stream, head)
        self._message: Buffer | None = None
        self._has_ended = False

    def serve(self, message: Buffer) -> None:
        raise NotImplementedError

    def on_message(self, message: Buffer) -> None:
        if self._message is not None:
            self.fail(GrpcError(Status.UNIMPLEMENTED, f"{self.head.path} takes one message, and got more"))
            return
        self._message = message
        if self._has_ended:  # it had to be inflated first
            self._serve()

    def on_end(self) -> None:
        self._has_ended = True
        if self._message is not None:
            self._serve()
        elif not self.busy:
            self.fail(GrpcError(Status.UNIMPLEMENTED, f"{self.head.path} takes one message, and got none"))

    def _serve(self) -> None:
        message, self._message = self._message, b""
        assert message is not None
        if self._due and self.has_expired():
            return
        self.serve(message)
