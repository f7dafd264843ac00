"""The WSGI applications of the server's ports, in front of one engine."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import TYPE_CHECKING, Any, NamedTuple
from wsgiref.types import WSGIApplication

import gevent
from prometheus_client.registry import Collector, CollectorRegistry

from trident.adapters.common.options import Service
from trident.app.settings.server import ServerSettings
from trident.app.sites.bridges import MakeBridge
from trident.app.sites.credentials import Credentials
from trident.app.sites.site import Http2Port
from trident.app.supervisor.private_directory import PrivateDirectory
from trident.app.worker.http2.frames import Http2Limits
from trident.core.engine.protocol import Engine
from trident.core.errors import ErrorHints
from trident.core.frontend.access import GRPC, AuthTokens, parse_restricted
from trident.core.frontend.bridge import TimeSlice
from trident.core.frontend.gevent_bridge import GeventBridge
from trident.core.frontend.request import Allocate
from trident.core.http.application import V2Application
from trident.core.http.front_end import HttpOptions
from trident.core.http.metrics import MetricsApplication, MetricsPage, request_metrics_page
from trident.core.observability.metrics.exposition import render
from trident.core.observability.metrics.families import log_family, metric_families
from trident.core.observability.metrics.snapshot import MetricsOptions

if TYPE_CHECKING:
    from trident.adapters.sagemaker.memory import MemoryBudget
    from trident.adapters.sagemaker.model_states import ModelStates
    from trident.core.grpc.application import GrpcOptions
    from trident.core.remote.engine_client import RemoteEngine
    from trident.core.remote.pool import EnginePool


class Applications:
    """The applications of one process. With `request_counts` all pages show these, otherwise each those of its own."""

    def __init__(
        self,
        settings: ServerSettings,
        engine: Engine,
        make_bridge: MakeBridge,
        request_counts: CollectorRegistry | None = None,
        tokens: AuthTokens | None = None,
        multi_model: MultiModel | None = None,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._make_bridge = make_bridge
        self._multi_model = multi_model
        self._request_counts = request_counts
        self._metrics_options = MetricsOptions(
            gpu=settings.allow_gpu_metrics,
            cpu=settings.allow_cpu_metrics,
            interval_ms=settings.metrics_interval_ms,
            config=settings.metrics_settings,
        )
        self._v2 = V2Application(engine, http_options(settings, tokens), make_bridge(settings.http_thread_count))
        self._sagemaker = self._sagemaker_application()
        self._vertex = self._vertex_application()
        made = (self._v2, self._sagemaker, self._vertex)
        self._made = [application for application in made if application is not None]

    def show(self, collector: Collector) -> None:
        """Have all pages show the metrics of another front end of this process."""
        for application in self._made:
            application.request_metrics.register(collector)

    def by_port(self) -> dict[int, WSGIApplication]:
        settings = self._settings
        applications: dict[int, Any] = {}
        if settings.allow_http:
            applications[settings.http_port] = self._v2
        if self._sagemaker is not None:
            applications[settings.sagemaker_port] = self._sagemaker
        if self._vertex is not None:
            applications[settings.vertex_ai_port] = self._vertex
        if settings.allow_metrics:
            # The page shows the requests of the plain v2 port; the platforms' ports have their own pages.
            front_end = self._v2 if settings.allow_http else self._sagemaker or self._vertex or self._v2
            applications[settings.metrics_port] = MetricsApplication(self._metrics_page(lambda: front_end))
        return applications

    def _sagemaker_application(self) -> V2Application | None:
        settings = self._settings
        if settings.sagemaker is None or not settings.allow_sagemaker:
            return None
        from trident.adapters.sagemaker.application import SageMakerApplication

        models = self._multi_model
        application: V2Application = SageMakerApplication(
            self._engine,
            http_options(settings),
            self._make_bridge(settings.sagemaker_thread_count),
            settings.sagemaker,
            self._metrics_page(lambda: application),
            memory=models.memory if models is not None else None,
            states=models.states if models is not None else None,
        )
        return application

    def _vertex_application(self) -> V2Application | None:
        settings = self._settings
        if settings.vertex is None:
            return None
        from trident.adapters.vertex.application import VertexApplication

        application: V2Application = VertexApplication(
            self._engine,
            http_options(settings),
            self._make_bridge(settings.vertex_ai_thread_count),
            settings.vertex,
            self._metrics_page(lambda: application),
        )
        return application

    def _metrics_page(self, front_end: Callable[[], V2Application]) -> MetricsPage:
        """The page with the requests of `front_end`, which exists when the page is first asked for."""

        def page(openmetrics: bool) -> bytes:
            own = front_end()
            families = (*metric_families(self._engine.metrics(), self._metrics_options), log_family())
            pause = TimeSlice(own.bridge.give_way)
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
    )


def grpc_ports(
    settings: ServerSettings,
    engine: Engine,
    make_bridge: MakeBridge,
    credentials: Credentials,
    *,
    allocate: Allocate | None = None,
    show: Callable[[Collector], None] | None = None,
) -> dict[int, Http2Port]:
    """The gRPC port, if it is opened, under its number; a Unix socket has 0. A stock worker cannot serve it.

    `allocate` gives memory for large messages that is shared with the engine. `show` gets the counts of calls, unless
    the pages of metrics show them anyway.
    """
    place = settings.services().get(Service.GRPC)
    bridge = make_bridge(settings.grpc_infer_thread_count) if place is not None else None
    if place is None or not isinstance(bridge, GeventBridge):
        return {}
    from trident.core.grpc.application import GrpcApplication  # for servers with gRPC only

    application = GrpcApplication(engine, grpc_options(settings, credentials.tokens), bridge, gevent.spawn, allocate)
    if show is not None:
        show(application.request_metrics)
    port = Http2Port(
        application=application,
        limits=http2_limits(settings),
        tls=credentials.grpc_tls,
        max_age_s=_seconds(settings.grpc_max_connection_age),
        age_grace_s=_seconds(settings.grpc_max_connection_age_grace),
        shares_memory=allocate is not None,
    )
    return {place[1]: port}


def grpc_options(settings: ServerSettings, tokens: AuthTokens | None = None) -> GrpcOptions:
    from trident.core.grpc.application import GrpcOptions

    return GrpcOptions(
        header_forward_pattern=settings.grpc_header_forward_pattern,
        restricted=parse_restricted(settings.grpc_restricted_protocol, GRPC),
        tokens=tokens,
        compression_level=settings.grpc_infer_response_compression_level,
        max_message_size=settings.grpc_max_message_size,
        max_unfinished_size=settings.grpc_max_unfinished_size,
        reflection=settings.grpc_reflection,
        allow_client_shm=settings.allow_client_shm,
        error_hints=ErrorHints(settings.error_hints),
    )


def http2_limits(settings: ServerSettings) -> Http2Limits:
    """gRPC's rules for pings; without the permission a ping may come once in two hours while there is no call."""
    defaults = Http2Limits()
    interval_s = settings.grpc_http2_min_recv_ping_interval_without_data / 1000
    permitted = settings.grpc_keepalive_permit_without_calls
    return Http2Limits(
        ping_interval_s=interval_s,
        ping_interval_idle_s=interval_s if permitted else defaults.ping_interval_idle_s,
        ping_strikes=settings.grpc_http2_max_ping_strikes,
        keepalive_s=settings.grpc_keepalive_time / 1000,
        keepalive_timeout_s=settings.grpc_keepalive_timeout / 1000,
        keepalive_without_streams=permitted,
    )


def _seconds(milliseconds: int) -> float:
    """0 is never."""
    return milliseconds / 1000 if milliseconds else math.inf


class MultiModel(NamedTuple):
    memory: MemoryBudget
    states: ModelStates | None = None


def own_models(settings: ServerSettings) -> MultiModel:
    """For the one process of a server that has no front ends."""
    from trident.adapters.sagemaker.memory import MemoryBudget
    from trident.core.backends.registry import BackendRegistry
    from trident.core.cuda.driver import gpu_ids

    backends = BackendRegistry(settings.backend_settings, gpu_ids=gpu_ids(settings.min_supported_compute_capability))
    memory = MemoryBudget.of_machine(
        gpu_ids=backends.gpu_ids, visible_gpus=settings.visible_gpus, limit=_limit(settings)
    )
    return MultiModel(memory)


def shared_models(
    settings: ServerSettings, engine: RemoteEngine | EnginePool, directory: PrivateDirectory
) -> MultiModel:
    """For a front end, which shares them with the others through `directory`."""
    from trident.adapters.sagemaker.memory import MemoryBudget, SharedReservations
    from trident.adapters.sagemaker.model_states import ModelStates
    from trident.core.observability.hardware import resident_bytes

    def resident() -> int:
        return sum(map(resident_bytes, engine.process_ids()))

    memory = MemoryBudget.of_engines(resident, SharedReservations(directory.loads), limit=_limit(settings))
    return MultiModel(memory, ModelStates(engine, directory.models))


def _limit(settings: ServerSettings) -> int | None:
    return settings.sagemaker_memory_limit_mb * 1_000_000 or None
