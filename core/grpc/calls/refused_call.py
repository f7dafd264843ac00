"""A call that was refused by its head, and a request that is no call of gRPC."""

from __future__ import annotations

from core.grpc.calls.call import Call
from core.grpc.header_sections import NOT_GRPC, NOT_GRPC_TRAILERS, http_refusal
from core.grpc.status import Status
from core.inference.tensors import Buffer


class RefusedCall(Call):
    """What the client sends is not looked at.

    A call ends as soon as it begins. A client that does not speak gRPC is answered when it has sent everything: not
    every client of HTTP takes an answer before.
    """

    __slots__ = ()

    def refuse(self) -> None:
        if self.head.error is not None:
            self.fail(self.head.error)

    def take(self, content: Buffer) -> None:
        """It is thrown away."""

    def end(self) -> None:
        if not self.ended and self._stream is not None:
            headers = http_refusal(self.head.http_status)
            self._stream.send(headers, (NOT_GRPC,), len(NOT_GRPC), NOT_GRPC_TRAILERS)
            self._end(Status.UNKNOWN)

    def on_message(self, message: Buffer) -> None:
        """None is read."""

    def on_end(self) -> None:
        """The end is not told."""
