"""What a worker serves: the applications of its ports, and the engine behind them.

Site
├── InProcessSite   the engine and the applications in one process (app/sites/in_process.py)
├── FrontEndSite    the applications, with the engine in its own process (app/sites/front_end.py)
└── _ThreadSite     the applications in front of an engine of the caller's program (app/library/ports.py)
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Protocol
from wsgiref.types import WSGIApplication

from trident.app.worker.http2.frames import Http2Limits
from trident.app.worker.tls import ServerTls
from trident.core.frontend.body import Allocate
from trident.core.grpc.transport import Application


@dataclass(frozen=True, slots=True, kw_only=True)
class Http2Port:
    """What an HTTP/2 port serves. `tls` is None for plain text.

    `shares_memory`: messages and answers may lie in memory that is shared with the engine.
    A connection is told to end after about `max_age_s` seconds, and ends `age_grace_s` seconds later at the latest.
    """

    application: Application
    limits: Http2Limits
    tls: ServerTls | None = None
    max_age_s: float = math.inf
    age_grace_s: float = math.inf
    shares_memory: bool = False


class Site(Protocol):
    """Made in the worker, after the fork. All methods except `finish` are called on the hub."""

    @property
    def applications(self) -> Mapping[int, WSGIApplication]:
        """The application of each HTTP/1 port."""

    @property
    def tls(self) -> Mapping[int, ServerTls]:
        """The TLS of the HTTP/1 ports that have it."""

    @property
    def http2_ports(self) -> Mapping[int, Http2Port]:
        """The HTTP/2 ports; 0 is a Unix socket."""

    @property
    def failure(self) -> str | None:
        """Why the server cannot continue, as `CODE - message`. Set on any thread; ends the whole server with 1."""

    @property
    def allocate(self) -> Allocate | None:
        """Allocates the bodies of large requests; None if the heap will do. Hub thread."""

    def release_memory(self) -> None:
        """Return to the system the shared memory that nothing uses. Called when the worker is idle."""

    def start(self) -> None:
        """Begin loading in native threads. Returns at once."""

    def begin_exit(self) -> None:
        """Become unready, and continue to answer."""

    def log_in_flight(self, seconds_left: float) -> None:
        """Log the requests that the models have not answered yet. Called about every second of a stop."""

    def finish(self, timeout_s: float) -> bool:
        """Stop the engine; requests in flight have `timeout_s` seconds. Off the hub. Returns whether all ended."""
