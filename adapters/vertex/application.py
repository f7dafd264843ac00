"""Vertex AI's container contract as a WSGI application: the v2 core behind the platform's routes.

Source: docs/spec/vertex.md, all sections; docs/architecture.md section 3 point 4.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import replace
from functools import partial
from typing import Any, ClassVar, Final

from trident.adapters.common.platform import Host
from trident.adapters.common.routes import (
    BODY_STATUSES,
    FORMAT_ANSWER,
    FORMAT_BODY,
    PROGRESS,
    Statuses,
    absent_route,
    metrics_route,
    status_in,
)
from trident.adapters.vertex.platform import VertexSettings
from trident.adapters.vertex.predict import (
    BINARY,
    RedirectForbidden,
    RedirectUnknown,
    VertexEndpoint,
    predict,
    received_size,
    set_deadline,
)
from trident.core.errors import ServerError
from trident.core.http.admin import readiness, ready_reply
from trident.core.http.application import InferPath, V2Application
from trident.core.http.flask_app import RouteMap
from trident.core.http.front_end import PROBE_KEY
from trident.core.http.openapi import Operation, operations
from trident.core.http.reply import JSON, TEXT, Environ, Reply, body_size, json_reply, request_path, send
from trident.core.http.routes import GET, INFERENCE, POST, ROUTES, Route, View

HEADER = "X-Vertex-Ai-Triton-Redirect"
HEADER_KEY = "HTTP_X_VERTEX_AI_TRITON_REDIRECT"

_FORBIDDEN = frozenset({"load", "unload", "memory_register", "memory_unregister"})
_PERMITTED = frozenset(
    {
        "live",
        "ready",
        "model_ready",
        "server_metadata",
        "model_metadata",
        "model_config",
        "statistics",
        "repository_index",
        "memory_status",
    }
)
# A path of valid characters without empty segments and without the segments `.` and `..`.
_PATH = re.compile(r"(?:(?!\.{1,2}(?:/|$))[A-Za-z0-9._~!$&'()*+,;=:@%-]+(?:/|$))+(?<!/)")
_LONGEST_SHOWN = 100


def _infer(
    endpoint: VertexEndpoint,
    view: View,
    application: V2Application,
    environ: Environ,
    model: str,
    version: str = "",
) -> Reply:
    set_deadline(environ, endpoint.settings.timeout_s)
    endpoint.limits.check_request(received_size(environ))
    reply = view(application, environ, model, version)
    endpoint.limits.check_response(body_size(reply))
    return reply


def _target(targets: RouteMap, environ: Environ) -> tuple[Route, dict[str, str]]:
    """The route of the path in the header, and its arguments. Raises RedirectForbidden and RedirectUnknown."""
    path: str = environ[HEADER_KEY]
    found = targets.find(f"/{path}") if _PATH.fullmatch(path) else None
    shown = path[:_LONGEST_SHOWN]
    if found is None:
        raise RedirectUnknown(
            f"the header {HEADER} is '{shown}', which is not a path that it can reach",
            hint="metrics, v2, v2/health/..., v2/models/..., v2/repository/index or v2/...sharedmemory/status",
        )
    route, arguments = found
    if route.name in _FORBIDDEN:
        raise RedirectForbidden(f"the header {HEADER} is '{shown}', which changes the server and is forbidden here")
    return route, arguments


def _redirect(targets: RouteMap, application: V2Application, environ: Environ) -> Reply:
    """Answer as the route of the path in the header. Raises as `_target`; the errors of that route are replies."""
    route, arguments = _target(targets, environ)
    environ["REQUEST_METHOD"] = min(route.methods)
    return application.answer(environ, route, arguments)


# Triton answers 400; this is a 503 that says why (docs/spec/vertex.md sections A2 and B3).
_NOT_YET = 503
_CONTROL = "model-repository"


def health(endpoint: VertexEndpoint, application: V2Application, environ: Environ) -> Reply:
    """200 when the server is ready and the default model serves, or any model if none was named; otherwise 503.

    The 503 gives the progress of the start, a header of the 200 the models whose last load failed. Without a model the
    server is healthy if clients may load one through this port.
    """
    environ[PROBE_KEY] = True
    engine, default = application.engine, endpoint.default_model
    if not engine.is_ready():
        return json_reply(readiness(engine.phase()), _NOT_YET)
    if default.is_ready() or (not default.configured and _CONTROL in endpoint.settings.public_groups):
        return ready_reply(application, environ)
    missing = f"the default model '{default.configured}' is not loaded" if default.configured else "no model is loaded"
    return json_reply({**readiness(engine.phase()), "error": missing}, _NOT_YET)


# The platform's routes are compared as text, before all others: they may be paths of the v2 protocol, and none of
# their characters has a meaning. With an invoke route prefix the platform forwards every path, so a route is public
# only if the settings name its group. Source: docs/spec/vertex.md sections A3, B3, D points 9 and 11.


METRICS_GROUP = "metrics"


def platform_routes(endpoint: VertexEndpoint) -> dict[str, Route]:
    """The two routes by their paths as the platform sends them; one route if both have the same path."""
    settings = endpoint.settings
    health_route = Route("health", (), "health", GET, partial(health, endpoint))
    predict_route = Route("predict", (), "inference", POST, partial(predict, endpoint))

    def by_method(application: V2Application, environ: Environ) -> Reply:
        return application.answer(environ, health_route if environ["REQUEST_METHOD"] == "GET" else predict_route, {})

    if settings.health_route == settings.predict_route:
        return {settings.health_route: Route("by_method", (), "", GET | POST, by_method, passes_on=True)}
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


_STATUSES: Statuses = ((RedirectForbidden, 403), *BODY_STATUSES)


class VertexApplication(V2Application):
    """Serves the default model of `engine` on the predict route, and other models where a request names them.

    Responses with binary tensors have the v2 protocol's media type, not the request's: Triton does the same.
    """

    untyped_error_mime: ClassVar[str] = JSON
    has_hint_field: ClassVar[bool] = False
    answers_options: ClassVar[bool] = False

    def __init__(self, host: Host, settings: VertexSettings) -> None:
        """Raises InvalidRequest for version 0 in the predict route."""
        found = super().infer_path(settings.predict_route)
        endpoint = VertexEndpoint(host, settings, **(found[1] if found is not None else {}))
        metrics = metrics_route(host.metrics_page)
        self._platform_routes = platform_routes(endpoint)
        # The routes that a request to the predict route reaches by its header.
        limited = [replace(route, view=partial(_infer, endpoint, route.view)) for route in INFERENCE]
        self._targets = RouteMap(
            [metrics, *limited, *(route for route in ROUTES if route.name in _PERMITTED | _FORBIDDEN)]
        )
        # In the place of the predict route for a request with the header.
        self._redirect = Route("redirect", (), "", POST, partial(_redirect, self._targets), passes_on=True)
        self._limits = endpoint.limits
        self._predict_route = settings.predict_route
        self._serves_v2 = "inference" in settings.public_groups
        super().__init__(host.engine, host.options, host.bridge, public_routes(settings, metrics))

    def __call__(self, environ: Environ, start_response: Any) -> Iterable[Any]:
        route = self._platform_route(environ)
        if route is None:
            return super().__call__(environ, start_response)
        return send(self.answer(environ, route, {}), environ, start_response)

    def _platform_route(self, environ: Environ) -> Route | None:
        routes = self._platform_routes
        # Nearly always the target is the path as it stands.
        route = routes.get(environ.get("RAW_URI", "")) or routes.get(request_path(environ))
        if route is not None and HEADER_KEY in environ and request_path(environ) == self._predict_route:
            return self._redirect
        return route

    # --- the hooks of V2Application

    def admit(self, environ: Environ) -> int | Reply:
        """The most bytes of the body, by the endpoint's limit too, or a refusal of where the redirect header leads."""
        most = super().admit(environ)
        route = self._platform_route(environ)
        if isinstance(most, Reply) or route is None:
            return most
        try:
            if route is self._redirect:
                route, _ = _target(self._targets, environ)
                self.check_access(route.group, environ)
                if route.group != "inference":
                    return most
            self._limits.check_request(received_size(environ))
        except ServerError as error:
            return self.refuse(error, environ)
        return min(most, self._limits.request or most)

    def find_route(self, environ: Environ) -> Route | None:
        return self._platform_route(environ) or super().find_route(environ)

    def binary_header(self, environ: Environ) -> str | None:
        """On the predict route only the Content-Type gives the length; on the v2 routes the header may give it, too."""
        content_type = environ.get("CONTENT_TYPE")
        size_text = BINARY.size_text(content_type) if content_type else None
        if size_text is not None or request_path(environ) == self._predict_route:
            return size_text
        return super().binary_header(environ)

    def documented_routes(self) -> list[tuple[Route, Operation]]:
        # The v2 protocol's table has a route of the same name.
        own = [
            (replace(route, name=f"platform_{route.name}", rules=(path,)), PLATFORM_OPERATIONS[route.name])
            for path, route in self._platform_routes.items()
        ]
        known = {**operations(), METRICS_GROUP: METRICS}
        return own + [(route, known[route.name]) for route in self.routes if route.name in known]

    def infer_path(self, path: str) -> InferPath | None:
        return super().infer_path(path) if self._serves_v2 else None

    def status_of(self, error: Exception) -> int:
        return status_in(_STATUSES, error) or super().status_of(error)


_REDIRECT = {
    "name": HEADER,
    "in": "header",
    "description": "Another path of the server, without its first slash",
    "schema": {"type": "string"},
}
_PREDICT = Operation(
    "Run the model on instances, or on the body of another form",
    {**FORMAT_ANSWER, JSON: {"anyOf": [{"predictions": ["any"]}, "any"]}},
    {
        JSON: {"anyOf": [{"instances": ["any"], "parameters?": "object"}, "object"]},
        BINARY.essence: "bytes",
        **{media_type: each for media_type, each in FORMAT_BODY.items() if media_type != JSON},
    },
    needs_body=False,
    parameters=(_REDIRECT,),
)

PLATFORM_OPERATIONS: Final = {
    "health": Operation("Whether the container serves", PROGRESS),
    "predict": _PREDICT,
    "by_method": _PREDICT,
}
METRICS: Final = Operation("Metrics as Prometheus reads them", {TEXT: "text"})
