from __future__ import annotations

import pytest
from werkzeug.test import Client

from trident.core.http.metrics import MetricsApplication, MetricsPage


@pytest.fixture
def client() -> Client:
    return Client(MetricsApplication(MetricsPage(lambda _: "nv_inference_count 1\né".encode())))


@pytest.mark.parametrize("path", ["/metrics", "/metrics/", "/metrics?name=x"])
def test_get_metrics_returns_the_page(client: Client, path: str) -> None:
    answer = client.get(path)
    assert (answer.status_code, answer.content_type) == (200, "text/plain; charset=utf-8")
    assert answer.text == "nv_inference_count 1\né"
    assert answer.content_length == len(answer.data)


@pytest.mark.parametrize("path", ["/", "/v2", "/metrics//", "//metrics", "/%6Detrics"])
def test_other_paths_are_200_and_empty(client: Client, path: str) -> None:
    answer = client.get(path)
    assert (answer.status_code, answer.data) == (200, b"")


@pytest.mark.parametrize("method", ["POST", "HEAD", "PUT", "OPTIONS"])
@pytest.mark.parametrize("path", ["/metrics", "/"])
def test_other_methods_are_405(client: Client, method: str, path: str) -> None:
    answer = client.open(path, method=method)
    assert (answer.status_code, answer.headers["Allow"]) == (405, "GET")
