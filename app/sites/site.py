"""The parts of a worker: the applications of its ports, the engine behind them, and the certificates and client tokens
read from files.

Site
├── InProcessSite   the engine and the applications in one process (app/sites/applications.py)
├── FrontEndSite    the applications, with the engine in its own process (app/sites/applications.py)
└── _ThreadSite     the applications in front of an engine of the caller's program (app/library/ports.py)
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from types import MappingProxyType
from typing import TYPE_CHECKING, Any
from wsgiref.types import WSGIApplication

from trident.app.process.files import FileContent, WatchedFiles
from trident.app.settings.reading import tls_files
from trident.app.settings.server import ServerSettings
from trident.app.worker.listening_sockets import ConnectionLimits
from trident.core.frontend.access import AuthTokens, Scope

if TYPE_CHECKING:  # the main process makes the credentials, and imports neither numpy nor gRPC
    from trident.app.worker.http2.frames import Http2Limits
    from trident.app.worker.tls import ServerTls
    from trident.core.backends.registry import MakeBackend
    from trident.core.buffers import Allocate
    from trident.core.grpc.transport import Application


@dataclass(frozen=True, slots=True, kw_only=True)
class Http2Port:
    """The application of an HTTP/2 port and its limits. `tls` is None for plain text.

    `shares_memory`: messages and answers may lie in memory that is shared with the engine.
    A connection is told to end after about `max_age_s` seconds, and ends `age_grace_s` seconds later at the latest.
    """

    application: Application
    limits: Http2Limits
    tls: ServerTls | None = None
    max_age_s: float = math.inf
    age_grace_s: float = math.inf
    shares_memory: bool = False


@dataclass(frozen=True, slots=True)
class ServerParts:
    """Parts that a program gives to its server besides the settings.

    `makers` make the backends, by name; None: those that are installed. `around` wraps the engine that receives the
    requests of a process and returns the wrapper: in a front end around the engine's client, in the engine's process
    around the engine.
    """

    makers: Mapping[str, MakeBackend] | None = None
    around: Callable[[Any], Any] = lambda engine: engine


class Site:
    """Made in the worker, after the fork. All methods except `finish` are called on the hub.

    `applications` and `tls` are those of the HTTP/1 ports, `http2_ports` are the others; 0 is a Unix socket. `allocate`
    allocates the bodies of large requests; None if the heap will do. Hub thread.
    """

    applications: Mapping[int, WSGIApplication]
    tls: Mapping[int, ServerTls] = MappingProxyType({})
    http2_ports: Mapping[int, Http2Port] = MappingProxyType({})
    allocate: Allocate | None = None

    @property
    def failure(self) -> str | None:
        """The reason to end the whole server with 1, as `CODE - message`. Set on any thread."""
        return None

    def release_memory(self) -> None:
        """Return unused shared memory to the system. Called when the worker is idle."""

    def start(self) -> None:
        """Begin loading in native threads. Returns at once."""

    def begin_exit(self) -> None:
        """Become unready, and continue to answer."""

    def log_in_flight(self, seconds_left: float) -> None:
        """Log the requests that the models have not answered yet. Called about every second of a stop."""

    def finish(self, timeout_s: float) -> bool:
        """Stop the engine; requests in flight have `timeout_s` seconds. Off the hub. Returns whether all ended."""
        return True


class Credentials:
    """Made in the main process, so that a process that is restarted has valid ones, whatever the files are then.

    `watch` reads changed files again, in the process that calls it. `tokens` are None without a token file, the others
    without TLS. Raises ConfigInvalid.
    """

    def __init__(self, settings: ServerSettings) -> None:
        scope = Scope(settings.auth_token_scope)
        self.tokens = AuthTokens(settings.auth_token_file, scope) if settings.auth_token_file else None
        self.http_tls = _tls(settings, "http") if settings.allow_http else None
        self.grpc_tls = _tls(settings, "grpc") if settings.allow_grpc else None
        made: tuple[FileContent | None, ...] = (self.tokens, self.http_tls, self.grpc_tls)
        self._files = WatchedFiles([each for each in made if each is not None])

    def watch(self) -> None:
        self._files.start()

    def close(self) -> None:
        self._files.close()


def _tls(settings: ServerSettings, port: str) -> ServerTls | None:
    files = tls_files(settings, port)
    if files is None:
        return None
    from trident.app.worker.tls import HTTP1, HTTP2, ServerTls

    return ServerTls(files, HTTP1 if port == "http" else HTTP2)


def connection_limits(settings: ServerSettings) -> ConnectionLimits:
    return ConnectionLimits(
        request_timeout_s=settings.http_request_timeout_secs,
        keepalive_s=settings.http_keepalive_secs,
        max_unfinished_size=settings.http_max_unfinished_size,
    )


def http_tls(settings: ServerSettings, credentials: Credentials) -> dict[int, ServerTls]:
    """The TLS of the HTTP port under its number. The ports of platforms and metrics have none."""
    return {settings.http_port: credentials.http_tls} if credentials.http_tls is not None else {}
