"""Requests over HTTP, written and read byte by byte: JSON, binary, chunked, compressed, pipelined, in shared memory."""

from __future__ import annotations

import gzip
import json
import mmap
import os
import select
import socket
import zlib
from collections.abc import Callable, Sequence
from itertools import pairwise
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from tests.contract.servers.ports import HOST
from tests.histories.board import Outcome
from tests.histories.kinds import Answer, Question
from trident.core.inference.tensors import BY_NAME, Array, bytes_array, pack_bytes

LIMIT_S = 60.0
_LATIN = "\ue000"


class Lost(Exception):
    """The connection ended, or no answer came within the limit."""


class Connection:
    """A client's connection, opened by the first request and again after it was closed."""

    def __init__(self, port: int) -> None:
        self.port = port
        self._socket: socket.socket | None = None
        self._unread = bytearray()

    def send(self, content: bytes) -> None:
        if self._socket is not None and select.select([self._socket], [], [], 0)[0]:
            self.close()  # by the other side, since the last answer
        if self._socket is None:
            self._socket = socket.create_connection((HOST, self.port), LIMIT_S)
            self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket.sendall(content)

    def close(self) -> None:
        if self._socket is not None:
            self._socket.close()
        self._socket = None
        self._unread.clear()

    def read(self, size: int) -> bytes:
        while len(self._unread) < size:
            self.receive()
        found = bytes(self._unread[:size])
        del self._unread[:size]
        return found

    def read_to(self, end: bytes) -> bytes:
        while (at := self._unread.find(end)) < 0:
            self.receive()
        return self.read(at + len(end))

    def end_sending(self) -> None:
        assert self._socket is not None
        self._socket.shutdown(socket.SHUT_WR)

    def receive(self, size: int = 1 << 18) -> None:
        """Wait for some bytes. Raises Lost at the end of the connection."""
        if self._socket is None or not (some := self._socket.recv(size)):
            raise Lost("the connection was closed")
        self._unread += some

    def response(self) -> tuple[int, dict[str, str], bytes]:
        """The next response, whole."""
        status = 100
        while status == 100:  # sent to a client that ended its sending side, to learn whether it is there
            lines = self.read_to(b"\r\n\r\n").decode("latin-1").split("\r\n")
            status = int(lines[0].split()[1])
        headers = {name.lower(): value.strip() for name, _, value in (line.partition(":") for line in lines[1:])}
        if headers.get("transfer-encoding") == "chunked":
            body = b"".join(iter(self._chunk, b""))
        else:
            body = self.read(int(headers.get("content-length", "0")))
        if headers.get("connection", "").lower() == "close":
            self.close()
        return status, headers, body

    def _chunk(self) -> bytes:
        content = self.read(int(self.read_to(b"\r\n"), 16))
        self.read(2)
        return content

    @property
    def has_more(self) -> bool:
        """Bytes that no request has asked for."""
        return bool(self._unread)


# --- infer


def json_text(document: Any, random: Random) -> bytes:
    """With characters escaped or not. In an id, _LATIN begins bytes that are not UTF-8."""
    text = json.dumps(document, ensure_ascii=random.random() < 0.5, allow_nan=True)
    return text.encode(errors="surrogatepass")


def is_text(array: Array) -> bool:
    try:
        return all(bytes(element).decode() is not None for element in array.reshape(-1))
    except UnicodeDecodeError:
        return False


def json_data(datatype: str, array: Array) -> list[Any]:
    flat: list[Any] = array.reshape(-1).tolist()
    return [element.decode() for element in flat] if datatype == "BYTES" else flat


def raw(datatype: str, array: Array) -> bytes:
    return bytes(pack_bytes(array.reshape(-1).tolist()) if datatype == "BYTES" else array.tobytes())


def array_from(datatype: str, shape: Sequence[int], content: bytes) -> Array:
    if datatype != "BYTES":
        return np.frombuffer(content, BY_NAME[datatype].dtype).reshape(shape)
    elements, at = [], 0
    while at < len(content):
        size = int.from_bytes(content[at : at + 4], "little")
        elements.append(content[at + 4 : at + 4 + size])
        at += 4 + size
    return bytes_array(elements, tuple(shape))


def document_of(question: Question) -> dict[str, Any]:
    """The head of an infer request, without its tensors."""
    parameters = dict(question.parameters)
    if question.marks is not None:
        start, end = question.marks
        parameters |= {"sequence_id": question.sequence, "sequence_start": start, "sequence_end": end}
    document: dict[str, Any] = {"parameters": parameters} if parameters else {}
    if question.id:
        document["id"] = _LATIN if isinstance(question.id, bytes) else question.id
    return document


def infer_body(question: Question, form: str, random: Random) -> tuple[bytes, int | None]:
    """The body of an infer request, and the length of its JSON unless it is all of it.

    `form` is JSON, binary or mixed.
    """
    document = document_of(question)
    items, parts = [], []
    all_text = form != "binary"
    for name, (datatype, array) in question.inputs.items():
        item: dict[str, Any] = {"name": name, "shape": list(array.shape), "datatype": datatype}
        fits = datatype not in ("FP16", "BF16") and (datatype != "BYTES" or is_text(array))
        all_text &= fits
        if form == "JSON" or (form == "mixed" and random.random() < 0.5):
            form_of_item = "JSON" if fits else "binary"
        else:
            form_of_item = "binary"
        if form_of_item == "JSON":
            item["data"] = json_data(datatype, array)
        else:
            parts.append(raw(datatype, array))
            item["parameters"] = {"binary_data_size": len(parts[-1])}
        items.append(item)
    document["inputs"] = items
    if not all_text or form == "binary":
        document.setdefault("parameters", {})["binary_data_output"] = True
    head = with_bytes(json_text(document, random), question)
    return head + b"".join(parts), len(head) if parts else None


def with_bytes(head: bytes, question: Question) -> bytes:
    """Put an id of bytes where the text has its mark."""
    if not isinstance(question.id, bytes):
        return head
    mark = json.dumps(_LATIN).encode()[1:-1]
    return head.replace(mark, question.id).replace(_LATIN.encode(), question.id)


def answer_of(body: bytes, json_size: int | None) -> tuple[Answer, dict[str, Any]]:
    """The outputs of an infer response, and the rest of its JSON."""
    # An id that is not UTF-8 comes back as it was.
    document = json.loads(body[:json_size].decode(errors="surrogateescape"))
    at = len(body) if json_size is None else json_size
    outputs = {}
    for item in document.pop("outputs", ()):
        size = item.get("parameters", {}).get("binary_data_size")
        if size is None:
            outputs[item["name"]] = from_json(item["datatype"], item["shape"], item["data"])
        else:
            outputs[item["name"]] = array_from(item["datatype"], item["shape"], body[at : at + size])
            at += size
    if at != len(body):
        raise Lost(f"{len(body) - at} bytes after the last output")
    return outputs, document


def from_json(datatype: str, shape: Sequence[int], data: list[Any]) -> Array:
    if datatype == "BYTES":
        return bytes_array([element.encode() for element in data], tuple(shape))
    return np.array(data, BY_NAME[datatype].dtype).reshape(shape)


def infer_outcome(status: int, headers: dict[str, str], body: bytes) -> Outcome:
    if status != 200:
        return Outcome(status=status, error=error_text(body))
    size = headers.get("inference-header-content-length")
    outputs, document = answer_of(body, None if size is None else int(size))
    return Outcome([outputs], id=document.get("id", ""))


def error_text(body: bytes) -> str:
    try:
        return str(json.loads(body)["error"])
    except (ValueError, KeyError, TypeError):
        raise Lost(f"an error that is not JSON: {body[:200]!r}") from None


def message(path: str, body: bytes, random: Random, *headers: str, plain: bool = False) -> bytes:
    """A POST request: sometimes in chunks, and sometimes compressed, which only infer takes."""
    encoding = "" if plain or not path.endswith("/infer") else random.choice(("", "", "", "gzip", "deflate"))
    lines = [f"POST {path} HTTP/1.1", "Host: x", *headers]
    if encoding:
        body = gzip.compress(body, 1) if encoding == "gzip" else zlib.compress(body, 1)
        lines.append(f"Content-Encoding: {encoding}")
    if not plain and random.random() < 0.2:
        lines.append("Transfer-Encoding: chunked")
        cuts = sorted({0, len(body), *(random.randrange(len(body) + 1) for _ in range(3))})
        body = b"".join(b"%x\r\n%s\r\n" % (end - begin, body[begin:end]) for begin, end in pairwise(cuts))
        body += b"0\r\n\r\n"
    else:
        lines.append(f"Content-Length: {len(body)}")
    return "\r\n".join(lines).encode() + b"\r\n\r\n" + body


class HttpAsker:
    """Infer requests, one after the other or several at once on one connection."""

    def __init__(self, port: int, form: str) -> None:
        self.connection = Connection(port)
        self._form = form

    def request(self, question: Question, random: Random) -> bytes:
        body, size = infer_body(question, self._form, random)
        headers = [] if size is None else [f"Inference-Header-Content-Length: {size}"]
        return message(f"/v2/models/{question.kind.name}/infer", body, random, *headers)

    def ask(self, questions: Sequence[Question], random: Random) -> list[Outcome]:
        try:
            return self.answers(questions, random)
        except (OSError, Lost) as error:
            self.connection.close()
            return [Outcome(status=0, error=f"{type(error).__name__} {error}")] * len(questions)

    def answers(self, questions: Sequence[Question], random: Random) -> list[Outcome]:
        """Raises OSError and Lost."""
        self.connection.send(b"".join([self.request(question, random) for question in questions]))
        found = [infer_outcome(*self.connection.response()) for _ in questions]
        if self.connection.has_more:
            found[-1].after += 1
        return found

    def close(self) -> None:
        self.connection.close()


# --- shared memory


class MemoryAsker(HttpAsker):
    """Inputs lie in a region of shared memory; outputs come in the response."""

    SIZE = 1 << 20

    def __init__(self, port: int, name: str, deaths: Callable[[], int]) -> None:
        super().__init__(port, "JSON")
        self._deaths = deaths
        self._registered_after = -1
        self.path = Path("/dev/shm") / name
        self.name = name
        with self.path.open("wb") as file:
            file.truncate(self.SIZE)
        descriptor = os.open(self.path, os.O_RDWR)
        self._memory = mmap.mmap(descriptor, self.SIZE)
        os.close(descriptor)

    def ask(self, questions: Sequence[Question], random: Random) -> list[Outcome]:
        # An engine that has restarted does not know the regions.
        if self._registered_after != self._deaths() and (problem := self._register()) is not None:
            return [problem] * len(questions)
        return super().ask(questions, random)

    def _register(self) -> Outcome | None:
        deaths = self._deaths()
        body = json.dumps({"key": f"/{self.name}", "offset": 0, "byte_size": self.SIZE}).encode()
        path = f"/v2/systemsharedmemory/region/{self.name}"
        try:
            for action, content in (("unregister", b"{}"), ("register", body)):
                self.connection.send(message(f"{path}/{action}", content, Random(0), plain=True))
                status, _, text = self.connection.response()
                if status != 200:
                    return Outcome(status=status, error=f"{action}: {error_text(text)}")
        except (OSError, Lost) as error:
            self.connection.close()
            return Outcome(status=0, error=str(error))
        self._registered_after = deaths
        return None

    def request(self, question: Question, random: Random) -> bytes:
        document = document_of(question)
        items, at = [], 64 * random.randrange(4)
        for name, (datatype, array) in question.inputs.items():
            content = raw(datatype, array)
            self._memory[at : at + len(content)] = content
            region = {
                "shared_memory_region": self.name,
                "shared_memory_byte_size": len(content),
                "shared_memory_offset": at,
            }
            items.append({"name": name, "shape": list(array.shape), "datatype": datatype, "parameters": region})
            at += len(content)
        document["inputs"] = items
        document.setdefault("parameters", {})["binary_data_output"] = True
        head = with_bytes(json_text(document, random), question)
        return message(f"/v2/models/{question.kind.name}/infer", head, random, plain=True)

    def close(self) -> None:
        super().close()
        self._memory.close()
        self.path.unlink()


# --- generate and generate_stream


class GenerateAsker(HttpAsker):
    """A JSON object, or Server-Sent Events, whose values are the elements of OUT."""

    def __init__(self, port: int) -> None:
        super().__init__(port, "JSON")

    def request(self, question: Question, random: Random) -> bytes:
        (_, array) = question.inputs["IN"]
        document = {**document_of(question), "IN": json_data("INT32", array)}
        body = with_bytes(json_text(document, random), question)
        action = "generate_stream" if question.kind.responses == "many" else "generate"
        return message(f"/v2/models/{question.kind.name}/{action}", body, random)

    def ask(self, questions: Sequence[Question], random: Random) -> list[Outcome]:
        return [self._ask(question, random) for question in questions]

    def _ask(self, question: Question, random: Random) -> Outcome:
        shape = question.inputs["IN"][1].shape
        found = Outcome()
        try:
            self.connection.send(self.request(question, random))
            status, _, body = self.connection.response()
            if status != 200:
                return Outcome(status=status, error=error_text(body))
            for line in body.split(b"\n"):
                if not line:
                    continue
                event = json.loads(line.removeprefix(b"data:"))
                if "error" in event:
                    found.status, found.error = 500, event["error"]
                else:
                    found.answers.append({"OUT": np.array(event["OUT"], np.int32).reshape(shape)})
                    found.id = event.get("id", "")
            return found
        except (OSError, Lost) as error:
            self.connection.close()
            return Outcome(status=0, error=f"{type(error).__name__} {error}")
