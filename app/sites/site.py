"""What a worker serves: the applications of its ports, and the engine behind them.

Site
├── InProcessSite   the engine and the applications in one process (app/sites/in_process.py)
├── FrontEndSite    the applications, with the engine in its own process (app/sites/front_end.py)
└── PlainSite       any WSGI application, without an engine (app/sites/plain.py)
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol
from wsgiref.types import WSGIApplication

from core.frontend.request_body import Allocate


class Site(Protocol):
    """Made in the worker, after the fork. All methods except `finish` are called on the hub."""

    @property
    def applications(self) -> Mapping[int, WSGIApplication]:
        """The application of each port."""

    @property
    def failure(self) -> str | None:
        """Why the server cannot continue, as `CODE - message`. Set on any thread; ends the whole server with 1."""

    @property
    def allocate(self) -> Allocate | None:
        """Allocates the bodies of large requests; None if the heap will do. Hub thread."""

    def start(self) -> None:
        """Begin loading in native threads. Returns at once."""

    def begin_exit(self) -> None:
        """Become unready, and continue to answer."""

    def log_in_flight(self, seconds_left: float) -> None:
        """Log the requests that the models have not answered yet. Called about every second of a stop."""

    def finish(self, timeout_s: float) -> bool:
        """Stop the engine; requests in flight have `timeout_s` seconds. Off the hub. Returns whether all ended."""
