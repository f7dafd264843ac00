"""The Flask application behind a V2Application: it finds the route of a request and has the V2Application answer it.

prometheus-flask-exporter counts and times what comes here. Infer, generate and the server's probes do not come here
unless something is wrong with them: `V2Application.__call__` answers and counts them itself.

Flask and what it imports are a quarter of the modules of a server and 7 MB of its memory. So this module is imported by
the first request that needs it; only where several front ends are forked, all of them have it from the start.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Callable, Iterable
from functools import lru_cache
from typing import TYPE_CHECKING

from flask import Flask, Request, Response, request
from prometheus_flask_exporter import PrometheusMetrics
from werkzeug.exceptions import HTTPException, NotFound
from werkzeug.routing import BaseConverter, Map, MapAdapter, Rule

from trident.core.frontend.access import HEALTH
from trident.core.http import errors
from trident.core.http.front_end import PROBE_KEY
from trident.core.http.reply import STATUS_LINES, Reply, plain_parts, request_path
from trident.core.http.routes import Route

if TYPE_CHECKING:
    from trident.core.http.application import V2Application


class DigitsConverter(BaseConverter):
    regex = "[0-9]+"


class PlainConverter(BaseConverter):
    """A name without a colon, after which the v1 protocol has a verb."""

    regex = "[^/:]+"


@lru_cache(maxsize=8)
def _url_map(rules: tuple[tuple[str, str], ...]) -> Map:
    """The rules of routes, for any method. Routes with the same rules share one map, so it must not be changed."""
    # Cached, because Werkzeug compiles two functions for each rule: 25 ms for an application, and tests make hundreds.
    made = [Rule(rule, endpoint=name) for rule, name in rules]
    return Map(made, converters={"digits": DigitsConverter, "plain": PlainConverter}, merge_slashes=False)


class RouteMap:
    """Finds the route of a path, without Flask. Any thread."""

    def __init__(self, routes: Iterable[Route]) -> None:
        self.routes = {route.name: route for route in routes}
        self.urls = _url_map(tuple((rule, route.name) for route in self.routes.values() for rule in route.rules))

    def adapter(self, path: str) -> MapAdapter:
        # Werkzeug takes several slashes at the start for one; Triton has no route that starts so.
        return self.urls.bind("localhost", path_info=f"/%2F{path[2:]}" if path.startswith("//") else path)

    def find(self, path: str) -> tuple[Route, dict[str, str]] | None:
        """The route of the raw `path`, and the values that its rule captures; None without a route."""
        try:
            name, captured = self.adapter(path).match()
        except HTTPException:  # also a redirect: a path with another slash is another path
            return None
        return self.routes[name], dict(captured)


_V1_MODEL = re.compile(r"/v1/models/([\w.-]{1,200})")
# Paths of other servers, and of this one's other ports and options, at which people look.
_ELSEWHERE = {
    **dict.fromkeys(("/docs", "/openapi.json", "/swagger", "/redoc", "/v2/docs"), errors.DOCUMENTED),
    "/console": errors.NO_CONSOLE,
    "/metrics": "metrics are on a port of their own, --metrics-port (8002)",
    "/v2/models": "POST /v2/repository/index lists the models",
}
_LONGEST_COMPARED = 64
# The last part of paths at which people look for a probe, or send a request.
_PROBE = re.compile(r"/(health|ping|live|ready|livez|readyz)$")
_CALL = re.compile(r"/(infer|predict|predictions(/[^/]*)?|invocations|score|generate)$")


class FlaskApp(Flask):
    def __init__(self, application: V2Application) -> None:
        super().__init__("trident.core.http", static_folder=None, template_folder=None)
        self._application = application
        self.route_map = RouteMap(application.routes)
        # Not Flask's own rules, which answer OPTIONS and HEAD by themselves: both are 405 in Triton.
        self.url_map = self.route_map.urls
        self.view_functions.update({route.name: self._view(route) for route in application.routes})
        self.register_error_handler(Exception, self._unrouted)
        PrometheusMetrics(self, path=None, group_by=_route, registry=application.request_metrics)

    def create_url_adapter(self, request: Request | None) -> MapAdapter | None:
        """Match the raw path. The request's Host, and the path as WSGI decodes it, play no part."""
        return None if request is None else self.route_map.adapter(request_path(request.environ))

    def _view(self, route: Route) -> Callable[..., Response]:
        def view(**arguments: str) -> Response:
            if route.group == HEALTH:
                request.environ[PROBE_KEY] = True
            return _response(self._application.answer(request.environ, route, arguments))

        return view

    def _unrouted(self, error: Exception) -> Response:
        """The response to an error outside a view: above all, to a path without a route."""
        is_unknown = isinstance(error, NotFound)
        refusal = errors.RouteNotFound(self.hint(request_path(request.environ))) if is_unknown else error
        try:
            return _response(self._application.refuse(refusal, request.environ))
        finally:
            # Flask's request keeps the error, and the tracebacks of the error and its context have frames with the
            # request: it would stay, with its body, until the garbage collector runs.
            error.__traceback__ = error.__context__ = None

    def hint(self, path: str) -> str:
        shorter = path.rstrip("/")
        rules = [rule for route in self.route_map.routes.values() for rule in route.rules]
        near = difflib.get_close_matches(shorter, rules, n=1, cutoff=0.85) if len(path) <= _LONGEST_COMPARED else []
        if near and near[0] != shorter and shorter not in _ELSEWHERE:
            return f"did you mean {near[0]}?"
        if shorter != path and self.url_map.bind("localhost", path_info=shorter).test():
            return "leave out the slash at the end of the path"
        if path.startswith("/v1/"):
            found = _V1_MODEL.match(path)
            model = found[1] if found else "MODEL"
            return f"this server speaks the v2 protocol: POST /v2/models/{model}/infer"
        if shorter in _ELSEWHERE:
            return _ELSEWHERE[shorter]
        if _PROBE.search(shorter):
            return "GET /v2/health/ready tells whether the server is ready"
        if _CALL.search(shorter):
            return "POST /v2/models/MODEL/infer, or /v2/models/MODEL/versions/1/infer, takes a request"
        return errors.DOCUMENTED


def _response(reply: Reply) -> Response:
    return Response(plain_parts(reply), STATUS_LINES[reply.status], reply.headers)


def _route(flask_request: Request) -> str:
    """The rule that a request matched, the label of its metrics: there are few, whatever paths clients make up."""
    return flask_request.url_rule.rule if flask_request.url_rule is not None else ""


# The label has the name of the function.
_route.__name__ = "route"
