"""`trident bench --replay`: the requests of a payload log, sent at their recorded times, and the answers that differ.

Requests are made before the first is sent, and wait in a temporary file, as their answers do until all have come: what
they take in memory and time disturbs no schedule. docs/payload-log.md describes the log.
"""

from __future__ import annotations

import gc
import json
import select
import tempfile
import time
from base64 import b64decode
from collections import Counter, defaultdict, deque
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, field
from datetime import datetime
from pathlib import Path
from typing import IO, Any
from urllib.parse import quote, urlsplit

import numpy as np

from trident.adapters.common.options import BadOption
from trident.app.terminal import counted, table
from trident.core.config.golden import (
    EXACT,
    FLOATING,
    TENSOR_FIELDS,
    ExpectedOutput,
    Fields,
    GoldenTensor,
    Malformed,
    Tolerance,
    golden_tensor,
    is_floating,
)
from trident.core.errors import ServerError
from trident.core.inference.response import OutputTensor
from trident.core.inference.tensors import BY_NAME
from trident.core.lifecycle.golden_check import differences
from trident.core.observability.log import say
from trident.tools.bench.client import Broken, HttpConnection, Target, http_request
from trident.tools.bench.measure import number as figure
from trident.tools.bench.requests import array_of, v2_body

_CONNECTIONS, _MOST_CONNECTIONS = 16, 256
_ANSWER_S = 30.0
_SHOWN = 10
_IN_MEMORY = 256 << 20
_HEADER_LENGTH = b"inference-header-content-length"
_LEFT_OUT = "left_out"


@dataclass(slots=True)
class Recorded:
    """A request of the log. `place` is its file and the offset of its line, `spooled` the offset of what is sent and
    its size after the first line. `sequence` is not empty for one that must follow the answer to the one before it."""

    at: float
    model: str
    duration_ms: float
    place: tuple[Path, int]
    spooled: tuple[int, int]
    sequence: str


@dataclass(slots=True)
class Side:
    """One server's answers: by the number of a request, the offset and size of its answer, or why there is none."""

    url: str
    answers: dict[int, tuple[int, int]] = field(default_factory=dict)
    errors: dict[int, str] = field(default_factory=dict)
    latency_ms: dict[int, float] = field(default_factory=dict)
    late_ms: list[float] = field(default_factory=list)


class Log:
    """The lines of a log that can be sent. `skipped` counts the others by reason."""

    def __init__(
        self, paths: Sequence[Path], spool: IO[bytes], model: str, version: str, headers: Mapping[str, str]
    ) -> None:
        """`spool` gets what is sent. `model` may be empty for all. Raises BadOption if it is not a payload log."""
        self.requests: list[Recorded] = []
        self.skipped: Counter[str] = Counter()
        self.spool = spool
        self._only, self._version, self._headers = model, version, headers
        for path in paths:
            self._read(path)
        self.requests.sort(key=lambda each: each.at)
        first = self.requests[0].at if self.requests else 0.0
        for each in self.requests:
            each.at -= first

    def _read(self, path: Path) -> None:
        offset = 0
        try:
            with path.open("rb") as file:
                for index, line in enumerate(file, 1):
                    where, offset = (path, offset), offset + len(line)
                    try:
                        self._add(json.loads(line), where)
                    except (ValueError, TypeError, KeyError, AttributeError, Malformed, ServerError) as error:
                        raise BadOption(f"{path}:{index} is not a line of a payload log: {error!r}") from None
        except OSError as error:
            raise BadOption(f"--replay {path}: {error.strerror}") from None

    def _add(self, line: dict[str, Any], where: tuple[Path, int]) -> None:
        model, request, responses = line["model_name"], line["request"], line["responses"]
        if self._only and model != self._only:
            return
        left_out = next((each[_LEFT_OUT] for each in request["inputs"] if _LEFT_OUT in each), "")
        if left_out or len(responses) != 1 or "responses_left_out" in line:
            self.skipped[f"inputs left out: {left_out}" if left_out else "streams of responses"] += 1
            return
        parameters = dict(request.get("parameters", {}))
        body, size = _body(request, parameters)
        version = f"/versions/{self._version}" if self._version else ""
        headers = {**self._headers, "Inference-Header-Content-Length": str(size)}
        path = f"/v2/models/{quote(model, safe='')}{version}/infer"
        first, _, rest = http_request("", path, headers, body).partition(b"\r\n")
        spooled = self.spool.tell(), len(rest)
        self.spool.write(first.lstrip() + b"\r\n" + rest)
        sequence = parameters.get("sequence_id", "")
        key = f"{model}/{sequence}" if sequence else ""
        at = datetime.fromisoformat(line["time"]).timestamp()
        self.requests.append(Recorded(at, model, line["duration_us"] / 1e3, where, spooled, key))

    def line(self, request: Recorded) -> dict[str, Any]:
        path, offset = request.place
        with path.open("rb") as file:
            file.seek(offset)
            found: dict[str, Any] = json.loads(file.readline())
            return found

    def sent(self, request: Recorded, prefix: bytes, host: bytes) -> bytes:
        """The whole request to `host`, where the routes begin with `prefix`."""
        offset, size = request.spooled
        self.spool.seek(offset)
        return b"".join((b"POST ", prefix, self.spool.readline(), b"Host: ", host, b"\r\n", self.spool.read(size)))


def _body(request: dict[str, Any], parameters: dict[str, Any]) -> tuple[bytes, int]:
    """The v2 request with binary tensors, and the size of its JSON."""
    document: dict[str, Any] = {"id": request["id"]} if request.get("id") else {}
    document["parameters"] = {**parameters, "binary_data_output": True}
    if request.get("outputs"):
        wanted = {"binary_data": True}
        document["outputs"] = [{"name": each["name"], "parameters": wanted} for each in request["outputs"]]
    body, size = v2_body(document, [_tensor(each) for each in request["inputs"]])
    return body, size or len(body)


def _tensor(entry: dict[str, Any]) -> GoldenTensor:
    """A tensor of the log. Raises Malformed."""
    if "base64" not in entry:
        return golden_tensor(Fields(entry, "", TENSOR_FIELDS))
    return _of_bytes(entry, b64decode(entry["base64"], validate=True))


def _of_bytes(entry: Mapping[str, Any], content: bytes) -> GoldenTensor:
    """The tensor of this name, datatype and shape. Raises Malformed or ServerError."""
    name, datatype = entry["name"], BY_NAME.get(entry["datatype"])
    if datatype is None:
        raise Malformed(f"{name}: there is no datatype {entry['datatype']}")
    return GoldenTensor(name, datatype, array_of(datatype, content, entry["shape"], name))


# --- sending


class _Connection(HttpConnection):
    """Keeps the whole answer. `number` is the request under way."""

    number = -1
    answer = b""

    def ask(self, number: int, request: bytes, due: float) -> None:
        self.number, self.answer, self.requests = number, b"", iter((request,))
        self.send(due)

    def feed(self, data: bytes, done: Callable[[float, str], None]) -> None:
        self.answer += data
        super().feed(data, done)


class Player:
    """Sends the requests of a log to one server, and keeps its answers in `spool`."""

    def __init__(self, log: Log, side: Side, spool: IO[bytes]) -> None:
        at = urlsplit(side.url)
        port = at.port or (443 if at.scheme == "https" else 80)
        self._target = Target(at.hostname or "", port, [[b""]], tls=at.scheme == "https")
        self._prefix, self._host = at.path.rstrip("/").encode(), at.netloc.encode()
        self._log, self._side, self._spool = log, side, spool
        self._poll = select.epoll()
        self._connections: dict[int, _Connection] = {}
        self._idle: deque[_Connection] = deque()
        # Requests that are due and wait for a connection, or for the answer before theirs in a sequence.
        self._waiting: deque[tuple[int, float]] = deque()
        self._sequences: dict[str, deque[tuple[int, float]]] = {}

    def _open(self) -> _Connection:
        connection = _Connection(self._target, 0)
        self._connections[connection.socket.fileno()] = connection
        self._poll.register(connection.socket.fileno(), select.EPOLLIN)
        return connection

    def play(self, speed: float, tick: Callable[[str], None]) -> None:
        """Send each request at its time, `speed` times as fast, and wait for the answers.

        Raises OSError if the server cannot be reached.
        """
        gc.collect()
        gc.disable()
        try:
            for _ in range(min(_CONNECTIONS, len(self._log.requests))):
                self._idle.append(self._open())
            self._play([each.at / speed for each in self._log.requests], tick)
        finally:
            gc.enable()
            for connection in self._connections.values():
                connection.socket.close()
            self._poll.close()

    def _play(self, times: Sequence[float], tick: Callable[[str], None]) -> None:
        now = time.perf_counter
        start, sent, told = now(), 0, 0.0
        answered = self._side.latency_ms
        while len(answered) + len(self._side.errors) < len(times):
            at = now()
            while sent < len(times) and start + times[sent] <= at:
                self._begin(sent, start + times[sent])
                sent += 1
                at = now()
            if sent == len(times) and at > start + times[-1] + _ANSWER_S:
                break
            pause = min(0.5, start + times[sent] - at) if sent < len(times) else 0.5
            if at - told > 1 and pause > 0.005:
                told = at
                tick(f"{self._side.url}: {sent} of {len(times)} requests")
            # The descriptor of epoll in select, whose timeouts are finer.
            select.select([self._poll], [], [], max(0.0, pause))
            for descriptor, events in self._poll.poll(0):
                self._look_at(descriptor, events)
                if sent < len(times) and start + times[sent] <= now():
                    break  # sending comes first
        for number in range(len(times)):
            if number not in answered:
                self._side.errors.setdefault(number, f"no answer within {_ANSWER_S:g} s of the end")

    def _begin(self, number: int, due: float) -> None:
        key = self._log.requests[number].sequence
        if key in self._sequences:
            self._sequences[key].append((number, due))
            return
        if key:
            self._sequences[key] = deque()
        self._send(number, due)

    def _send(self, number: int, due: float) -> None:
        if not self._idle and len(self._connections) < _MOST_CONNECTIONS:
            try:
                self._idle.append(self._open())
            except OSError as error:
                self._end(number, 0.0, str(error))
                return
        if not self._idle:
            self._waiting.append((number, due))
            return
        connection = self._idle.pop()
        connection.ask(number, self._log.sent(self._log.requests[number], self._prefix, self._host), due)
        self._side.late_ms.append((time.perf_counter() - due) * 1e3)
        if connection.waiting:
            self._poll.modify(connection.socket.fileno(), select.EPOLLIN | select.EPOLLOUT)

    def _end(self, number: int, begun: float, error: str) -> None:
        if error:
            self._side.errors[number] = error
        else:
            self._side.latency_ms[number] = (time.perf_counter() - begun) * 1e3
        key = self._log.requests[number].sequence
        if key and self._sequences[key]:
            self._send(*self._sequences[key].popleft())
        elif key:
            del self._sequences[key]
        if self._waiting and self._idle:
            self._send(*self._waiting.popleft())

    def _look_at(self, descriptor: int, events: int) -> None:
        connection = self._connections[descriptor]

        def done(begun: float, error: str) -> None:
            number = connection.number
            if not error:
                self._side.answers[number] = self._spool.tell(), len(connection.answer)
                self._spool.write(connection.answer)
            self._idle.append(connection)
            self._end(number, begun, error)

        try:
            if events & select.EPOLLOUT:
                connection.flush()
                if not connection.waiting:
                    self._poll.modify(descriptor, select.EPOLLIN)
            if events & ~select.EPOLLOUT:
                connection.receive(done)
        except (OSError, Broken, ValueError) as error:
            self._poll.unregister(descriptor)
            self._connections.pop(descriptor).socket.close()
            if connection in self._idle:
                self._idle.remove(connection)
            if connection.lost():
                self._end(connection.number, 0.0, str(error) or type(error).__name__)


# --- comparing


def _outputs(answer: bytes) -> list[GoldenTensor]:
    """The outputs of an answer over HTTP. Raises Malformed, ValueError, KeyError or ServerError."""
    head, _, body = answer.partition(b"\r\n\r\n")
    lines = (line.partition(b":") for line in head.lower().split(b"\r\n"))
    size = next((int(value) for name, _, value in lines if name == _HEADER_LENGTH), len(body))
    document, at, found = json.loads(body[:size]), size, []
    for entry in document["outputs"]:
        length = entry.get("parameters", {}).get("binary_data_size", 0)
        found.append(_of_bytes(entry, body[at : at + length]))
        at += length
    return found


def _compare(expected: Sequence[GoldenTensor], outputs: Sequence[GoldenTensor], tolerance: Tolerance) -> list[str]:
    wanted = [ExpectedOutput(each, tolerance if is_floating(each.datatype) else EXACT) for each in expected]
    found = [OutputTensor(each.name, each.datatype.name, each.array.shape, each.array) for each in outputs]
    return list(differences(wanted, found))


class Comparison:
    """Compares answers with those of the log, or of the first of two servers. `compared` counts answers, and
    `left_out` outputs that the log does not have."""

    def __init__(self, log: Log, spools: Sequence[IO[bytes]], sides: Sequence[Side], tolerance: Tolerance) -> None:
        self._log, self._spools, self._sides, self._tolerance = log, spools, sides, tolerance
        self.compared = self.left_out = 0
        self.different: list[dict[str, Any]] = []

    def run(self) -> None:
        for number, request in enumerate(self._log.requests):
            line = self._log.line(request)
            text = self._difference(number, line)
            self.compared += 1
            if text:
                names = {"model": request.model, "time": line["time"], "id": line["request"].get("id", "")}
                self.different.append({**names, "difference": text})

    def _difference(self, number: int, line: dict[str, Any]) -> str:
        if len(self._sides) > 1:
            expected = self._answer(0, number)
        else:
            (response,) = line["responses"]
            if "error" in response:
                expected = str(response["error"])
            else:
                here = [each for each in response["outputs"] if _LEFT_OUT not in each]
                self.left_out += len(response["outputs"]) - len(here)
                expected = [_tensor(each) for each in here]
        found = self._answer(-1, number)
        if isinstance(found, str):
            return "" if isinstance(expected, str) else f"fails: {found}"
        if isinstance(expected, str):
            return f"is answered; expected was the error: {expected}"
        return "; ".join(_compare(expected, found, self._tolerance))

    def _answer(self, side: int, number: int) -> list[GoldenTensor] | str:
        if number in self._sides[side].errors:
            return self._sides[side].errors[number]
        offset, size = self._sides[side].answers[number]
        self._spools[side].seek(offset)
        try:
            return _outputs(self._spools[side].read(size))
        except (ValueError, TypeError, KeyError, Malformed, ServerError) as error:
            return f"its answer cannot be read: {error!r}"


# --- the command


def replay(
    path: Path,
    model: str,
    urls: Sequence[str],
    *,
    version: str = "",
    headers: Mapping[str, str] | None = None,
    speed: float = 1.0,
    tolerance: Tolerance = FLOATING,
    output: str = "",
    tick: Callable[[str], None] = lambda text: None,
) -> int:
    """Replay the log at `path`, a file or a folder, against one server or two, and print what was found.

    Returns 0 if every answer is as expected, otherwise 1. Raises BadOption.
    """
    paths = sorted(path.glob("*.jsonl")) if path.is_dir() else [path]
    with ExitStack() as stack:
        spools = [stack.enter_context(tempfile.SpooledTemporaryFile(_IN_MEMORY)) for _ in range(len(urls) + 1)]
        log = Log(paths, spools[0], model, version, {"Content-Type": "application/octet-stream", **(headers or {})})
        if not log.requests:
            raise BadOption(f"--replay {path}: it has no request{f' for {model}' if model else ''} that can be sent")
        sides = [Side(url) for url in urls]
        for side, spool in zip(sides, spools[1:], strict=True):
            try:
                Player(log, side, spool).play(speed, tick)
            except OSError as error:
                raise BadOption(f"no connection to {side.url}: {error}") from None
        tick("comparing")
        comparison = Comparison(log, spools[1:], sides, tolerance)
        comparison.run()
    tick("")
    _print(log, sides, comparison, speed)
    if output:
        document = {
            "format": "trident-replay-1",
            "log": str(path),
            "speed": speed,
            "skipped": dict(log.skipped),
            "compared": comparison.compared,
            "outputs_left_out": comparison.left_out,
            "sides": [{"url": each.url, "models": _figures(log, each)} for each in sides],
            "differences": comparison.different,
        }
        Path(f"{output}.json").write_text(json.dumps(document, indent=1) + "\n")
        say(f"wrote {output}.json")
    return 1 if comparison.different else 0


def _figures(log: Log, side: Side) -> list[dict[str, Any]]:
    found: dict[str, list[int]] = defaultdict(list)
    for number, request in enumerate(log.requests):
        found[request.model].append(number)
    rows = []
    for model, numbers in sorted(found.items()):
        latency = [side.latency_ms[each] for each in numbers if each in side.latency_ms] or [0.0]
        recorded = [log.requests[each].duration_ms for each in numbers]
        rows.append(
            {
                "model": model,
                "requests": len(numbers),
                "errors": sum(each in side.errors for each in numbers),
                **{f"p{each}_ms": float(np.percentile(latency, each)) for each in (50, 99)},
                **{f"recorded_p{each}_ms": float(np.percentile(recorded, each)) for each in (50, 99)},
            }
        )
    return rows


def _print(log: Log, sides: Sequence[Side], comparison: Comparison, speed: float) -> None:
    headings = ("model", "requests", "errors", "p50 ms", "p99", "recorded p50", "p99")
    for side in sides:
        rows = []
        for each in _figures(log, side):
            model, requests, errors, *times = each.values()
            rows.append((model, f"{requests:,}", f"{errors:,}", *map(figure, times)))
        say(f"{side.url}, {speed:g} times as fast as recorded:")
        say(table(headings, rows))
        late = np.percentile(side.late_ms, (50, 99)) if side.late_ms else (0.0, 0.0)
        say(f"Sent late by {late[0]:.2f} ms at the median, {late[1]:.2f} ms at the 99th percentile.")
    for reason, count in log.skipped.items():
        say(f"Not sent: {counted(count, 'request')} ({reason}).")
    if comparison.left_out:
        say(f"Not compared: {counted(comparison.left_out, 'output')} that the log does not have.")
    other = f"the answers of {sides[0].url}" if len(sides) > 1 else "the log"
    say(f"{len(comparison.different):,} of {comparison.compared:,} answers differ from {other}.")
    for each in comparison.different[:_SHOWN]:
        say(f"  {each['time']} {each['model']} {each['id']}: {each['difference']}".replace(" : ", ": "))
    if len(comparison.different) > _SHOWN:
        say(f"  and {len(comparison.different) - _SHOWN:,} more")
