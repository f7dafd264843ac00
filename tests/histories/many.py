"""Many small answers, for the least work of the client: pipelined requests of one size, and long streams of events.

Their answers are compared in one step.
"""

from __future__ import annotations

import contextlib
import json
import re
import socket
import time
from collections.abc import Sequence
from random import Random

import numpy as np

from tests.contract.servers.ports import HOST
from tests.histories.board import Failed, Judge, Span
from tests.histories.http_client import LIMIT_S, Connection, Lost, message
from tests.histories.kinds import BY_KIND, WIDTH, numbers
from trident.core.inference.tensors import Array

DEPTH = 64
CONNECTIONS = 4
_SIZE = 4 * WIDTH


class Rush:
    """Asks `plain` and `words` in turn. Several connections have requests in flight, so that the server has work while
    the answers of one are read."""

    def __init__(self, port: int, judge: Judge, kinds: Sequence[str]) -> None:
        self._judge = judge
        made = [one for one in (_Pipe, _EventStream) if one.kind.name in kinds]
        self._all: list[_Pipe | _EventStream] = [one(port) for one in made for _ in range(CONNECTIONS)]

    def ask(self, tag: int) -> int:
        """Once on each connection. Returns the number of tags used. Raises Failed."""
        for pipe in self._all:
            self._read(pipe)
            pipe.sent = self._judge.begin(pipe.kind), tag
            with contextlib.suppress(OSError):  # as the missing answers say
                pipe.send(tag)
            tag += DEPTH
        return DEPTH * len(self._all)

    def finish(self) -> None:
        """Read the answers in flight, and close the connections."""
        for pipe in self._all:
            self._read(pipe)
            pipe.close()

    def _read(self, pipe: _Pipe | _EventStream) -> None:
        if pipe.sent is None:
            return
        span, tag = pipe.sent
        pipe.sent = None
        try:
            answers, given = pipe.answers()
        except (OSError, ValueError, Lost) as error:
            pipe.close()
            if not self._judge.causes(span):
                raise Failed("lost", f"{pipe.transport} from tag {tag}: {error}") from None
            self._judge.explained[pipe.transport] += pipe.count
            time.sleep(0.05)
            return
        if answers.shape != given.shape:
            raise Failed("wrong", f"answers of shape {answers.shape} to {given.shape}, tag {tag}")
        weights = answers[:, 0] - given[:, 0]
        wrong = (answers - given != weights[:, None]).any(axis=1)
        if wrong.any():
            at = int(np.flatnonzero(wrong)[0])
            raise Failed("wrong", f"tag {tag}, request {at}: {answers[at].tolist()} to {given[at].tolist()}")
        for weight in set(weights.tolist()):
            self._judge.check_weights(span, (weight,))
        self._judge.note(span, pipe.transport, tag, "")
        self._judge.count(pipe.kind.name, pipe.transport, pipe.count)


class _Pipe:
    """A connection with DEPTH requests in flight. `sent`: when they were sent, and the first tag."""

    kind = BY_KIND["plain"]
    transport = "HTTP pipelined"
    count = DEPTH

    def __init__(self, port: int) -> None:
        self._port = port
        self._socket: socket.socket | None = None
        self.sent: tuple[Span, int] | None = None
        item = {"name": "IN", "shape": [1, WIDTH], "datatype": "INT32", "parameters": {"binary_data_size": _SIZE}}
        document = {"inputs": [item], "outputs": [{"name": "OUT", "parameters": {"binary_data": True}}]}
        head = json.dumps(document).encode()
        fields = f"Inference-Header-Content-Length: {len(head)}\r\nContent-Length: {len(head) + _SIZE}"
        self._head = f"POST /v2/models/plain/infer HTTP/1.1\r\nHost: x\r\n{fields}\r\n\r\n".encode() + head

    def send(self, tag: int) -> None:
        given = self._given = numbers(tag, DEPTH * WIDTH).astype(np.int32).reshape(DEPTH, WIDTH)
        if self._socket is None:
            self._socket = socket.create_connection((HOST, self._port), LIMIT_S)
        size = len(self._head)
        content = np.empty((DEPTH, size + _SIZE), np.uint8)
        content[:, :size] = np.frombuffer(self._head, np.uint8)
        content[:, size:] = given.view(np.uint8)
        self._socket.sendall(content.tobytes())

    def answers(self) -> tuple[Array, Array]:
        """The content of DEPTH answers, a row each, and what was sent. Raises ValueError if they differ otherwise."""
        content = bytearray()
        size = wanted = 0
        while not wanted or len(content) < wanted:
            if self._socket is None:
                raise Lost("there is no connection")
            if not (some := self._socket.recv(1 << 18)):
                raise ValueError(f"the connection was closed after {bytes(content[:300])!r}")
            content += some
            if content.count(b"HTTP/1.1 ") != content.count(b"HTTP/1.1 200"):
                raise ValueError(f"an error among the answers: {bytes(content[-300:])!r}")
            if not wanted and (end := content.find(b"\r\n\r\n")) >= 0:
                size = end + 4 + _content_length(bytes(content[:end]))
                wanted = size * DEPTH
        rows = np.frombuffer(content, np.uint8)
        if len(rows) != wanted:
            raise ValueError(f"{len(rows)} bytes instead of {wanted}: {bytes(content[-300:])!r}")
        rows = rows.reshape(DEPTH, size)
        # Only the tensor and the second of the date differ.
        date = content.find(b"Date: ") + len("Date: Sat, 28 Nov 2026 ")
        same = rows[:, :-_SIZE] == rows[0, :-_SIZE]
        same[:, date : date + len("20:31:34")] = True
        if not same.all() or not content.startswith(b"HTTP/1.1 200"):
            raise ValueError(f"answers differ: {bytes(content[:2000])!r}")
        return np.ascontiguousarray(rows[:, -_SIZE:]).view(np.int32), self._given

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None


def _content_length(head: bytes) -> int:
    for line in head.lower().split(b"\r\n"):
        if line.startswith(b"content-length:"):
            return int(line.partition(b":")[2])
    raise ValueError(f"no length: {head!r}")


class _EventStream:
    """A connection with one request in flight, whose answers are many events."""

    kind = BY_KIND["words"]
    transport = "many events"
    count = 63

    def __init__(self, port: int) -> None:
        self._connection = Connection(port)
        self.sent: tuple[Span, int] | None = None

    def send(self, tag: int) -> None:
        self._given = int(numbers(tag, 1)[0]) % (1 << 20) * 64 + self.count
        body = b'{"IN": %d}' % self._given
        self._connection.send(message("/v2/models/words/generate_stream", body, Random(0), plain=True))

    def answers(self) -> tuple[Array, Array]:
        status, _, body = self._connection.response()
        if status != 200 or b"error" in body:
            raise ValueError(f"{status} {body[-300:]!r}")
        found = np.array(re.findall(rb'"OUT":(-?\d+)', body), np.int64)[None]
        return found, np.arange(self.count)[None] + self._given

    def close(self) -> None:
        self._connection.close()
