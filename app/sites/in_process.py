"""The site of a server in one process: the engine, and the applications before it."""

from __future__ import annotations

from collections.abc import Mapping
from wsgiref.types import WSGIApplication

import gevent

from app.settings.server import ServerSettings
from app.sites.applications import Applications
from app.sites.engine_options import engine_options
from app.sites.site import Allocate
from app.terminal.start_report import StartReport
from core.engine.in_process import InferenceEngine, make_engine
from core.frontend.bridge import Bridge, ThreadBridge
from core.frontend.gevent_bridge import GeventBridge


class EngineSite:
    """Made in the worker, after the fork. Under this project's worker it waits on the hub, else on native threads."""

    allocate: Allocate | None = None

    def __init__(self, settings: ServerSettings, *, on_hub: bool) -> None:
        self._failure: str | None = None
        self._on_hub = on_hub
        self._engine: InferenceEngine = make_engine(engine_options(settings), on_fatal=self._fail)
        self._applications = Applications(settings, self._engine, self._bridge).by_port()
        self._report = StartReport(settings, self._engine, self._fail)

    @property
    def applications(self) -> Mapping[int, WSGIApplication]:
        return self._applications

    @property
    def failure(self) -> str | None:
        return self._failure

    def start(self) -> None:
        self._engine.start()
        self._report.start()

    def begin_exit(self) -> None:
        self._engine.begin_exit()

    def log_in_flight(self, seconds_left: float) -> None:
        self._engine.log_in_flight(seconds_left)

    def finish(self, timeout_s: float) -> bool:
        return self._engine.finish(timeout_s)

    def _bridge(self, threads: int) -> Bridge:
        return GeventBridge(gevent.get_hub(), threads) if self._on_hub else ThreadBridge()

    def _fail(self, reason: str) -> None:
        self._failure = reason
