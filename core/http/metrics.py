"""The counts of HTTP requests of several processes, summed.

The metrics library does this with a directory that all processes share: each process counts in its own files, so that
the counts of a dead process stay.
"""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

from prometheus_client import CollectorRegistry, generate_latest, values
from prometheus_client.multiprocess import MultiProcessCollector
from prometheus_client.openmetrics.exposition import generate_latest as generate_openmetrics

from trident.core.errors import InvalidRequest
from trident.core.http.application import V2Application
from trident.core.http.counts import ResponseCounts, SharedResponseCounts
from trident.core.http.front_end import PROBE_KEY
from trident.core.http.payloads.formats import choose
from trident.core.http.reply import (
    STATUS_LINES,
    TEXT,
    Environ,
    Reply,
    empty_reply,
    plain_parts,
    request_path,
    text_reply,
)
from trident.core.http.response_collector import ResponseCollector
from trident.core.observability.switches import SWITCHES

PROMETHEUS = "text/plain; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_TEXT, _OPENMETRICS = "text/plain", "application/openmetrics-text"


class MetricsPage:
    """`render` makes the page for each request: UTF-8 text, in OpenMetrics if its argument is true.

    Without histograms it is in the Prometheus format whatever the scraper asks for. Only OpenMetrics has exemplars,
    but in it Triton's counters have no type, so it is offered where there are exemplars.
    """

    def __init__(self, render: Callable[[bool], bytes]) -> None:
        self._render = render

    def reply(self, environ: Environ) -> Reply:
        openmetrics = SWITCHES.histograms and _prefers_openmetrics(environ.get("HTTP_ACCEPT", ""))
        return text_reply(200, self._render(openmetrics), OPENMETRICS if openmetrics else PROMETHEUS)


def _prefers_openmetrics(accept: str) -> bool:
    try:
        return choose(accept, (_TEXT, _OPENMETRICS)) == _OPENMETRICS
    except InvalidRequest:
        return False


# Source: docs/spec/http.md section 2, last paragraph.


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


_log = logging.getLogger("trident.http")

# The kinds of a process's metrics, each with a file of this size in bytes. The library makes a file at the first count.
_KINDS = ("counter", "histogram")
_FILE_SIZE = 1 << 16


class SharedRequestMetrics:
    """Create it before the applications: from then on they count in `directory`, their answers in `responses`."""

    def __init__(self, directory: Path) -> None:
        values.ValueClass = values.MultiProcessValue()  # type: ignore[no-untyped-call]
        self._responses = SharedResponseCounts(directory)
        self._registry = CollectorRegistry()
        self._registry.register(ResponseCollector(self._responses.items))
        MultiProcessCollector(self._registry, str(directory))  # type: ignore[no-untyped-call]
        for kind in _KINDS:
            _reserve(directory / f"{kind}_{os.getpid()}.db")

    @property
    def responses(self) -> ResponseCounts:
        """Where all applications of this process must count their answers."""
        return self._responses.counts

    def page(self, application: V2Application, openmetrics: bool = False) -> bytes:
        """The counts of all ports of all processes, in the Prometheus text format or as the end of OpenMetrics."""
        return (generate_openmetrics if openmetrics else generate_latest)(self._registry)


def _reserve(path: Path) -> None:
    """Reserve the file's room on the disk now: on a full disk a request could not be counted, and so not answered, and
    a write to a mapped page without room on the disk would end the process."""
    try:
        with path.open("ab") as file:
            os.posix_fallocate(file.fileno(), 0, _FILE_SIZE)
    except OSError as error:
        _log.warning("no room to count requests in %s: %s", path, error.strerror)
