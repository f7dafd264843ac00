"""The metrics page of HTTP, and the counts of HTTP requests of several processes, summed.

The metrics library sums them with a directory that all processes share: each process counts in its own files, so that
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

from trident.core.http.body import choose
from trident.core.http.front_end import PROBE_KEY
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
from trident.core.observability.switches import SWITCHES

PROMETHEUS = "text/plain; charset=utf-8"
OPENMETRICS = "application/openmetrics-text; version=1.0.0; charset=utf-8"

_TYPES = ("text/plain", "application/openmetrics-text")


class MetricsPage:
    """`render` makes the page for each request: UTF-8 text, in OpenMetrics if its argument is true.

    Without histograms it is in the Prometheus format whatever the scraper asks for. Only OpenMetrics has exemplars,
    but in it Triton's counters have no type, so it is offered where there are exemplars.
    """

    def __init__(self, render: Callable[[bool], bytes]) -> None:
        self._render = render

    def reply(self, environ: Environ) -> Reply:
        openmetrics = SWITCHES.histograms and choose(environ.get("HTTP_ACCEPT"), _TYPES) == _TYPES[1]
        return text_reply(200, self._render(openmetrics), OPENMETRICS if openmetrics else PROMETHEUS)


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


def request_metrics_page(registry: CollectorRegistry, openmetrics: bool = False) -> bytes:
    """The counts of HTTP requests in the Prometheus text format, or as the end of a page in OpenMetrics."""
    return (generate_openmetrics if openmetrics else generate_latest)(registry)


_log = logging.getLogger("trident.http")

# The files of a process, by the kinds of its metrics, and their sizes in bytes: twice the series that there can be.
_FILES = {"counter": 1 << 18, "histogram": 1 << 16, "gauge_max": 1 << 16}


def share_request_counts(directory: Path) -> CollectorRegistry | None:
    """Count the requests of this process in `directory`, and return the sums of all processes that do.

    Call it before the applications are made. None: the disk has no space for that, and the process counts for itself.
    Otherwise a request could not be counted, and so not answered, or the write to a mapped page would end the process.
    """
    paths = [directory / f"{kind}_{os.getpid()}.db" for kind in _FILES]
    try:
        for path, size in zip(paths, _FILES.values(), strict=True):
            with path.open("ab") as file:
                os.posix_fallocate(file.fileno(), 0, size)
    except OSError as error:
        _log.warning("no disk space to count requests in %s: %s", directory, error.strerror)
        for path in paths:
            path.unlink(missing_ok=True)
        values.ValueClass = values.MutexValue
        return None
    values.ValueClass = values.MultiProcessValue()  # type: ignore[no-untyped-call]
    registry = CollectorRegistry()
    MultiProcessCollector(registry, str(directory))  # type: ignore[no-untyped-call]
    return registry
