"""A site for tests of the worker and the arbiter, its server process, and a client that sends raw bytes."""

from __future__ import annotations

import argparse
import contextlib
import json
import logging
import os
import signal
import socket
import subprocess
import sys
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import fields
from typing import Any
from urllib.request import urlopen

from tests.contract.servers.ports import free_ports
from tests.project import ROOT
from tests.waiting import until

PATIENCE_S = 60.0


class Probe:
    """The WSGI application, with a method for each path."""

    def __init__(self) -> None:
        from gevent.event import Event

        self.site: ProbeSite | None = None
        self._released = Event()
        self._waiting = 0

    def binary_offset(self, environ: Mapping[str, Any]) -> int:
        return int(environ.get("HTTP_X_OFFSET", "0"))

    def __call__(self, environ: dict[str, Any], start_response: Any) -> Iterable[Any]:
        answer: Callable[..., Iterable[Any]] = getattr(self, f"on_{environ['PATH_INFO'].strip('/')}", self.on_missing)
        return answer(environ, start_response)

    def on_missing(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        start("404 Not Found", [("Content-Type", "text/plain")])
        return [environ["RAW_URI"].encode()]

    def on_echo(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        start("200 OK", [("Content-Type", "application/octet-stream")])
        return [environ["wsgi.input"].read()]

    def on_buffer(self, environ: dict[str, Any], start: Any) -> Iterable[Any]:
        start("200 OK", [])
        return [environ["trident.body"]]

    def on_alignment(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        import numpy as np

        address = np.frombuffer(environ["trident.body"], np.uint8).ctypes.data
        start("200 OK", [])
        return [str((address + self.binary_offset(environ)) % 64).encode()]

    def on_pid(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        start("200 OK", [])
        return [str(os.getpid()).encode()]

    def on_stream(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        start("200 OK", [("Content-Type", "text/event-stream")])
        return (part for part in (b"one,", b"", b"two,", b"three"))

    def on_short(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        start("200 OK", [("Content-Length", "10")])
        return iter([b"short"])

    def on_large(self, environ: dict[str, Any], start: Any) -> Iterable[Any]:
        count, size = (int(number) for number in environ["QUERY_STRING"].split(","))
        start("200 OK", [])
        return [memoryview(bytes([index % 251]) * size) for index in range(count)]

    def on_wait(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        self._waiting += 1
        self._released.wait()
        start("200 OK", [])
        return [b"released"]

    def on_waiting(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        start("200 OK", [])
        return [str(self._waiting).encode()]

    def on_release(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        self._released.set()
        start("200 OK", [])
        return [b"ok"]

    def on_poison(self, environ: dict[str, Any], start: Any) -> Iterable[bytes]:
        assert self.site is not None
        self.site.failure = "Internal - poisoned"
        start("200 OK", [])
        return [b"ok"]


class ProbeSite:
    """A site of a `Probe` on the first port and an application on the second that answers with its port."""

    allocate = None
    http2_ports: Mapping[int, Any] = {}
    tls: Mapping[int, Any] = {}

    def __init__(self, ports: list[int], drains: bool) -> None:
        self.probe = Probe()
        self.probe.site = self
        self.applications: dict[int, Any] = {ports[0]: self.probe}
        self.applications.update(dict.fromkeys(ports[1:], _second))
        self.failure: str | None = None
        self._drains = drains

    def start(self) -> None: ...

    def release_memory(self) -> None: ...

    def begin_exit(self) -> None: ...

    def log_in_flight(self, seconds_left: float) -> None: ...

    def finish(self, timeout_s: float) -> bool:
        return self._drains


def _second(environ: dict[str, Any], start: Any) -> Iterable[bytes]:
    start("200 OK", [("Content-Type", "text/plain")])
    return [environ["SERVER_PORT"].encode()]


def main() -> int:
    from trident.app.settings.server import Service
    from trident.app.supervisor.arbiter import ServerConfiguration, serve
    from trident.app.worker.listening_sockets import ConnectionLimits, StopTimes

    # Not to descriptor 2, which workers capture: what they wrote there would be logged as a native line, for ever.
    logging.basicConfig(level=logging.INFO, stream=open(os.dup(2), "w"))  # noqa: SIM115
    parser = argparse.ArgumentParser()
    parser.add_argument("ports", type=int, nargs="+")
    parser.add_argument("--undrained", action="store_true")
    parser.add_argument("--last", action="store_true", help="the second port closes last")
    parser.add_argument("--settings", type=json.loads, default={})
    options = parser.parse_args()
    settings = options.settings

    def given(kind: Any) -> Any:
        return kind(**{each.name: settings.pop(each.name) for each in fields(kind) if each.name in settings})

    limits, stop_times = given(ConnectionLimits), given(StopTimes)
    return serve(
        ServerConfiguration(
            services=tuple(Service("127.0.0.1", port) for port in options.ports),
            make_site=lambda begun: ProbeSite(options.ports, not options.undrained),
            last_ports=frozenset(options.ports[1:2] if options.last else ()),
            limits=limits,
            stop_times=stop_times,
            **settings,
        )
    )


# --- client


class Server:
    """A server process."""

    def __init__(self, arguments: list[str], **settings: Any) -> None:
        self.ports = free_ports(2)
        self.port = self.ports[0]
        self._log = tempfile.TemporaryFile()  # noqa: SIM115 - closed with the server
        command = [sys.executable, __file__, *map(str, self.ports), "--settings", json.dumps(settings), *arguments]
        self.started = subprocess.Popen(
            command,
            env={**os.environ, "PYTHONPATH": str(ROOT)},
            stdout=self._log,
            stderr=subprocess.STDOUT,
            start_new_session=True,
        )

    def get(self, path: str) -> str:
        with urlopen(f"http://127.0.0.1:{self.port}/{path}", timeout=PATIENCE_S) as response:
            return str(response.read().decode())

    def answers(self) -> bool:
        try:
            return bool(self.get("pid"))
        except OSError:
            return False

    def signal(self, number: int) -> None:
        self.started.send_signal(number)

    def ended(self) -> int:
        """Wait for the end. Returns the exit status."""
        return self.started.wait(PATIENCE_S)

    @property
    def output(self) -> str:
        return os.pread(self._log.fileno(), 1 << 20, 0).decode()

    def close(self) -> None:
        try:
            if self.started.poll() is None:
                self.signal(signal.SIGTERM)
                self.ended()
        except subprocess.TimeoutExpired:
            os.killpg(self.started.pid, signal.SIGKILL)
            self.ended()
            raise
        finally:
            self._log.close()


@contextlib.contextmanager
def served(*arguments: str, **settings: Any) -> Iterator[Server]:
    """A server that is ready."""
    server = Server(list(arguments), **settings)
    try:
        until(server.answers)
        yield server
    finally:
        server.close()


class Reply:
    def __init__(self, status: int, headers: dict[str, str], body: bytes) -> None:
        self.status = status
        self.headers = headers
        self.body = body


class Client:
    """A connection on which a test writes bytes and reads replies."""

    def __init__(self, port: int) -> None:
        self.socket = socket.create_connection(("127.0.0.1", port), timeout=PATIENCE_S)
        self._buffer = b""

    def __enter__(self) -> Client:
        return self

    def __exit__(self, *_: object) -> None:
        self.socket.close()

    def send(self, raw: bytes) -> None:
        self.socket.sendall(raw)

    def ask(self, raw: bytes, *, has_body: bool = True) -> Reply:
        self.send(raw)
        return self.reply(has_body=has_body)

    def reply(self, *, has_body: bool = True) -> Reply:
        """Read the next reply. `has_body` is false for the answer to a HEAD request."""
        head = self._until(b"\r\n\r\n").decode("latin-1")
        first, *lines = head.split("\r\n")
        headers = {name.lower(): value for name, value in (line.split(": ", 1) for line in lines)}
        body = b""
        if not has_body or first[9:12] in ("100", "204", "304"):
            pass
        elif "content-length" in headers:
            body = self._exactly(int(headers["content-length"]))
        elif headers.get("transfer-encoding") == "chunked":
            while size := int(self._until(b"\r\n"), 16):
                body += self._exactly(size)
                assert self._exactly(2) == b"\r\n"
            assert self._exactly(2) == b"\r\n"
        else:
            body = self.rest()
        return Reply(int(first[9:12]), headers, body)

    def rest(self) -> bytes:
        """Read up to the end of the connection."""
        while self._receive():
            pass
        rest, self._buffer = self._buffer, b""
        return rest

    def is_closed(self) -> bool:
        return self.rest() == b""

    def _receive(self) -> bool:
        part = self.socket.recv(1 << 16)
        self._buffer += part
        return bool(part)

    def _until(self, mark: bytes) -> bytes:
        while mark not in self._buffer:
            assert self._receive(), f"the connection ended after {self._buffer!r}"
        part, self._buffer = self._buffer.split(mark, 1)
        return part

    def _exactly(self, size: int) -> bytes:
        # Not into the buffer, which would be copied with each part: the server takes a slow reader for a dead one.
        received = bytearray(self._buffer)
        while len(received) < size:
            part = self.socket.recv(1 << 20)
            assert part, f"the connection ended {size - len(received)} bytes early"
            received += part
        self._buffer = bytes(received[size:])
        return bytes(received[:size])


if __name__ == "__main__":
    sys.exit(main())
