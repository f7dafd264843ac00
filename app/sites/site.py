"""What the server process serves: the applications of its ports, and the engine behind them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Protocol
from wsgiref.types import WSGIApplication

# Memory for so many bytes of a body, as an array, or None if there is none left.
Allocate = Callable[[int], Any]


class Site(Protocol):
    """Made in the worker, after the fork. All methods are called on the hub but for `finish`."""

    @property
    def applications(self) -> Mapping[int, WSGIApplication]:
        """The application of each port."""

    @property
    def failure(self) -> str | None:
        """Why the server cannot go on, as `CODE - message`. Set from any thread; ends the whole server with 1."""

    @property
    def allocate(self) -> Allocate | None:
        """Where the bodies of large requests go, if it does not matter to the site None. Hub thread."""

    def start(self) -> None:
        """Begin loading in native threads. Returns at once."""

    def begin_exit(self) -> None:
        """Be unready from now on, and go on answering."""

    def log_in_flight(self, seconds_left: float) -> None:
        """Say what models still have to answer, where they are. Asked about every second of a stop."""

    def finish(self, timeout_s: float) -> bool:
        """Stop the engine; what is in flight has `timeout_s` seconds. Off the hub. Returns whether all of it ended."""


class PlainSite:
    """A site of one WSGI application with nothing behind it: what gunicorn's own command line serves."""

    failure: str | None = None
    allocate: Allocate | None = None

    def __init__(self, application: WSGIApplication, ports: list[int]) -> None:
        self.applications = dict.fromkeys(ports, application)

    def start(self) -> None:
        return None

    def begin_exit(self) -> None:
        return None

    def log_in_flight(self, seconds_left: float) -> None:
        return None

    def finish(self, timeout_s: float) -> bool:
        return True
