"""Server reflection: clients such as grpcurl ask which services there are and what their messages look like.

Source: grpc's `server-reflection.md`.
"""

from __future__ import annotations

from collections import deque

from trident.core.grpc.call import Call
from trident.core.grpc.front_end import GrpcFrontEnd, stopping
from trident.core.grpc.headers import RequestHead
from trident.core.grpc.status import Status
from trident.core.grpc.transport import Stream
from trident.core.inference.pending_request import CancelCause
from trident.core.inference.tensors import Buffer


class ReflectionCall(Call):
    """Answers one question after the other, in a greenlet that runs while there are some."""

    __slots__ = ("_has_ended", "_questions")

    def __init__(self, front_end: GrpcFrontEnd, stream: Stream, head: RequestHead) -> None:
        super().__init__(front_end, stream, head)
        self._questions: deque[Buffer] = deque()
        self._has_ended = False
        front_end.streams.add(self.leave)

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

    def leave(self) -> None:
        self.fail(stopping())

    def _end(self, status: Status) -> None:
        super()._end(status)
        self.front_end.streams.remove(self.leave)

    def _answer_all(self) -> None:
        method = self.head.method
        assert method is not None
        version = method.service.split(".")[-2]
        while self._questions:
            content = self.front_end.bridge.run(_answer, version, self._questions.popleft())
            self.send((content,), len(content))
        self.resume()
        if self._has_ended:
            self.finish()


def _answer(version: str, question: Buffer) -> bytes:
    # Imported off the hub, when somebody asks: it imports protobuf.
    from trident.core.grpc.reflection_messages import answer

    return answer(version, question)
