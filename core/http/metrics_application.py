"""The WSGI application of the metrics port.

Source: docs/spec/http.md section 2, last paragraph.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from core.http.access_note import PROBE_KEY
from core.http.metrics_page import MetricsPage
from core.http.reply import STATUS_LINES, TEXT, Environ, Reply, empty_reply, plain_parts, text_reply
from core.http.request_path import request_path

_PATHS = ("/metrics", "/metrics/")


class MetricsApplication:
    """Serves `page` on its one path."""

    def __init__(self, page: MetricsPage) -> None:
        self._page = page

    def __call__(self, environ: Environ, start_response: Any) -> Iterable[bytes]:
        environ[PROBE_KEY] = True
        reply = self._answer(environ)
        start_response(STATUS_LINES[reply.status], reply.headers)
        return plain_parts(reply)

    def _answer(self, environ: Environ) -> Reply:
        if environ["REQUEST_METHOD"] != "GET":
            return text_reply(405, b"", TEXT, [("Allow", "GET")])
        if request_path(environ) in _PATHS:
            return self._page.reply(environ)
        return empty_reply(TEXT)
