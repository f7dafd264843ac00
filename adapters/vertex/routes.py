"""The routes of a Vertex AI container: the platform's two, and the v2 routes that the settings make public.

The platform's routes are compared as text, before all others: they may be paths of the v2 protocol, and none of their
characters has a meaning. With an invoke route prefix the platform forwards every path, so a route is public only if the
settings name its group.
Source: docs/spec/vertex.md sections A3, B3, D points 9 and 11.
"""

from __future__ import annotations

from functools import partial

from adapters.common.absent_route import absent_route
from adapters.vertex.endpoint import VertexEndpoint
from adapters.vertex.health import health
from adapters.vertex.predict import predict
from adapters.vertex.settings import VertexSettings
from core.http.application import V2Application
from core.http.reply import Environ, Reply
from core.http.routes import GET, POST, ROUTES, Route

METRICS_GROUP = "metrics"


def platform_routes(endpoint: VertexEndpoint) -> dict[str, Route]:
    """The two routes by their paths as the platform sends them; one route if both have the same path."""
    settings = endpoint.settings
    health_route = Route("health", (), "health", GET, partial(health, endpoint))
    predict_route = Route("predict", (), "inference", POST, partial(predict, endpoint))
    if settings.health_route == settings.predict_route:
        both = Route("by_method", (), "", GET | POST, partial(_by_method, health_route, predict_route), passes_on=True)
        return {settings.health_route: both}
    return {settings.health_route: health_route, settings.predict_route: predict_route}


def public_routes(settings: VertexSettings, metrics: Route) -> tuple[Route, ...]:
    """The route table of all other paths; `metrics` belongs to it if its group is public."""
    public = [route for route in ROUTES if route.group in settings.public_groups]
    if METRICS_GROUP in settings.public_groups:
        public.append(metrics)
    listed = (
        f"GET {settings.health_route}, POST {settings.predict_route}, and "
        f"those of the groups {', '.join(settings.public_groups) or '(none)'}"
    )
    hint = "--public-routes says which groups of the v2 protocol's routes are served on this port"
    return (*public, absent_route(listed, hint))


def _by_method(health_route: Route, predict_route: Route, application: V2Application, environ: Environ) -> Reply:
    """A probe is a GET, a request a POST."""
    return application.answer(environ, health_route if environ["REQUEST_METHOD"] == "GET" else predict_route, {})
