"""A line in the log for every HTTP request, as Triton writes it at verbose level 1.

The worker asks for it while the verbose level shows it.

Source: docs/spec/trace-and-log.md section 6.
"""

from __future__ import annotations

import logging

from core.http.reply import Environ
from core.http.request_path import request_path
from core.observability.logging import verbose_level

_log = logging.getLogger("trident.http")

_LEVEL = verbose_level(1)
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


def log_request(environ: Environ) -> None:
    """Log the line of one request."""
    method = _NUMBERS.get(environ["REQUEST_METHOD"], _UNKNOWN)
    _log.log(_LEVEL, "HTTP request: %d %s", method, request_path(environ))
