"""A call that was refused by its head, and a request that is no call of gRPC."""

from __future__ import annotations

from core.grpc.calls.call import Call
from core.grpc.header_sections import NOT_GRPC, NOT_GRPC_TRAILERS, http_refusal
from core.grpc.status import Status
from core.inference.tensors import Buffer


class RefusedCall(Call):
    """Ends as soon as it begins: what the client sends is not looked at."""

    __slots__ = ()

    def refuse(self) -> None:
        head = self.head
        if head.error is not None:
            self.fail(head.error)
        elif self._stream is not None:
            self._stream.send(http_refusal(head.http_status), (NOT_GRPC,), len(NOT_GRPC), NOT_GRPC_TRAILERS)
            self._end(Status.UNKNOWN)

    def on_message(self, message: Buffer) -> None:
        """It came too late."""

    def on_end(self) -> None:
        """It came too late."""
