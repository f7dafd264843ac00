"""A line in the log for every HTTP request, as Triton writes it at verbose level 1.

It wraps an application only if the verbose level asks for it, so that it costs nothing otherwise.

Source: docs/spec/trace-and-log.md section 6.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterable
from wsgiref.types import StartResponse, WSGIApplication

from core.http.reply import Environ
from core.http.request_path import request_path
from core.observability.logging import verbose_level

_log = logging.getLogger("trident.http")

LEVEL = 1
"""The verbose level of the lines."""

_LEVEL = verbose_level(LEVEL)
# Triton prints the number of a method in evhtp, its HTTP library.
_METHODS = (
    "GET",
    "HEAD",
    "POST",
    "PUT",
    "DELETE",
    "MKCOL",
    "COPY",
    "MOVE",
    "OPTIONS",
    "PROPFIND",
    "PROPPATCH",
    "LOCK",
    "UNLOCK",
    "TRACE",
    "CONNECT",
    "PATCH",
)
_NUMBERS = {method: number for number, method in enumerate(_METHODS)}
_UNKNOWN = len(_METHODS)


class RequestLog:
    """A WSGI application that logs a line for each request and passes the request to `application`."""

    def __init__(self, application: WSGIApplication) -> None:
        self._application = application
        self.binary_offset: Callable[[Environ], int] = getattr(application, "binary_offset", _nowhere)
        # What the worker asks of an application that can be traced.
        for name in ("trace_gate", "end_traces"):
            if hasattr(application, name):
                setattr(self, name, getattr(application, name))

    def __call__(self, environ: Environ, start_response: StartResponse) -> Iterable[bytes]:
        method = _NUMBERS.get(environ["REQUEST_METHOD"], _UNKNOWN)
        _log.log(_LEVEL, "HTTP request: %d %s", method, request_path(environ))
        return self._application(environ, start_response)


def _nowhere(environ: Environ) -> int:
    return 0
