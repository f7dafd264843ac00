"""The site of a server in one process: the engine, and the applications in front of it."""

from __future__ import annotations

from collections.abc import Mapping
from wsgiref.types import WSGIApplication

from app.process.heap import use_one_heap
from app.settings.server import ServerSettings
from app.sites.applications import Applications
from app.sites.bridges import MakeBridge
from app.sites.credentials import Credentials, http_tls
from app.sites.engine_options import engine_options
from app.sites.grpc_port import grpc_ports
from app.sites.metrics_log import make_metrics_log
from app.sites.site import Http2Port
from app.sites.start_watch import StartWatch
from core.engine.in_process import InferenceEngine, make_engine
from core.frontend.request_body import Allocate


class InProcessSite:
    """Made in the worker, after the fork."""

    allocate: Allocate | None = None

    def __init__(self, settings: ServerSettings, credentials: Credentials, make_bridge: MakeBridge) -> None:
        self._credentials = credentials
        self.tls = http_tls(settings, credentials)
        self._failure: str | None = None
        if settings.response_cache_bytes:
            use_one_heap()
        self._engine: InferenceEngine = make_engine(engine_options(settings), on_fatal=self._fail)
        applications = Applications(settings, self._engine, make_bridge, tokens=credentials.tokens)
        self._applications = applications.by_port()
        self.http2_ports: Mapping[int, Http2Port] = grpc_ports(
            settings, self._engine, make_bridge, credentials, show=applications.show
        )
        self._start_watch = StartWatch(settings, self._engine, self._fail)
        self._metrics_log = make_metrics_log(settings, self._engine)

    @property
    def applications(self) -> Mapping[int, WSGIApplication]:
        return self._applications

    @property
    def failure(self) -> str | None:
        return self._failure

    def release_memory(self) -> None:
        """Nothing: there is no other process to share with."""

    def start(self) -> None:
        self._engine.start()
        self._start_watch.start()
        self._credentials.watch()
        if self._metrics_log is not None:
            self._metrics_log.start()

    def begin_exit(self) -> None:
        self._engine.begin_exit()

    def log_in_flight(self, seconds_left: float) -> None:
        self._engine.log_in_flight(seconds_left)

    def finish(self, timeout_s: float) -> bool:
        self._credentials.close()
        if self._metrics_log is not None:
            self._metrics_log.close()
        return self._engine.finish(timeout_s)

    def _fail(self, reason: str) -> None:
        self._failure = reason
