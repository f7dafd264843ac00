"""The site of a server in one process: the engine, and the applications in front of it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from wsgiref.types import WSGIApplication

from trident.app.settings.server import ServerSettings
from trident.app.sites.applications import Applications, grpc_ports, make_hub_bridge
from trident.app.sites.engine_start import EngineStart, StartWatch
from trident.app.sites.site import Credentials, Http2Port, http_tls
from trident.core.buffers import Allocate
from trident.core.engine.in_process import InferenceEngine
from trident.core.observability.metrics_log import Format, MetricsLog, cloud_logging_line, embedded_metrics_line


class InProcessSite:
    """Made in the worker, after the fork, around the engine that has started there."""

    allocate: Allocate | None = None

    def __init__(self, settings: ServerSettings, credentials: Credentials, started: EngineStart) -> None:
        self._credentials = credentials
        self.tls = http_tls(settings, credentials)
        self._started = started
        self._engine = started.engine
        applications = Applications(settings, self._engine, make_hub_bridge, tokens=credentials.tokens)
        self._applications = applications.by_port()
        self.http2_ports: Mapping[int, Http2Port] = grpc_ports(
            settings, self._engine, make_hub_bridge, credentials, show=applications.show
        )
        self._start_watch = StartWatch(settings, self._engine, started.fail)
        self._metrics_log = make_metrics_log(settings, self._engine)

    @property
    def applications(self) -> Mapping[int, WSGIApplication]:
        return self._applications

    @property
    def failure(self) -> str | None:
        return self._started.failure

    def release_memory(self) -> None:
        """Nothing: there is no other process to share with."""

    def start(self) -> None:
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


def make_metrics_log(settings: ServerSettings, engine: InferenceEngine) -> MetricsLog | None:
    """None if --metrics-log is none."""
    dimensions = settings.metrics_log_dimensions
    formats: dict[str, Format] = {
        "emf": partial(embedded_metrics_line, settings.metrics_log_namespace, dimensions),
        "gcp": partial(cloud_logging_line, dimensions),
    }
    chosen = formats.get(settings.metrics_log)
    if chosen is None:
        return None
    return MetricsLog(engine.metrics, engine.is_ready, chosen, settings.metrics_log_interval_secs)
