"""Clients that do harm: requests that must be refused, and requests whose client goes away or reads slowly.

A request that is wrong gets one error of the client's, never an answer and never an error of the server's, and what
comes next on its connection is answered. Whoever goes away harms nobody: that shows in the answers of the others.
"""

from __future__ import annotations

import json
import os
import socket
import struct
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import grpc
import numpy as np
from tritonclient.grpc import service_pb2_grpc
from websockets.exceptions import ConnectionClosed, InvalidHandshake
from websockets.sync.client import connect

from tests.contract.servers.ports import HOST
from tests.histories.board import Failed, Judge
from tests.histories.grpc_client import CODES, channel_to, message_of
from tests.histories.http_client import LIMIT_S, Connection, Lost, error_text, infer_body, infer_outcome, message
from tests.histories.kinds import BY_KIND, Kind, Question

Document = dict[str, Any]


def _set(field: str, *found: Any) -> Callable[[Document, Random], None]:
    """Give a field of the first input a wrong value."""

    def change(document: Document, random: Random) -> None:
        document["inputs"][0][field] = random.choice(found)

    return change


def _add(document: Document, random: Random) -> None:
    document["inputs"].append(dict(document["inputs"][0], name=random.choice(("NIX", "", "IN\0"))))


def _cut_data(document: Document, random: Random) -> None:
    data = document["inputs"][0]["data"]
    document["inputs"][0]["data"] = random.choice((data[:-1], [*data, 1], [data, data], [], ["x"] * len(data)))


# Changes of the JSON of a good request to a model with the input IN, INT32 of 8 or more numbers in a row.
WRONG_JSON: tuple[Callable[[Document, Random], Any], ...] = (
    _set(
        "shape",
        [-1, 8],
        [1, -8],
        [-1, -8],
        [2**62, 0],
        [0, 2**62],
        [2**62, 4],
        [1, 2**62],
        [1, 9],
        [8],
        [],
        [1, 8, 1],
        [1.5, 8],
    ),
    _set("shape", "8", None, [True, 8], [2**64, 8], [-(2**63), 8], [10**30, 8], [[1], 8], {}),
    _set("datatype", "FP32", "INT64", "BYTES", "INT33", "", None, 7),
    _set("name", "NIX", "", None, 5, "\ud800"),
    _set("data", [2**31] * 8, ["1"] * 8, [None] * 8, [[1, 2], [3]], "text", {}, None, [1.5] * 8),
    _add,
    _cut_data,
    lambda document, random: document.update(inputs=random.choice(([], {}, None, 5, [5], [{}]))),
    lambda document, random: document.pop("inputs"),
    lambda document, random: document.update(outputs=[{"name": random.choice(("NIX", ""))}]),
    lambda document, random: document["inputs"][0].update(parameters={"binary_data_size": random.choice((31, 33, -1))}),
)
WRONG_TEXT: tuple[Callable[[bytes, Random], bytes], ...] = (
    lambda body, random: body[: random.randrange(len(body))],
    lambda body, random: body + b"}",
    lambda body, random: b"[" * 100_000,
    lambda body, random: b" ",
    lambda body, random: b"\xff" + body,
    lambda body, random: b"{}",
)


class Trouble:
    """One of everything, by chance. `kinds` are those that may be asked."""

    def __init__(self, http: int, grpc_port: int, judge: Judge, kinds: list[Kind]) -> None:
        self._http = http
        self._grpc = grpc_port
        self._judge = judge
        self._kinds = [kind for kind in kinds if not kind.is_sequence and "HTTP binary" in kind.transports]
        self._streams = [kind for kind in kinds if kind.responses == "many" and "events" in kind.transports]
        # IN is INT32, in rows of 8 or of any length.
        plain = ("plain", "python", "cached", "limited", "lengths", "unbatched")
        self._plain = [kind for kind in kinds if kind.name in plain]
        self._connection = Connection(http)
        self._channel = channel_to(grpc_port)
        self._stub = service_pb2_grpc.GRPCInferenceServiceStub(self._channel)

    def make(self, tag: int, random: Random) -> None:
        """Raises Failed."""
        made: list[Callable[[int, Random], None]] = []
        if self._plain:
            made += [self.wrong_http, self.wrong_grpc, self.shrunken_memory]
        if self._kinds:
            made += [self.cut_http, self.cut_grpc, self.half_closed]
        if self._streams:
            made += [self.cut_events, self.slow_reader, self.cut_stream, self.cut_socket]
        if made:
            random.choice(made)(tag, random)

    def close(self) -> None:
        self._connection.close()
        self._channel.close()

    # --- wrong requests

    def _longer(self, kind: Kind, tag: int, random: Random) -> Question:
        """A question whose lengths are not those that make it wrong."""
        question = kind.question(tag, random)
        while kind.name in ("lengths", "unbatched") and not 20 < question.inputs["IN"][1].size < 1000:
            question = kind.question(tag, random)
        return question

    def wrong_http(self, tag: int, random: Random) -> None:
        kind = random.choice(self._plain)
        question = self._longer(kind, tag, random)
        document = json.loads(infer_body(question, "JSON", random)[0])
        span = self._judge.begin(kind)
        if random.random() < 0.7:
            random.choice(WRONG_JSON)(document, random)
            body = json.dumps(document).encode()
        else:
            body = random.choice(WRONG_TEXT)(json.dumps(document).encode(), random)
        good, size = infer_body(question, "binary", random)
        path = f"/v2/models/{kind.name}/infer"
        try:
            self._connection.send(message(path, body, random))
            status, _, text = self._connection.response()
            what = f"{status} {text[:300]!r} to {body[:600]!r}"
            if not 400 <= status < 500:
                if self._judge.causes(span):
                    return
                raise Failed("not refused", what)
            error_text(text)
            # The connection goes on, and answers what comes next.
            self._connection.send(message(path, good, random, f"Inference-Header-Content-Length: {size}"))
            outcome = infer_outcome(*self._connection.response())
        except (OSError, Lost) as error:
            self._connection.close()
            if not self._judge.causes(span):
                raise Failed("lost", f"{type(error).__name__} {error} after {body[:600]!r}") from None
            return
        self._judge.judge(span, question, outcome, "HTTP after a wrong one")
        self._judge.count(kind.name, "HTTP, refused")

    def wrong_grpc(self, tag: int, random: Random) -> None:
        kind = random.choice(self._plain)
        sent = message_of(self._longer(kind, tag, random), random)
        changes: tuple[Callable[[], Any], ...] = (
            lambda: sent.inputs[0].shape.__setitem__(0, random.choice((-1, -8, 2**62, -(2**63)))),
            lambda: sent.inputs[0].shape.__setitem__(1, random.choice((-1, 7, 9, 0, 2**62))),
            lambda: sent.inputs[0].shape.append(1),
            lambda: setattr(sent.inputs[0], "datatype", random.choice(("FP32", "BYTES", "", "INT33"))),
            lambda: setattr(sent.inputs[0], "name", "NIX"),
            lambda: sent.inputs.add(name="MORE", datatype="INT32", shape=[1, 8]),
            lambda: sent.outputs.add(name="NIX"),
            lambda: sent.ClearField("inputs"),
            lambda: setattr(sent, "model_version", random.choice(("x", "99", "-1"))),
        )
        random.choice(changes)()
        span = self._judge.begin(kind)
        try:
            answer = self._stub.ModelInfer(sent, timeout=LIMIT_S)
        except grpc.RpcError as error:
            if CODES.get(error.code(), 500) in (400, 404, 501) or self._judge.causes(span):
                self._judge.count(kind.name, "gRPC, refused")
                return
            raise Failed("not refused", f"{error.code().name} {error.details()} to {sent}") from None
        raise Failed("not refused", f"{answer} to {sent}")

    def shrunken_memory(self, tag: int, random: Random) -> None:
        """A region that is smaller than it was when it was registered: an error for its request alone."""
        kind = random.choice(self._plain)
        name = f"histories-{os.getpid()}-{self._judge.client}-shrunken"
        path = Path("/dev/shm") / name
        span = self._judge.begin(kind)
        path.write_bytes(bytes(8192))
        try:
            status = self._post(
                f"/v2/systemsharedmemory/region/{name}/register", {"key": f"/{name}", "byte_size": 8192}
            )
            os.truncate(path, random.choice((0, 1, 4096)))
            region = {"shared_memory_region": name, "shared_memory_byte_size": 32, "shared_memory_offset": 8128}
            item = {"name": "IN", "datatype": "INT32", "shape": [1, 8], "parameters": region}
            if status == 200:
                status = self._post(f"/v2/models/{kind.name}/infer", {"inputs": [item]})
            if not 400 <= status < 500 and not self._judge.causes(span):
                raise Failed("not refused", f"{status} to a region that has shrunk")
            self._post(f"/v2/systemsharedmemory/region/{name}/unregister", {})
        except (OSError, Lost) as error:
            self._connection.close()
            if not self._judge.causes(span):
                raise Failed("lost", f"{error} with a region that has shrunk") from None
        finally:
            path.unlink()
        self._judge.count(kind.name, "shared memory, refused")

    def _post(self, path: str, document: Document) -> int:
        self._connection.send(message(path, json.dumps(document).encode(), Random(0), plain=True))
        return self._connection.response()[0]

    # --- clients that go away

    def cut_http(self, tag: int, random: Random) -> None:
        """A request that ends at any byte, or whose answer is not read."""
        kind = random.choice(self._kinds)
        body, size = infer_body(kind.question(tag, random), random.choice(("JSON", "binary")), random)
        headers = [] if size is None else [f"Inference-Header-Content-Length: {size}"]
        content = message(f"/v2/models/{kind.name}/infer", body, random, *headers)
        self._send_and_close(content[: random.choice((random.randrange(len(content)), len(content)))], random)

    def _send_and_close(self, content: bytes, random: Random, read: int = 0) -> None:
        try:
            with socket.create_connection((HOST, self._http), LIMIT_S) as client:
                if random.random() < 0.5:  # with a reset
                    client.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
                client.sendall(content)
                if read:
                    client.recv(read)
                elif random.random() < 0.5:
                    time.sleep(random.random() / 50)
        except OSError:
            return  # the server was quicker, or is away

    def cut_events(self, tag: int, random: Random) -> None:
        self._send_and_close(self._events(tag, random)[1], random, random.randrange(1, 3000))

    def _events(self, tag: int, random: Random) -> tuple[Question, bytes]:
        kind = random.choice(self._streams)
        question = kind.question(tag, random)
        body = json.dumps({"IN": question.inputs["IN"][1].reshape(-1).tolist()}).encode()
        return question, message(f"/v2/models/{kind.name}/generate_stream", body, random)

    def slow_reader(self, tag: int, random: Random) -> None:
        """Reads a few bytes at a time, and gets everything."""
        question, content = self._events(tag, random)
        span = self._judge.begin(question.kind)
        connection = Connection(self._http)
        try:
            connection.send(content)
            for _ in range(10):
                time.sleep(0.01)
                connection.receive(16)
            status, _, body = connection.response()
        except (OSError, Lost) as error:
            if not self._judge.causes(span):
                raise Failed("lost", f"{error} to a slow reader") from None
            return
        finally:
            connection.close()
        lines = [json.loads(line.removeprefix(b"data:")) for line in body.split(b"\n") if line] if status == 200 else []
        if status != 200 or any("error" in line for line in lines):
            if not self._judge.causes(span):
                raise Failed("lost", f"{status} {body[-300:]!r} to a slow reader")
            return
        shape = question.inputs["IN"][1].shape
        self._judge.check(span, question, [{"OUT": np.array(line["OUT"], np.int32).reshape(shape)} for line in lines])
        self._judge.count(question.kind.name, "slow events", max(1, len(lines)))

    def half_closed(self, tag: int, random: Random) -> None:
        """Closes the sending side, and gets its answer."""
        kind = random.choice(self._kinds)
        question = replace(kind.question(tag, random), id="", parameters={})
        body, size = infer_body(question, "binary", random)
        span = self._judge.begin(kind)
        connection = Connection(self._http)
        try:
            connection.send(
                message(f"/v2/models/{kind.name}/infer", body, random, f"Inference-Header-Content-Length: {size}")
            )
            connection.end_sending()
            outcome = infer_outcome(*connection.response())
        except (OSError, Lost) as error:
            if not self._judge.causes(span):
                raise Failed("lost", f"{kind.name}: {error} after the sending side was closed") from None
            return
        finally:
            connection.close()
        self._judge.judge(span, replace(question, is_doubtful=True), outcome, "HTTP, half closed")

    def cut_grpc(self, tag: int, random: Random) -> None:
        kind = random.choice([kind for kind in self._kinds if "gRPC" in kind.transports] or [BY_KIND["plain"]])
        question = replace(kind.question(tag, random), id="", parameters={})
        call = self._stub.ModelInfer.future(message_of(question, random), timeout=LIMIT_S)
        time.sleep(random.choice((0, random.random() / 100)))
        call.cancel()

    def cut_stream(self, tag: int, random: Random) -> None:
        """A stream of gRPC, cancelled after a response or at once."""
        kind = random.choice(self._streams)
        call = self._stub.ModelStreamInfer(iter([message_of(kind.question(tag, random), random)]), timeout=LIMIT_S)
        try:
            if random.random() < 0.7:
                next(call, None)
        except grpc.RpcError:
            return
        call.cancel()

    def cut_socket(self, tag: int, random: Random) -> None:
        """A WebSocket whose client goes away with a request unanswered."""
        kind = random.choice(self._streams)
        body, _ = infer_body(kind.question(tag, random), "JSON", random)
        try:
            stream = connect(f"ws://{HOST}:{self._http}/v2/models/{kind.name}/stream", open_timeout=LIMIT_S)
            stream.send(body.decode())
            if random.random() < 0.5:
                stream.socket.shutdown(socket.SHUT_RDWR)
            stream.close()
        except (OSError, InvalidHandshake, ConnectionClosed):
            return  # the model or the server is away
