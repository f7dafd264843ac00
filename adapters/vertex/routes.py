"""The route table of a Vertex AI container: the platform's two, and those of our own that are to be public.

With an invoke route prefix the platform lets every path through, so that nothing is there that was not asked for.
Source: spec/vertex.md sections (a) A3, (b) B3, native translation, points 9 and 11.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from adapters.vertex.errors import RouteAbsent
from adapters.vertex.health import health
from adapters.vertex.redirect import METRICS, redirect
from adapters.vertex.settings import VertexSettings
from core.http.reply import Environ, Reply
from core.http.routes import GET, POST, ROUTES, Route

if TYPE_CHECKING:
    from adapters.vertex.application import VertexApplication

METRICS_GROUP = "metrics"
_ANY = frozenset({"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE", "UNKNOWN"})


def predict(application: VertexApplication, environ: Environ) -> Reply:
    """By the hook, as the short way of the application does it."""
    return application.infer_view(environ, "", "")


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
REDIRECT = Route("redirect", (), "", POST, redirect)


def routes_of(settings: VertexSettings) -> tuple[Route, ...]:
    """The platform's come first: they may be paths of the v2 protocol."""
    if settings.health_route == settings.predict_route:
        own = [Route("by_method", (settings.health_route,), "", GET | POST, by_method)]
    else:
        own = [
            Route("health", (settings.health_route,), "health", GET, health),
            Route("predict", (settings.predict_route,), "inference", POST, predict),
        ]
    public = [route for route in ROUTES if route.group in settings.public_groups]
    if METRICS_GROUP in settings.public_groups:
        public.append(METRICS)
    return (*own, *_without(public, own), Route("absent", ("/", "/<path:rest>"), "", _ANY, absent))


def _without(routes: list[Route], own: list[Route]) -> list[Route]:
    """The routes but for the rules that others have already."""
    taken = {rule for route in own for rule in route.rules}
    return [
        Route(each.name, rules, each.group, each.methods, each.view, each.error_mime, each.refusal_mime)
        for each in routes
        if (rules := tuple(rule for rule in each.rules if rule not in taken))
    ]
