"""The upper bound for a large tensor in Python: receive into one buffer, run, send, on one thread.

    python -m bench.servers.socket_loop PORT build/bench/models/identity/1/model.onnx

It reads only the start and the length of the body from the HTTP header, and checks, counts and batches nothing. It is a
bound, not a server. The model is FP32 [n, d] -> FP32 [n, d]; a request is one binary tensor.
"""

from __future__ import annotations

import re
import selectors
import socket
import sys

import numpy as np
import onnxruntime

HEAD_END = b"\r\n\r\n"
LENGTH = re.compile(rb"(?i)\r\ncontent-length: *(\d+)")
OFFSET = re.compile(rb"(?i)\r\ninference-header-content-length: *(\d+)")
DESCRIPTION = (
    b'{"model_name":"identity","model_version":"1","outputs":[{"name":"OUTPUT","datatype":"FP32","shape":[%d,%d],'
    b'"parameters":{"binary_data_size":%d}}]}'
)
RESPONSE = (
    b"HTTP/1.1 200 OK\r\nContent-Type: application/octet-stream\r\nInference-Header-Content-Length: %d\r\n"
    b"Content-Length: %d\r\n\r\n%b"
)
READY, UNKNOWN = (b"HTTP/1.1 %b\r\nContent-Length: 0\r\n\r\n" % status for status in (b"200 OK", b"404 Not Found"))
STATISTICS = b'{"model_stats":[{"inference_stats":{"success":{"count":%d}}}]}'
COUNTED = b"HTTP/1.1 200 OK\r\nContent-Length: %d\r\n\r\n%b"


class Client:
    """One connection. `got` counts the received bytes of the body; `unsent` is the rest of the response.

    The memory of a body is that of the one before it. `answered` counts the requests of all connections.
    """

    answered = 0

    def __init__(self, sock: socket.socket) -> None:
        self.sock = sock
        self.memory = self.body = memoryview(b"")
        self.got = 0
        self.offset = 0
        self.unsent: list[memoryview] = []

    def receive(self) -> bool:
        """Receive the available bytes. Returns whether a request is complete. OSError at the end of the connection.

        BlockingIOError if more bytes are needed.
        """
        if not self.body:
            first = self.sock.recv(16384)
            if not first:
                raise ConnectionResetError
            end = first.index(HEAD_END) + len(HEAD_END)
            length, offset = LENGTH.search(first, 0, end), OFFSET.search(first, 0, end)
            if length is None or offset is None:
                self.unsent = [memoryview(self._other(first))]
                return False
            self.offset, self.got = int(offset[1]), len(first) - end
            if len(self.memory) < int(length[1]):
                self.memory = np.empty(int(length[1]), np.uint8).data
            self.body = self.memory[: int(length[1])]
            self.body[: self.got] = first[end:]
        while self.got < len(self.body):
            received = self.sock.recv_into(self.body[self.got :])
            if not received:
                raise ConnectionResetError
            self.got += received
        return True

    def answer(self, session: onnxruntime.InferenceSession) -> None:
        tensor = np.frombuffer(self.body[self.offset :], np.uint8)
        aligned = tensor if tensor.ctypes.data % 4 == 0 else tensor.copy()
        (result,) = session.run(None, {"INPUT": aligned.view(np.float32).reshape(1, -1)})
        self.body = memoryview(b"")
        description = DESCRIPTION % (*result.shape, result.nbytes)
        head = RESPONSE % (len(description), len(description) + result.nbytes, description)
        self.unsent = [memoryview(head), memoryview(result).cast("B")]
        Client.answered += 1

    def _other(self, head: bytes) -> bytes:
        if b"/stats " in head:
            content = STATISTICS % Client.answered
            return COUNTED % (len(content), content)
        return READY if b"/health/ready " in head else UNKNOWN

    def send(self) -> None:
        """Send as much as the socket accepts."""
        sent = self.sock.sendmsg(self.unsent)
        while self.unsent and sent >= len(self.unsent[0]):
            sent -= len(self.unsent.pop(0))
        if sent:
            self.unsent[0] = self.unsent[0][sent:]


def serve(port: int, model: str) -> None:
    session = onnxruntime.InferenceSession(model)
    listener = socket.create_server(("127.0.0.1", port), backlog=256)
    listener.setblocking(False)
    ready = selectors.DefaultSelector()
    ready.register(listener, selectors.EVENT_READ)
    while True:
        for key, _ in ready.select():
            if key.fileobj is listener:
                sock, _ = listener.accept()
                sock.setblocking(False)
                sock.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
                ready.register(sock, selectors.EVENT_READ, Client(sock))
                continue
            client: Client = key.data
            try:
                if not client.unsent and client.receive():
                    client.answer(session)
                while client.unsent:
                    client.send()
            except BlockingIOError:
                pass
            except OSError:
                ready.unregister(client.sock)
                client.sock.close()
                continue
            wanted = selectors.EVENT_WRITE if client.unsent else selectors.EVENT_READ
            if wanted != key.events:
                ready.modify(client.sock, wanted, client)


if __name__ == "__main__":
    serve(int(sys.argv[1]), sys.argv[2])
