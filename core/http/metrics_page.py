"""The metrics page as an HTTP reply, in the format that the scraper asks for.

Source: docs/spec/statistics-and-metrics.md section B; OpenMetrics 1.0.
"""

from __future__ import annotations

from collections.abc import Callable

from core.errors import InvalidRequest
from core.http.payloads.media_type import choose
from core.http.reply import Environ, Reply, text_reply
from core.observability.switches import SWITCHES

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
