from __future__ import annotations

import pytest

from trident.core.http.metrics import OPENMETRICS, PROMETHEUS, MetricsPage
from trident.core.observability.switches import SWITCHES

# What Prometheus 2.53 sends.
PROMETHEUS_ACCEPTS = (
    "application/openmetrics-text;version=1.0.0;q=0.5,application/openmetrics-text;version=0.0.1;q=0.4,"
    "text/plain;version=0.0.4;q=0.3,*/*;q=0.2"
)


def page(openmetrics: bool) -> bytes:
    return b"open" if openmetrics else b"plain"


@pytest.mark.parametrize(
    ("accept", "content_type"),
    [
        (PROMETHEUS_ACCEPTS, OPENMETRICS),
        ("application/openmetrics-text", OPENMETRICS),
        ("text/plain;q=0.5,application/openmetrics-text;q=0.4", PROMETHEUS),
        ("text/plain", PROMETHEUS),
        ("*/*", PROMETHEUS),
        ("", PROMETHEUS),
        ("application/json", PROMETHEUS),
        ("not a type", PROMETHEUS),
        ("x" * 5000, PROMETHEUS),
    ],
)
def test_the_scraper_chooses_the_format(accept: str, content_type: str) -> None:
    SWITCHES.set(histograms=True)
    reply = MetricsPage(page).reply({"HTTP_ACCEPT": accept})
    assert dict(reply.headers)["Content-Type"] == content_type
    assert reply.body == [b"open" if content_type == OPENMETRICS else b"plain"]


def test_a_page_without_histograms_is_not_in_openmetrics() -> None:
    reply = MetricsPage(page).reply({"HTTP_ACCEPT": PROMETHEUS_ACCEPTS})
    assert (reply.body, dict(reply.headers)["Content-Type"]) == ([b"plain"], PROMETHEUS)
    assert MetricsPage(page).reply({}).status == 200
