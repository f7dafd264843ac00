"""The container as a process, the platform's client of it, which limits every step, and the report of breaches."""

from __future__ import annotations

import contextlib
import http.client
import json
import os
import shutil
import signal
import socket
import subprocess
import threading
import time
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol, TextIO

import orjson

from trident.core.observability.log import escaped, print_line

HTTP_ADDRESS = "TRIDENT_HTTP_ADDRESS"
# The settings of servers and platforms on the person's machine are not in an image.
_NOT_INHERITED = ("AIP_", "SAGEMAKER_", "TRIDENT_")


def inherited_environment(environment: Mapping[str, str]) -> dict[str, str]:
    """`environment` without the settings of servers and platforms. It takes the place of the image's variables."""
    return {name: text for name, text in environment.items() if not name.startswith(_NOT_INHERITED)}


_READ_ONLY = 0o444
_READ_ONLY_FOLDER = 0o555
_OWNER_ONLY = 0o700


def make_read_only(folder: Path) -> None:
    """Set the modes of `folder` and of everything below it, except links. A process of root can still write."""
    for path, _, names in os.walk(folder):
        for file in [os.path.join(path, name) for name in names]:
            if not os.path.islink(file):
                os.chmod(file, _READ_ONLY)
        os.chmod(path, _READ_ONLY_FOLDER)


def remove_folder(folder: Path) -> None:
    """Remove `folder`, read-only or not. It may be missing, and another thread may remove it at the same time."""
    for path, _, _ in os.walk(folder):
        with suppress(FileNotFoundError):
            os.chmod(path, _OWNER_ONLY)
    shutil.rmtree(folder, ignore_errors=True)


class Container:
    """Runs `command` in `environment`; its output goes to this process's output. One thread at a time."""

    def __init__(self, command: Sequence[str], environment: Mapping[str, str]) -> None:
        self._command = list(command)
        self._environment = dict(environment)
        self._child = self._start()

    def _start(self) -> subprocess.Popen[bytes]:
        # In its own session, so that an interrupt from the terminal reaches only the emulator, which then stops it.
        return subprocess.Popen(self._command, env=self._environment, stdin=subprocess.DEVNULL, start_new_session=True)

    @property
    def exit_status(self) -> int | None:
        """None while the program runs."""
        return self._child.poll()

    def stop(self, within_s: float, report: BreachReport) -> None:
        """Send SIGTERM, and after `within_s` SIGKILL to all its processes. Returns when the program has ended."""
        if self._child.poll() is None:
            self._child.send_signal(signal.SIGTERM)
        try:
            self._child.wait(within_s)
        except subprocess.TimeoutExpired:
            report.add(f"the container did not end within {seconds(within_s)} of SIGTERM and was killed")
        finally:
            self.kill()

    def restart(self, within_s: float, report: BreachReport) -> None:
        """Stop the program, as `stop` does, and start it again."""
        self.stop(within_s, report)
        self._child = self._start()

    @contextmanager
    def serving(self, client: ContainerClient, within_s: float, report: BreachReport) -> Iterator[None]:
        """Stop the program at the end of the context, as `stop` does; after an exception, kill it."""
        try:
            with closing(client):  # first, because a container that was told to end need not answer new requests
                yield
            self.stop(within_s, report)
        finally:
            self.kill()

    def kill(self) -> None:
        """Kill all its processes: they have a process group to themselves."""
        with contextlib.suppress(ProcessLookupError):
            os.killpg(self._child.pid, signal.SIGKILL)
        self._child.wait()


def free_port() -> int:
    """A port of this machine that no process listens on now."""
    with socket.socket() as probe:
        probe.bind((HOST, 0))
        port: int = probe.getsockname()[1]
        return port


HOST = "127.0.0.1"
_PIECE = 1 << 16
_OVER = 0.001


class ContainerLimits(Protocol):
    """Seconds until the container accepts a connection, and bytes of an answer that is not streamed."""

    @property
    def connect_s(self) -> float: ...

    @property
    def body_bytes(self) -> int: ...


class ContainerFault(Exception):
    """The container did not answer as it must. The text continues the words `the container`.

    `is_late`: a time limit was over. `is_large`: the answer was larger than the platform accepts.
    """

    def __init__(self, text: str, *, is_late: bool = False, is_large: bool = False) -> None:
        super().__init__(text)
        self.is_late = is_late
        self.is_large = is_large


class ClientClosed(Exception):
    """The request was not sent, because the container is about to be stopped."""


@dataclass(frozen=True, slots=True)
class ContainerAnswer:
    status: int
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace")


class ContainerStream:
    """An answer whose head was received and whose body was not."""

    def __init__(self, response: http.client.HTTPResponse, clock: _Deadline) -> None:
        self._response = response
        self._clock = clock
        self.status = response.status
        self.headers = response.getheaders()

    def parts(self) -> Iterator[bytes]:
        """The parts of the body as they arrive. Raises ContainerFault if the body breaks off or takes too long."""
        with self._clock.faults():
            while not self._response.isclosed():  # Python 3.13 closes it and its socket after the last byte
                self._clock.arm()
                if not (piece := self._response.read1(_PIECE)):
                    break
                yield piece
            if self._response.length:
                raise ContainerFault("broke its answer off")

    def whole(self, most_bytes: int) -> ContainerAnswer:
        """The complete answer. Raises ContainerFault, also for a body larger than `most_bytes`."""
        body = bytearray()
        for part in self.parts():
            body += part
            if len(body) > most_bytes:
                raise ContainerFault(f"answered with more than {size(most_bytes)}", is_large=True)
        return ContainerAnswer(self.status, self.headers, bytes(body))


class ContainerClient:
    """Sends requests to the container that listens on `port` of this machine. Any thread."""

    def __init__(self, port: int, limits: ContainerLimits) -> None:
        self.port = port
        self._limits = limits
        self.is_closed = False

    def close(self) -> None:
        """Send no more requests. Requests that were sent before are still answered."""
        self.is_closed = True

    def ask(
        self,
        method: str,
        path: str,
        *,
        within_s: float,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> ContainerAnswer:
        """Send a request and return the complete answer. Raises ContainerFault or ClientClosed."""
        with self.open(method, path, within_s=within_s, headers=headers, body=body) as stream:
            return stream.whole(self._limits.body_bytes)

    @contextmanager
    def open(
        self,
        method: str,
        path: str,
        *,
        within_s: float,
        headers: Mapping[str, str] | None = None,
        body: bytes | None = None,
    ) -> Iterator[ContainerStream]:
        """Send a request and give its answer as a stream, which must be complete within `within_s` seconds.

        Raises ContainerFault or ClientClosed.
        """
        if self.is_closed:
            raise ClientClosed
        connection = http.client.HTTPConnection(HOST, self.port, timeout=self._limits.connect_s)
        with contextlib.closing(connection):
            try:
                connection.connect()
            except TimeoutError:
                limit = seconds(self._limits.connect_s)
                raise ContainerFault(f"did not accept a connection within {limit}", is_late=True) from None
            except OSError as error:
                raise ContainerFault(f"did not accept a connection: {error.strerror or error}") from error
            deadline = _Deadline(connection.sock, within_s)
            with deadline.faults():
                connection.putrequest(method, path, skip_accept_encoding=True)
                for name, value in (headers or {}).items():
                    connection.putheader(name, value)
                if body is not None:
                    connection.putheader("Content-Length", str(len(body)))
                deadline.arm()
                # A server may refuse a body before it has received all of it; its answer can then be read.
                with contextlib.suppress(BrokenPipeError, ConnectionResetError):
                    connection.endheaders(body)
                deadline.arm()
                response = connection.getresponse()
            with contextlib.closing(response):
                yield ContainerStream(response, deadline)


class _Deadline:
    """One time limit for every wait of a request."""

    def __init__(self, sock: socket.socket, within_s: float) -> None:
        self._sock = sock
        self._within_s = within_s
        self._end = time.monotonic() + within_s

    def arm(self) -> None:
        """Limit the next call on the socket to the remaining time. Raises TimeoutError if none is left."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(max(left, _OVER))

    @contextmanager
    def faults(self) -> Iterator[None]:
        """Turn the socket's errors inside the context into ContainerFault."""
        try:
            yield
        except TimeoutError:
            raise ContainerFault(f"did not answer within {seconds(self._within_s)}", is_late=True) from None
        except ConnectionError:
            raise ContainerFault("closed the connection without a whole answer") from None
        except http.client.HTTPException as error:
            raise ContainerFault(f"did not answer in HTTP: {type(error).__name__}") from error


_MIB = 1 << 20
_MB = 1_000_000
_TENTH = 10


def seconds(duration: float) -> str:
    return f"{duration * 1000:.0f} ms" if duration < 1 else f"{duration:g} s"


def size(count: int) -> str:
    """A number of bytes, as text with the largest unit in which it is a short number."""
    if count and count % _MIB == 0:
        return f"{count // _MIB} MiB"
    return f"{count / _MB:g} MB" if count >= _MB and count * _TENTH % _MB == 0 else f"{count} bytes"


_LONGEST = 500
_KINDS_AT_MOST = 1000


class BreachReport:
    """Collects breaches, one line each; a repeated line is only counted. Any thread."""

    def __init__(self, stream: TextIO | None = None) -> None:
        """Each new breach is written to `stream` at once, if one is given."""
        self._stream = stream
        self._lock = threading.Lock()
        self._counts: Counter[str] = Counter()

    def add(self, breach: str) -> None:
        """`breach` is a sentence without its full stop that names the limit and who broke it."""
        line = escaped(breach if len(breach) <= _LONGEST else f"{breach[:_LONGEST]}...")
        with self._lock:
            is_new = line not in self._counts
            if is_new and len(self._counts) >= _KINDS_AT_MOST:
                return
            self._counts[line] += 1
        if is_new and self._stream is not None:
            print_line(f"breach: {line}", self._stream)

    @contextmanager
    def faults(self, request: str) -> Iterator[None]:
        """Add a fault of the container inside the context, with the request that it concerns."""
        try:
            yield
        except ContainerFault as fault:
            self.add(f"{request}: the container {fault}")

    @property
    def breaches(self) -> dict[str, int]:
        with self._lock:
            return dict(self._counts)

    def text(self) -> str:
        found = self.breaches
        if not found:
            return "the container kept all limits of the platform\n"
        lines = [f"  {line}{f' ({count} times)' if count > 1 else ''}" for line, count in found.items()]
        return "\n".join([f"{len(found)} breach{'es' if len(found) > 1 else ''} of the platform's limits:", *lines, ""])


class Interrupted(Exception):
    """The emulator was told to stop before the model's files were in place."""


# --- JSON of records and answers, whose integers may have more than 64 bits


def read_json(text: bytes) -> Any:
    """The value of `text`, in which integers of any size stay integers. Raises ValueError."""
    orjson.loads(text)  # refuses what JSON does not have: NaN, a number beyond a double, half of a surrogate pair
    try:
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deep") from None


def write_json(value: Any) -> bytes:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":")).encode()
