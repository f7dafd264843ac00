"""The WSGI applications of the server's ports, in front of one engine."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from wsgiref.types import WSGIApplication

from prometheus_client.registry import Collector

from app.settings.server import ServerSettings
from app.sites.bridges import MakeBridge
from app.sites.http_options import http_options
from app.sites.multi_model import MultiModel
from core.engine.protocol import Engine
from core.frontend.auth_tokens import AuthTokens
from core.frontend.turns import Turns
from core.http.application import V2Application
from core.http.metrics_application import MetricsApplication
from core.http.metrics_page import MetricsPage
from core.http.response_counts import ResponseCounts
from core.observability.metrics.exposition import render
from core.observability.metrics.families import log_family, metric_families
from core.observability.metrics.options import MetricsOptions

# Renders the HTTP requests of a front end for the metrics page, in OpenMetrics if the second argument is true.
RequestPage = Callable[[V2Application, bool], bytes]


class Applications:
    """The applications of one process. With `responses` they count their answers there, otherwise each for itself."""

    def __init__(
        self,
        settings: ServerSettings,
        engine: Engine,
        make_bridge: MakeBridge,
        request_page: RequestPage = V2Application.request_metrics_page,
        responses: ResponseCounts | None = None,
        tokens: AuthTokens | None = None,
        multi_model: MultiModel | None = None,
    ) -> None:
        self._settings = settings
        self._engine = engine
        self._make_bridge = make_bridge
        self._multi_model = multi_model
        self._request_page = request_page
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
        if responses is not None:
            for application in self._made:
                application.responses = responses

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
        from adapters.sagemaker.application import SageMakerApplication

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
        from adapters.vertex.application import VertexApplication

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
            pause = Turns(own.bridge.give_way)
            return render(families, openmetrics=openmetrics, pause=pause) + self._request_page(own, openmetrics)

        return MetricsPage(page)
