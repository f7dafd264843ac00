"""Vertex AI's container contract as a WSGI application: the v2 core behind the platform's routes.

Source: docs/spec/vertex.md, all sections; docs/architecture.md section 3 point 4.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from typing import Any

from adapters.vertex.errors import RedirectForbidden
from adapters.vertex.limits import SizeLimits
from adapters.vertex.predict import BINARY
from adapters.vertex.redirect import HEADER_KEY, REDIRECT
from adapters.vertex.routes import platform_routes, public_routes
from adapters.vertex.settings import VertexSettings
from core.engine.protocol import Engine
from core.frontend.bridge import Bridge
from core.http.application import V2Application
from core.http.default_model import DefaultModel
from core.http.errors import UnsupportedEncoding
from core.http.options import HttpOptions
from core.http.payloads.formats import NotAcceptable, UnsupportedMediaType
from core.http.reply import JSON, Environ, send
from core.http.request_path import request_path
from core.http.version_text import version_number

_STATUSES: tuple[tuple[type[Exception], int], ...] = (
    (RedirectForbidden, 403),
    (UnsupportedMediaType, 415),
    (UnsupportedEncoding, 415),
    (NotAcceptable, 406),
)
_CURE = "name the one that is meant in --vertex-ai-default-model, or in 'parameters.model' of a request with instances"


class VertexApplication(V2Application):
    """Serves the default model of `engine` on the predict route, and the others where a request names them.

    Responses with binary tensors are marked as those of the v2 protocol, not as requests are: Triton does the same.
    """

    early_error_mime = JSON

    def __init__(
        self,
        engine: Engine,
        options: HttpOptions,
        bridge: Bridge,
        settings: VertexSettings,
        metrics_page: Callable[[], bytes],
    ) -> None:
        """`metrics_page` makes the page of metrics anew. Raises InvalidRequest for version 0 in the predict route."""
        self.settings = settings
        self.metrics_page = metrics_page
        self.routes = public_routes(settings)
        self._platform_routes = platform_routes(settings)
        self._serves_v2 = "inference" in settings.public_groups
        super().__init__(engine, options, bridge)
        self.limits = SizeLimits(settings.max_request_size, settings.max_response_size)
        self.key_fields = frozenset((settings.key_field,)) if settings.key_field else frozenset()
        # The route may itself name a model, as images that served the v2 protocol alone had to have it.
        named = super().infer_path(settings.predict_route) or {"model": "", "version": ""}
        name = settings.default_model or named["model"]
        self.default_model = DefaultModel(engine, bridge, name, _CURE)
        self.default_version = version_number(named["version"] if name == named["model"] else "")

    def __call__(self, environ: Environ, start_response: Any) -> Iterable[Any]:
        routes = self._platform_routes
        # Nearly always the target is the path as it stands.
        route = routes.get(environ.get("RAW_URI", "")) or routes.get(request_path(environ))
        if route is None:
            return super().__call__(environ, start_response)
        if HEADER_KEY in environ and request_path(environ) == self.settings.predict_route:
            route = REDIRECT
        return send(self.answer(environ, route, {}), environ, start_response)

    # --- the hooks of V2Application

    def binary_header(self, environ: Environ) -> str | None:
        """On the predict route the length stands in the Content-Type alone; the v2 routes have the header as well."""
        content_type = environ.get("CONTENT_TYPE")
        size_text = BINARY.size_text(content_type) if content_type else None
        if size_text is not None or request_path(environ) == self.settings.predict_route:
            return size_text
        return super().binary_header(environ)

    def infer_path(self, path: str) -> dict[str, str] | None:
        return super().infer_path(path) if self._serves_v2 else None

    def status_of(self, error: Exception) -> int:
        for kind, status in _STATUSES:
            if isinstance(error, kind):
                return status
        return super().status_of(error)
