"""The route of the metrics page on a platform's port."""

from __future__ import annotations

from collections.abc import Callable

from core.http.access_note import PROBE_KEY
from core.http.application import V2Application
from core.http.metrics_application import PROMETHEUS
from core.http.reply import Environ, Reply, text_reply
from core.http.routes import GET, Route


def metrics_route(page: Callable[[], bytes]) -> Route:
    """`page` renders the page for each request: UTF-8 text in the Prometheus format."""

    def metrics(application: V2Application, environ: Environ) -> Reply:
        environ[PROBE_KEY] = True
        return text_reply(200, page(), PROMETHEUS)

    return Route("metrics", ("/metrics", "/metrics/"), "", GET, metrics)
