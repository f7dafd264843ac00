"""The routes of a Vertex AI container: the platform's two, and those of our own that are to be public.

The platform's are compared as text, before all others: they may be paths of the v2 protocol, and no character of theirs
means anything. With an invoke route prefix the platform lets every path through, so that nothing is there that was not
asked for.
Source: docs/spec/vertex.md sections A3, B3, D points 9 and 11.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from adapters.vertex.errors import RouteAbsent
from adapters.vertex.health import health
from adapters.vertex.predict import predict
from adapters.vertex.redirect import METRICS
from adapters.vertex.settings import VertexSettings
from core.http.reply import Environ, Reply
from core.http.routes import GET, POST, ROUTES, Route

if TYPE_CHECKING:
    from adapters.vertex.application import VertexApplication

METRICS_GROUP = "metrics"
_ANY = frozenset({"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE", "UNKNOWN"})


def by_method(application: VertexApplication, environ: Environ) -> Reply:
    """Where both routes are the same path: a probe is a GET, a request a POST."""
    return application.answer(environ, HEALTH if environ["REQUEST_METHOD"] == "GET" else PREDICT, {})


def absent(application: VertexApplication, environ: Environ, rest: str = "") -> Reply:
    """Whatever is no route learns which there are; Triton answers an empty 400."""
    settings = application.settings
    raise RouteAbsent(
        f"there is no such route; the routes are: GET {settings.health_route}, POST {settings.predict_route}, and "
        f"those of the groups {', '.join(settings.public_groups) or '(none)'}",
        hint="--public-routes says which groups of the v2 protocol's routes are served on this port",
    )


HEALTH = Route("health", (), "health", GET, health)
PREDICT = Route("predict", (), "inference", POST, predict)
_BOTH = Route("by_method", (), "", GET | POST, by_method)


def platform_routes(settings: VertexSettings) -> dict[str, Route]:
    """By their paths as they are sent."""
    if settings.health_route == settings.predict_route:
        return {settings.health_route: _BOTH}
    return {settings.health_route: HEALTH, settings.predict_route: PREDICT}


def public_routes(settings: VertexSettings) -> tuple[Route, ...]:
    """The route table of all other paths."""
    public = [route for route in ROUTES if route.group in settings.public_groups]
    if METRICS_GROUP in settings.public_groups:
        public.append(METRICS)
    return (*public, Route("absent", ("/", "/<path:rest>"), "", _ANY, absent))
