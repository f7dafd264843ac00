"""The route of the metrics page on a platform's port."""

from __future__ import annotations

from core.http.access_note import PROBE_KEY
from core.http.application import V2Application
from core.http.metrics_page import MetricsPage
from core.http.reply import Environ, Reply
from core.http.routes import GET, Route


def metrics_route(page: MetricsPage) -> Route:
    """The route that serves `page`."""

    def metrics(application: V2Application, environ: Environ) -> Reply:
        environ[PROBE_KEY] = True
        return page.reply(environ)

    return Route("metrics", ("/metrics", "/metrics/"), "", GET, metrics)
