"""The routes, statuses and bodies that the platforms share.

Source: docs/sagemaker.md and docs/vertex.md.
"""

from __future__ import annotations

from typing import Final

from trident.core.errors import ErrorCode, ServerError
from trident.core.http.admin import MetricsPage
from trident.core.http.application import V2Application
from trident.core.http.errors import UnsupportedEncoding
from trident.core.http.front_end import PROBE_KEY
from trident.core.http.openapi import OCTETS
from trident.core.http.payloads.inference import NotAcceptable, UnsupportedMediaType
from trident.core.http.reply import JSON, TEXT, Environ, Reply
from trident.core.http.routes import GET, Route

_ANY_METHOD = frozenset({"CONNECT", "DELETE", "GET", "HEAD", "OPTIONS", "PATCH", "POST", "PUT", "TRACE", "UNKNOWN"})


class RouteAbsent(ServerError):
    """The container has no such route, or does not have it in its present mode."""

    code = ErrorCode.NOT_FOUND


def absent_route(routes: str, hint: str | None = None) -> Route:
    """Every request for it fails with RouteAbsent, whose text lists `routes`; Triton answers an empty 400."""

    def absent(application: V2Application, environ: Environ, rest: str = "") -> Reply:
        raise RouteAbsent(f"there is no such route; the routes are: {routes}", hint=hint)

    return Route("absent", ("/", "/<path:rest>"), "", _ANY_METHOD, absent)


def metrics_route(page: MetricsPage) -> Route:

    def metrics(application: V2Application, environ: Environ) -> Reply:
        environ[PROBE_KEY] = True
        return page.reply(environ)

    return Route("metrics", ("/metrics", "/metrics/"), "", GET, metrics)


Statuses = tuple[tuple[type[Exception], int], ...]

BODY_STATUSES: Statuses = ((UnsupportedMediaType, 415), (UnsupportedEncoding, 415), (NotAcceptable, 406))
"""The statuses of bodies that cannot be read, and of answers that cannot be written as the client asks."""


def status_in(statuses: Statuses, error: Exception) -> int | None:
    """The status of the first class in `statuses` that `error` is an instance of; None if there is none."""
    for kind, status in statuses:
        if isinstance(error, kind):
            return status
    return None


_ARRAYS = {
    "application/x-npy": "any",
    "application/x-npz": "any",
    "application/jsonlines": "text",
    "text/csv": "text",
}
# openapi-python-client tells bodies apart by their types, and knows no list and no `any`; of files the last one counts.
FORMAT_BODY: Final = {JSON: {"anyOf": ["InferRequest", "object"]}, **dict.fromkeys((OCTETS, *_ARRAYS), "bytes")}
FORMAT_ANSWER: Final = {JSON: {"anyOf": ["InferResponse", "any"]}, OCTETS: "any", "text/event-stream": "any", **_ARRAYS}
PROGRESS: Final = {TEXT: "text", JSON: "Readiness"}
