"""How the platform asks its container: a connection for each request, and a limit on everything."""

from __future__ import annotations

import contextlib
import http.client
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Protocol

from app.emulators.common.units import seconds, size

HOST = "127.0.0.1"
_PIECE = 1 << 16
_OVER = 0.001


class ContainerLimits(Protocol):
    """Seconds until the container accepts a connection; bytes of an answer that is not streamed."""

    @property
    def connect_s(self) -> float: ...

    @property
    def body_bytes(self) -> int: ...


class ContainerFault(Exception):
    """The container did not answer as it must; the text says what it did, after the words `the container`.

    `is_late`: it may still be at it. `is_large`: there was more than the platform takes.
    """

    def __init__(self, text: str, *, is_late: bool = False, is_large: bool = False) -> None:
        super().__init__(text)
        self.is_late = is_late
        self.is_large = is_large


class ClientClosed(Exception):
    """The container is about to be told to end: it was not asked."""


@dataclass(frozen=True, slots=True)
class ContainerAnswer:
    """A whole answer."""

    status: int
    headers: list[tuple[str, str]]
    body: bytes

    @property
    def text(self) -> str:
        return self.body.decode(errors="replace")


class ContainerStream:
    """An answer of which the head has come."""

    def __init__(self, response: http.client.HTTPResponse, clock: _Deadline) -> None:
        self._response = response
        self._clock = clock
        self.status = response.status
        self.headers = response.getheaders()

    def parts(self) -> Iterator[bytes]:
        """The body as it comes. Raises ContainerFault where it breaks off or takes too long."""
        with self._clock.faults():
            while piece := self._next():
                yield piece
            if self._response.length:
                raise ContainerFault("broke its answer off")

    def whole(self, most_bytes: int) -> ContainerAnswer:
        """All of the answer. Raises ContainerFault, also where its body is larger than `most_bytes`."""
        body = bytearray()
        for part in self.parts():
            body += part
            if len(body) > most_bytes:
                raise ContainerFault(f"answered with more than {size(most_bytes)}", is_large=True)
        return ContainerAnswer(self.status, self.headers, bytes(body))

    def _next(self) -> bytes:
        if self._response.isclosed():  # Python 3.13 closes it, and its socket, with the last byte
            return b""
        self._clock.arm()
        return self._response.read1(_PIECE)


class ContainerClient:
    """Asks the container that listens on `port` of this machine. Any thread."""

    def __init__(self, port: int, limits: ContainerLimits) -> None:
        self._port = port
        self._limits = limits
        self.is_closed = False

    def close(self) -> None:
        """Ask nothing more; what was asked before is still answered."""
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
        """The whole answer. Raises ContainerFault or ClientClosed."""
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
        """The answer from its head on; all of it must come within `within_s`.

        Raises ContainerFault or ClientClosed.
        """
        if self.is_closed:
            raise ClientClosed
        connection = http.client.HTTPConnection(HOST, self._port, timeout=self._limits.connect_s)
        with contextlib.closing(connection):
            deadline = self._connect(connection, within_s)
            with deadline.faults():
                response = _send(connection, method, path, dict(headers or {}), body, deadline)
            with contextlib.closing(response):
                yield ContainerStream(response, deadline)

    def _connect(self, connection: http.client.HTTPConnection, within_s: float) -> _Deadline:
        try:
            connection.connect()
        except TimeoutError:
            limit = seconds(self._limits.connect_s)
            raise ContainerFault(f"did not accept a connection within {limit}", is_late=True) from None
        except OSError as error:
            raise ContainerFault(f"did not accept a connection: {error.strerror or error}") from error
        return _Deadline(connection.sock, within_s)


class _Deadline:
    """One time limit for all the waiting that a request means."""

    def __init__(self, sock: socket.socket, within_s: float) -> None:
        self._sock = sock
        self._within_s = within_s
        self._end = time.monotonic() + within_s

    def arm(self) -> None:
        """Let the next call on the socket wait no longer than what is left. Raises TimeoutError at the end."""
        left = self._end - time.monotonic()
        if left <= 0:
            raise TimeoutError
        self._sock.settimeout(max(left, _OVER))

    @contextmanager
    def faults(self) -> Iterator[None]:
        """Turn what the socket raises inside into ContainerFault."""
        try:
            yield
        except TimeoutError:
            raise ContainerFault(f"did not answer within {seconds(self._within_s)}", is_late=True) from None
        except ConnectionError:
            raise ContainerFault("closed the connection without a whole answer") from None
        except http.client.HTTPException as error:
            raise ContainerFault(f"did not answer in HTTP: {type(error).__name__}") from error


def _send(
    connection: http.client.HTTPConnection,
    method: str,
    path: str,
    headers: dict[str, str],
    body: bytes | None,
    deadline: _Deadline,
) -> http.client.HTTPResponse:
    connection.putrequest(method, path, skip_accept_encoding=True)
    for name, value in headers.items():
        connection.putheader(name, value)
    if body is not None:
        connection.putheader("Content-Length", str(len(body)))
    deadline.arm()
    # A server may refuse a body before it has all of it: its answer is there to be read.
    with contextlib.suppress(BrokenPipeError, ConnectionResetError):
        connection.endheaders(body)
    deadline.arm()
    return connection.getresponse()
