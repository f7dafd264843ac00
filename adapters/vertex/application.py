"""Vertex AI's container contract as a WSGI application: the v2 core behind the platform's routes.

Source: docs/spec/vertex.md, all sections; docs/architecture.md section 3 point 4.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from adapters.common.metrics_route import metrics_route
from adapters.common.statuses import BODY_STATUSES, Statuses, status_in
from adapters.vertex.endpoint import VertexEndpoint
from adapters.vertex.errors import RedirectForbidden
from adapters.vertex.predict import BINARY
from adapters.vertex.redirect import HEADER_KEY, redirect_route
from adapters.vertex.routes import platform_routes, public_routes
from adapters.vertex.settings import VertexSettings
from core.engine.protocol import Engine
from core.frontend.bridge import Bridge
from core.http.application import InferPath, V2Application
from core.http.metrics_page import MetricsPage
from core.http.options import HttpOptions
from core.http.reply import JSON, Environ, send
from core.http.request_path import request_path

_STATUSES: Statuses = ((RedirectForbidden, 403), *BODY_STATUSES)


class VertexApplication(V2Application):
    """Serves the default model of `engine` on the predict route, and other models where a request names them.

    Responses with binary tensors have the v2 protocol's media type, not the request's: Triton does the same.
    """

    early_error_mime = JSON
    has_hint_field = False
    answers_options = False

    def __init__(
        self,
        engine: Engine,
        options: HttpOptions,
        bridge: Bridge,
        settings: VertexSettings,
        metrics_page: MetricsPage,
    ) -> None:
        """Raises InvalidRequest for version 0 in the predict route."""
        found = super().infer_path(settings.predict_route)
        routed = found[1] if found is not None else {"model": "", "version": ""}
        endpoint = VertexEndpoint(engine, bridge, settings, routed["model"], routed["version"])
        metrics = metrics_route(metrics_page)
        self._platform_routes = platform_routes(endpoint)
        self._redirect = redirect_route(endpoint, metrics)
        self._predict_route = settings.predict_route
        self._serves_v2 = "inference" in settings.public_groups
        super().__init__(engine, options, bridge, public_routes(settings, metrics))

    def __call__(self, environ: Environ, start_response: Any) -> Iterable[Any]:
        routes = self._platform_routes
        # Nearly always the target is the path as it stands.
        route = routes.get(environ.get("RAW_URI", "")) or routes.get(request_path(environ))
        if route is None:
            return super().__call__(environ, start_response)
        if HEADER_KEY in environ and request_path(environ) == self._predict_route:
            route = self._redirect
        return send(self.answer(environ, route, {}), environ, start_response)

    # --- the hooks of V2Application

    def binary_header(self, environ: Environ) -> str | None:
        """On the predict route only the Content-Type gives the length; on the v2 routes the header may give it, too."""
        content_type = environ.get("CONTENT_TYPE")
        size_text = BINARY.size_text(content_type) if content_type else None
        if size_text is not None or request_path(environ) == self._predict_route:
            return size_text
        return super().binary_header(environ)

    def infer_path(self, path: str) -> InferPath | None:
        return super().infer_path(path) if self._serves_v2 else None

    def status_of(self, error: Exception) -> int:
        return status_in(_STATUSES, error) or super().status_of(error)
