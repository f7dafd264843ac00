"""The applications of the server's ports, and the sites that put them in front of an engine: one in the same process,
or those behind sockets.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Any
from wsgiref.types import WSGIApplication

import gevent
from prometheus_client.registry import Collector, CollectorRegistry

from trident.adapters.common.platform import Host, Platform, PlatformSettings
from trident.adapters.common.routes import metrics_route
from trident.app.process.environment import settle_collector
from trident.app.process.files import PrivateDirectory
from trident.app.settings.server import GRPC as GRPC_SERVICE
from trident.app.settings.server import ServerSettings
from trident.app.sites.site import Credentials, Http2Port, Site, http_tls
from trident.app.worker.http2.frames import Http2Limits
from trident.core.buffers import Allocate
from trident.core.engine.protocol import Engine
from trident.core.errors import ErrorHints
from trident.core.frontend.access import GRPC, AuthTokens, parse_restricted
from trident.core.frontend.bridge import Bridge, ThreadBridge
from trident.core.frontend.gevent_bridge import GeventBridge, mailbox_here
from trident.core.http.admin import MetricsApplication, MetricsPage, request_metrics_page, share_request_counts
from trident.core.http.application import V2Application
from trident.core.http.front_end import HttpOptions
from trident.core.http.routes import ROUTES
from trident.core.observability.metrics.families import metric_families, render
from trident.core.observability.statistics import MetricsOptions

if TYPE_CHECKING:
    from trident.app.sites.engine_start import EngineStart
    from trident.core.remote.engine_client import RemoteEngine
    from trident.core.remote.pool import EnginePool


# Makes a bridge, given the number of threads for blocking calls.
MakeBridge = Callable[[int], Bridge]

# A metrics page lets others run after this many seconds.
_SLICE_S = 0.0002


def make_hub_bridge(threads: int) -> GeventBridge:
    """For this project's worker: requests wait on the hub."""
    return GeventBridge(gevent.get_hub(), threads)


def make_thread_bridge(threads: int) -> Bridge:
    """For requests that have their own threads and may block them."""
    return ThreadBridge()


class Applications:
    """The applications of one process. All metrics pages show `request_counts` if given, otherwise each its own."""

    def __init__(
        self,
        settings: ServerSettings,
        engine: Engine,
        make_bridge: MakeBridge,
        request_counts: CollectorRegistry | None = None,
        tokens: AuthTokens | None = None,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._make_bridge = make_bridge
        self._request_counts = request_counts
        self._metrics_options = MetricsOptions(
            gpu=settings.allow_gpu_metrics,
            cpu=settings.allow_cpu_metrics,
            interval_ms=settings.metrics_interval_ms,
            config=settings.metrics_settings,
        )
        routes = ROUTES
        if settings.console:
            from trident.core.http.console import CONSOLE_ROUTES  # reads the files of the page

            routes = (*ROUTES, *CONSOLE_ROUTES)
        if settings.http_metrics:
            routes = (*routes, metrics_route(self._metrics_page(lambda: self._v2)))
        bridge = make_bridge(settings.http_thread_count)
        self._v2 = V2Application(engine, http_options(settings, tokens), bridge, routes)
        self._of_platforms = {own.port: self._made_for(each, own) for each, own in settings.open_platforms.items()}
        self._made = [self._v2, *self._of_platforms.values()]

    def show(self, collector: Collector) -> None:
        """Have all pages show the metrics of another front end of this process."""
        for application in self._made:
            application.request_metrics.register(collector)

    def by_port(self) -> dict[int, WSGIApplication]:
        settings = self._settings
        applications: dict[int, Any] = {}
        if settings.allow_http:
            applications[settings.http_port] = self._v2
        applications.update(self._of_platforms)
        if settings.allow_metrics:
            # The page shows the requests of the plain v2 port; the platforms' ports have their own pages.
            front_end = self._v2 if settings.allow_http else next(iter(self._of_platforms.values()), self._v2)
            applications[settings.metrics_port] = MetricsApplication(self._metrics_page(lambda: front_end))
        return applications

    def _made_for(self, platform: Platform, own: PlatformSettings) -> V2Application:
        settings = self._settings
        host = Host(
            engine=self._engine,
            bridge=self._make_bridge(own.thread_count),
            options=http_options(settings),
            metrics_page=self._metrics_page(lambda: application),
        )
        application = platform.application(own, host)
        return application

    def _metrics_page(self, front_end: Callable[[], V2Application]) -> MetricsPage:
        """The page with the requests of `front_end`, which exists when the page is first asked for."""

        def page(openmetrics: bool) -> bytes:
            own = front_end()
            families = metric_families(self._engine.metrics(), self._metrics_options)
            since = time.perf_counter()

            def pause() -> None:
                """Let others run once the page has taken 0.2 ms."""
                nonlocal since
                if time.perf_counter() - since >= _SLICE_S:
                    own.bridge.let_others_run()
                    since = time.perf_counter()

            own_families = render(families, openmetrics=openmetrics, pause=pause)
            return own_families + request_metrics_page(self._request_counts or own.request_metrics, openmetrics)

        return MetricsPage(page)


def http_options(settings: ServerSettings, tokens: AuthTokens | None = None) -> HttpOptions:
    """`tokens` are those that a client must have; None on a port whose platform says who may call."""
    return HttpOptions(
        max_input_size=settings.http_max_input_size,
        header_forward_pattern=settings.http_header_forward_pattern,
        restricted=parse_restricted(settings.http_restricted_api),
        tokens=tokens,
        allow_client_shm=settings.allow_client_shm,
        health_json=settings.health_body == "json",
        error_hints=ErrorHints(settings.error_hints),
        console=settings.console,
        grpc_port=settings.grpc_port if settings.allow_grpc else 0,
        grpc_tls=settings.grpc_use_ssl,
        control_mode="poll" if settings.reload else settings.model_control_mode,
    )


def grpc_ports(
    settings: ServerSettings,
    engine: Engine,
    make_bridge: Callable[[int], GeventBridge],
    credentials: Credentials,
    *,
    allocate: Allocate | None = None,
    show: Callable[[Collector], None] | None = None,
) -> dict[int, Http2Port]:
    """The gRPC port, if it is opened, under its number; a Unix socket has 0.

    `allocate` gives memory for large messages that is shared with the engine. `show` gets the counts of calls, unless
    the pages of metrics show them anyway.
    """
    place = settings.services().get(GRPC_SERVICE)
    if place is None:
        return {}
    bridge = make_bridge(settings.grpc_infer_thread_count)
    from trident.core.grpc.application import GrpcApplication  # for servers with gRPC only
    from trident.core.grpc.front_end import GrpcOptions

    options = GrpcOptions(
        header_forward_pattern=settings.grpc_header_forward_pattern,
        restricted=parse_restricted(settings.grpc_restricted_protocol, GRPC),
        tokens=credentials.tokens,
        compression_level=settings.grpc_infer_response_compression_level,
        max_message_size=settings.grpc_max_message_size,
        max_unfinished_size=settings.grpc_max_unfinished_size,
        reflection=settings.grpc_reflection,
        allow_client_shm=settings.allow_client_shm,
        error_hints=ErrorHints(settings.error_hints),
    )
    application = GrpcApplication(engine, options, bridge, gevent.spawn, allocate)
    if show is not None:
        show(application.request_metrics)
    # gRPC's rules for pings; without the permission, one ping in two hours is allowed while there is no call.
    defaults = Http2Limits()
    interval_s = settings.grpc_http2_min_recv_ping_interval_without_data / 1000
    permitted = settings.grpc_keepalive_permit_without_calls
    port = Http2Port(
        application=application,
        limits=Http2Limits(
            ping_interval_s=interval_s,
            ping_interval_idle_s=interval_s if permitted else defaults.ping_interval_idle_s,
            ping_strikes=settings.grpc_http2_max_ping_strikes,
            keepalive_s=settings.grpc_keepalive_time / 1000,
            keepalive_timeout_s=settings.grpc_keepalive_timeout / 1000,
            keepalive_without_streams=permitted,
        ),
        tls=credentials.grpc_tls,
        max_age_s=_seconds(settings.grpc_max_connection_age),
        age_grace_s=_seconds(settings.grpc_max_connection_age_grace),
        shares_memory=allocate is not None,
    )
    return {place.port: port}


def _seconds(milliseconds: int) -> float:
    """Return seconds; infinity for 0."""
    return milliseconds / 1000 if milliseconds else math.inf


class InProcessSite(Site):
    """Made in the worker, after the fork, around the engine that has started there."""

    def __init__(
        self,
        settings: ServerSettings,
        credentials: Credentials,
        started: EngineStart,
        around: Callable[[Any], Any] = lambda engine: engine,
    ) -> None:
        self._credentials = credentials
        self.tls = http_tls(settings, credentials)
        self._started = started
        self._engine = started.engine
        self._engine.make_mailbox = mailbox_here
        engine = around(started.engine)
        applications = Applications(settings, engine, make_hub_bridge, tokens=credentials.tokens)
        self.applications = applications.by_port()
        self.http2_ports = grpc_ports(settings, engine, make_hub_bridge, credentials, show=applications.show)
        from trident.app.sites.engine_start import make_metrics_log, watch_start  # front ends have no engine

        self._watch_start = partial(watch_start, settings, self._engine, started.fail)
        self._metrics_log = make_metrics_log(settings, self._engine)

    @property
    def failure(self) -> str | None:
        return self._started.failure

    def release_memory(self) -> None:
        self._engine.release_memory()

    def start(self) -> None:
        self._watch_start()
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


class FrontEndSite(Site):
    """Made in the worker, after the fork. It is connected to the engines at the sockets in `directory`.

    It logs no requests in flight: the engine's process does that once.
    """

    def __init__(
        self,
        settings: ServerSettings,
        credentials: Credentials,
        directory: PrivateDirectory,
        engines: int = 1,
        around: Callable[[Any], Any] = lambda engine: engine,
    ) -> None:
        self._credentials = credentials
        self.tls = http_tls(settings, credentials)
        self._directory = directory
        request_counts = share_request_counts(directory.metrics)
        self._engine = _engine(settings, directory, engines)
        self.allocate = self._engine.allocate
        engine = around(self._engine)
        applications = Applications(
            settings,
            engine,
            make_hub_bridge,
            request_counts,
            credentials.tokens,
        )
        self.applications = applications.by_port()
        self.http2_ports = grpc_ports(settings, engine, make_hub_bridge, credentials, allocate=self.allocate)

    def release_memory(self) -> None:
        self._engine.release_memory()

    def start(self) -> None:
        self._engine.start()
        self._credentials.watch()
        settle_collector()

    def begin_exit(self) -> None:
        self._engine.begin_exit()

    def finish(self, timeout_s: float) -> bool:
        """Return True: all requests in flight have been answered; the engine ends after the front ends."""
        self._credentials.close()
        self._directory.remove_if_orphaned()
        return True


def _engine(settings: ServerSettings, directory: PrivateDirectory, engines: int) -> RemoteEngine | EnginePool:
    from trident.app.worker.worker import GeventLink  # these are for servers with front ends only
    from trident.core.remote.engine_client import RemoteEngine

    memory_bytes = settings.http_worker_memory_bytes
    if engines == 1 and not settings.multi_model:
        return RemoteEngine(str(directory.socket), GeventLink(), memory_bytes)
    from trident.core.remote.pool import EnginePool

    sockets = [str(directory.socket_of(index)) for index in range(engines)]
    keeps_answers = bool(settings.response_cache_bytes) and settings.redis_options is None
    return EnginePool(
        sockets,
        GeventLink,
        memory_bytes,
        directory.changes,
        keeps_answers=keeps_answers,
        by_model=settings.multi_model,
    )
