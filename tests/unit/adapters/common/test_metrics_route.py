from __future__ import annotations

from trident.adapters.common.routes import metrics_route
from trident.core.http.metrics import MetricsPage


def test_each_request_renders_the_page() -> None:
    pages = iter([b"first", b"second"])
    route = metrics_route(MetricsPage(lambda _: next(pages)))
    replies = [route.view(None, {}) for _ in range(2)]
    assert [reply.body for reply in replies] == [[b"first"], [b"second"]]
    assert dict(replies[0].headers)["Content-Type"] == "text/plain; charset=utf-8"
