"""A call that a function of the room `rpcs` serves."""

from __future__ import annotations

from core.grpc.calls.unary_call import UnaryCall
from core.inference.tensors import Buffer


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
