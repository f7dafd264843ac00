"""The route that answers all paths that no other route has."""

from __future__ import annotations

from core.errors import ErrorCode, ServerError
from core.http.application import V2Application
from core.http.reply import Environ, Reply
from core.http.routes import Route

_ANY_METHOD = frozenset({"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE", "UNKNOWN"})


class RouteAbsent(ServerError):
    """The container has no such route, or does not have it in its present mode."""

    code = ErrorCode.NOT_FOUND


def absent_route(routes: str, hint: str | None = None) -> Route:
    """Every request for it fails with RouteAbsent, whose text lists `routes`; Triton answers an empty 400."""

    def absent(application: V2Application, environ: Environ, rest: str = "") -> Reply:
        raise RouteAbsent(f"there is no such route; the routes are: {routes}", hint=hint)

    return Route("absent", ("/", "/<path:rest>"), "", _ANY_METHOD, absent)
