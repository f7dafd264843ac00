"""The container as a WSGI application, and its differences from the v2 core."""

from __future__ import annotations

import json
import struct
from typing import Any

import pytest
from werkzeug.test import Client

from tests.unit.adapters.vertex.vertex_bench import HEALTH, PREDICT, V2, VertexBench
from tests.unit.fake_engine import FakeEngine
from trident.adapters.common.routes import RouteAbsent
from trident.adapters.vertex.application import VertexApplication
from trident.adapters.vertex.endpoint import RedirectForbidden, RedirectUnknown
from trident.adapters.vertex.settings import VertexSettings
from trident.core.errors import InvalidRequest, ModelNotFound, OutOfMemory, ServerError
from trident.core.frontend.bridge import ThreadBridge
from trident.core.http.errors import UnsupportedEncoding
from trident.core.http.front_end import HttpOptions
from trident.core.http.metrics import MetricsPage
from trident.core.http.payloads.formats import NotAcceptable, UnsupportedMediaType
from trident.core.lifecycle.state import Phase, ServingPhase

INFER = "/v2/models/simple/infer"


@pytest.mark.parametrize(
    ("error", "status"),
    [
        (RouteAbsent("x"), 404),
        (RedirectUnknown("x"), 400),
        (RedirectForbidden("x"), 403),
        (UnsupportedMediaType("x"), 415),
        (UnsupportedEncoding(), 415),
        (NotAcceptable("x"), 406),
        (InvalidRequest("x"), 400),
        (ModelNotFound("x"), 404),
        (OutOfMemory("x"), 503),
        (ValueError("x"), 500),
    ],
)
def test_errors_have_their_statuses(error: Exception, status: int) -> None:
    assert VertexBench().application.status_of(error) == status


def test_an_unexpected_error_reveals_nothing() -> None:
    bench = VertexBench()
    bench.error = ServerError("x")
    bench.engine.model = lambda name, version=-1: 1 / 0  # type: ignore[method-assign,assignment]
    answer = bench.post()
    assert (answer.status_code, answer.mimetype) == (500, "application/json")
    assert answer.json == {"error": "unexpected error in the server, its log says more"}


def test_the_v2_routes_answer_as_on_plain_http() -> None:
    bench = VertexBench()
    assert bench.post(V2, path=INFER).json["outputs"][0]["data"] == [1, 2]
    tensor = {"name": "IN", "datatype": "INT32", "shape": [2], "parameters": {"binary_data_size": 8}}
    header = json.dumps({"inputs": [tensor]}).encode()
    body = header + struct.pack("<2i", 5, 6)
    length = str(len(header))
    answer = bench.post(body, "application/octet-stream", path=INFER, Inference_Header_Content_Length=length)
    assert (answer.status_code, answer.json["outputs"][0]["data"]) == (200, [5, 6])
    content_type = f"application/vnd.vertex-ai-triton.binary+json;json-header-size={length}"
    assert bench.post(body, content_type, path=INFER).json["outputs"][0]["data"] == [5, 6]


def test_the_limits_apply_only_to_the_predict_route() -> None:
    assert VertexBench(max_request_size=1).post(V2, path=INFER).status_code == 200
    assert VertexBench(max_request_size=1).post(V2).status_code == 400


@pytest.mark.parametrize("phase", [Phase.STARTING, Phase.LOADING])
def test_a_request_during_the_load_is_503(phase: Phase) -> None:
    bench = VertexBench()
    bench.engine.serving = ServingPhase(name=phase)
    answer = bench.post()
    assert (answer.status_code, answer.json) == (503, {"error": "the models are still being loaded"})


def test_each_request_renders_the_metrics_page() -> None:
    pages = iter([b"first", b"second"])
    application = VertexApplication(
        FakeEngine(),
        HttpOptions(),
        ThreadBridge(),
        VertexSettings(predict_route=PREDICT, health_route=HEALTH, public_groups=("metrics",)),
        MetricsPage(lambda _: next(pages)),
    )
    client: Any = Client(application)
    assert client.get("/metrics").data == b"first"
    answer = client.post(PREDICT, headers={"X-Vertex-Ai-Triton-Redirect": "metrics"})
    assert (answer.data, answer.content_type) == (b"second", "text/plain; charset=utf-8")


def test_a_predict_route_with_version_zero_is_refused() -> None:
    with pytest.raises(InvalidRequest, match="version"):
        VertexBench(predict_route="/v2/models/simple/versions/0/infer")


def test_responses_of_the_platform_s_routes_are_counted() -> None:
    bench = VertexBench()
    bench.post()
    bench.get(HEALTH)
    for method in ("BREW", "BOIL"):  # a client must not make up labels
        bench.open(PREDICT, method=method)
    assert bench.responses() == {
        ("POST", "predict", 200): 1,
        ("GET", "health", 200): 1,
        ("UNKNOWN", "predict", 405): 2,
    }
    both = VertexBench(predict_route="/one", health_route="/one")
    both.post(path="/one")
    both.get("/one")
    assert both.responses() == {("POST", "predict", 200): 1, ("GET", "health", 200): 1}
