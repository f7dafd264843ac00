"""A connection of a front end to an engine that the test plays by hand."""

from __future__ import annotations

import socket
from pathlib import Path

from tests.unit.core.remote.remote_parts import LIMIT_S, PAGE, Answer
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import InferenceResponse, OutputTensor
from trident.core.inference.tensors import Array
from trident.core.interprocess.frames import Frame, FrameReader
from trident.core.interprocess.shared_memory import SharedMemory
from trident.core.remote.connection import Connection
from trident.core.remote.engine_server import EngineState
from trident.core.remote.infer_frames import RequestReader, ResponseWriter
from trident.core.remote.wire import REQUEST, TO_ENGINE

MEMORY = 128 * PAGE
HALF = MEMORY // 2


class Ends:
    """A connection, and the engine's end of it. Everything runs on the test's thread."""

    def __init__(self, folder: Path, memory_bytes: int = MEMORY) -> None:
        path = str(folder / "engine.sock")
        self.listener = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.listener.bind(path)
        self.listener.listen()
        self.states: list[EngineState] = []
        self.wakes = 0
        self.connection = Connection(path, memory_bytes, self.states.append, self._wake)
        self.sock, _ = self.listener.accept()
        self.sock.settimeout(LIMIT_S)
        self._reader = FrameReader(TO_ENGINE, "peer")
        content, (descriptor,), _, _ = socket.recv_fds(self.sock, 4096, 4)
        ((self.kind, _, _, _, self.greeting),) = self._reader.feed(content)
        self.shared_memory = SharedMemory.attach(descriptor)
        self._frames: list[Frame] = []
        self._requests = RequestReader(lambda offset, size: self.shared_memory.view(offset, size).data)

    def _wake(self) -> None:
        self.wakes += 1

    def next(self) -> Frame:
        """The next frame that the connection has sent."""
        self.connection.flush()
        while not self._frames:
            self._frames = self._reader.feed(self.sock.recv(1 << 20))
        return self._frames.pop(0)

    def next_request(self) -> tuple[int, InferenceRequest, int]:
        """The next request: its number, the request, and how many of its inputs are in shared memory."""
        kind, _, shared, number, content = self.next()
        assert kind == REQUEST
        return number, self._requests.read(content, shared), shared

    def give(self, content: bytes) -> None:
        """Send `content` as the engine, and let the connection read it."""
        self.sock.sendall(content)
        self.connection.read()

    def answer(
        self, number: int, values: Array | None = None, offset: int | None = None, *, final: bool = True
    ) -> None:
        outputs = [] if values is None else [OutputTensor("OUT", "INT32", values.shape, values)]
        response = InferenceResponse("simple", 1, outputs, final=final)
        self.give(ResponseWriter(lambda content: offset).write(response, number))

    def submit(self, request: InferenceRequest) -> Answer:
        answer = Answer(request)
        self.connection.submit(answer.pending)
        return answer

    def close(self) -> None:
        self.connection.lose("the test is over")
        self.shared_memory.close()
        self.sock.close()
        self.listener.close()
