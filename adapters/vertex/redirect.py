"""Other routes of the server through the predict route: a header gives the path, without its first slash.

Routes that read the server's state and inference can be reached so. Routes that change the server cannot, whatever key
the request has. The path is taken literally: nothing in it is decoded, joined or left out.
Source: docs/spec/vertex.md section B3.
"""

from __future__ import annotations

import re
from dataclasses import replace
from functools import partial

from adapters.vertex.deadline import set_deadline
from adapters.vertex.endpoint import VertexEndpoint
from adapters.vertex.errors import RedirectForbidden, RedirectUnknown
from adapters.vertex.limits import received_size
from core.http.application import V2Application
from core.http.reply import Environ, Reply, body_size
from core.http.route_map import RouteMap
from core.http.routes import INFERENCE, POST, ROUTES, Route, View

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


def redirect_route(endpoint: VertexEndpoint, metrics: Route) -> Route:
    """The route that takes the place of the predict route for a request with the header."""
    limited = [replace(route, view=partial(_infer, endpoint, route.view)) for route in INFERENCE]
    targets = RouteMap([metrics, *limited, *(route for route in ROUTES if route.name in _PERMITTED | _FORBIDDEN)])
    return Route("redirect", (), "", POST, partial(_redirect, targets), passes_on=True)


def _infer(
    endpoint: VertexEndpoint,
    view: View,
    application: V2Application,
    environ: Environ,
    model: str,
    version: str = "",
) -> Reply:
    """Answer as the v2 protocol does, within the limits of the endpoint."""
    set_deadline(environ, endpoint.settings.timeout_s)
    endpoint.limits.check_request(received_size(environ))
    reply = view(application, environ, model, version)
    endpoint.limits.check_response(body_size(reply))
    return reply


def _redirect(targets: RouteMap, application: V2Application, environ: Environ) -> Reply:
    """Answer as the route of the path in the header. Raises RedirectForbidden and RedirectUnknown; the errors of that
    route are replies."""
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
    environ["REQUEST_METHOD"] = min(route.methods)
    return application.answer(environ, route, arguments)
