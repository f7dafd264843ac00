from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from werkzeug.test import Client

from tests.unit.core.http.streaming_engine import StreamingEngine, end, failed, said
from tests.unit.fake_engine import FakeEngine
from trident.core.errors import BackendFailed, InvalidRequest, QueueFull
from trident.core.frontend.bridge import ThreadBridge
from trident.core.http.application import V2Application
from trident.core.http.front_end import HttpOptions
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import InferenceResponse, OutputTensor
from trident.core.inference.tensors import Array
from trident.core.observability.statistics import CustomFamilyMetrics, CustomSeriesMetrics, MetricsSnapshot

# --- generate


JSON = "application/json"
EVENTS = "text/event-stream; charset=utf-8"
ROUTES = ["generate", "generate_stream"]


def doubled(request: InferenceRequest) -> InferenceResponse:
    array: Array = request.inputs[0].array
    output = OutputTensor("OUT", "INT32", array.shape, array)
    parameters = dict(request.parameters or {})
    return InferenceResponse("simple", 3, [output], id=request.id, parameters=parameters)


def client_of(respond: Callable[[InferenceRequest], InferenceResponse], **options: object) -> Client:
    return Client(V2Application(FakeEngine(respond), HttpOptions(**options), ThreadBridge()))  # type: ignore[arg-type]


@pytest.fixture
def client() -> Client:
    return client_of(doubled)


@pytest.mark.parametrize("route", ROUTES)
def test_an_encoded_body_is_refused(client: Client, route: str) -> None:
    path = f"/v2/models/simple/{route}"
    answer = client.post(path, data=b"x", headers={"Content-Encoding": "gzip"})
    text = "Unsupported content-encoding, only 'identity' is supported."
    assert (answer.status_code, answer.content_type, answer.json) == (400, JSON, {"error": text})
    assert client.post(path, json={"IN": 1}, headers={"Content-Encoding": "identity"}).status_code == 200


class LoadedEngine(FakeEngine):
    """Its model reports the blocks of its cache."""

    def metrics(self) -> MetricsSnapshot:
        blocks = {"used": 30, "max": 120, "tokens_per": 64}
        series = [CustomSeriesMetrics(labels={"kv_cache_block_type": kind}, value=blocks[kind]) for kind in blocks]
        name = "nv_trt_llm_kv_cache_block_metrics"
        family = CustomFamilyMetrics(name=name, type="gauge", description="", series=tuple(series))
        return MetricsSnapshot(custom=(family,))


@pytest.mark.parametrize("route", ROUTES)
def test_a_load_balancer_gets_the_load_that_it_asks_for(route: str) -> None:
    client = Client(V2Application(LoadedEngine(doubled), HttpOptions(), ThreadBridge()))
    path = f"/v2/models/simple/{route}"
    answer = client.post(path, json={"IN": 1}, headers={"endpoint-load-metrics-format": "text"})
    assert answer.headers["endpoint-load-metrics"] == (
        "TEXT named_metrics.pending_requests=0, named_metrics.kv_cache_utilization=0.250000, "
        "named_metrics.max_token_capacity=7680"
    )
    assert "endpoint-load-metrics" not in client.post(path, json={"IN": 1}).headers


# --- models that send any number of responses


def streaming(*responses: InferenceResponse, **options: object) -> tuple[StreamingEngine, Client]:
    engine = StreamingEngine(lambda request: responses)
    return engine, Client(V2Application(engine, HttpOptions(**options), ThreadBridge()))  # type: ignore[arg-type]


def event_of(text: str) -> bytes:
    return b'data: {"OUT":"%b","model_name":"simple","model_version":"3"}\n\n' % text.encode()


ERROR = b'data: {"error":"broken"}\n\n'


def test_a_later_error_is_an_event() -> None:
    _, client = streaming(said("a"), said("b"), failed(InvalidRequest("broken", hint="cure")), end())
    answer = client.post("/v2/models/simple/generate_stream", json={"IN": 1})
    assert (answer.status_code, answer.data) == (200, event_of("a") + event_of("b") + ERROR)


@pytest.mark.parametrize(
    ("response", "status", "body"),
    [
        (failed(InvalidRequest("broken")), 400, ERROR),
        (failed(BackendFailed("broken"), final=True), 500, ERROR),
        (failed(QueueFull("broken"), final=True), 503, b'{"error":"broken"}'),
    ],
)
def test_a_first_error_gives_the_status(response: InferenceResponse, status: int, body: bytes) -> None:
    _, client = streaming(response, end())
    answer = client.post("/v2/models/simple/generate_stream", json={"IN": 1})
    assert (answer.status_code, answer.data) == (status, body)
    assert answer.content_type == (EVENTS if body == ERROR else JSON)
    answer = client.post("/v2/models/simple/generate", json={"IN": 1})
    assert (answer.status_code, answer.content_type, answer.data) == (status, JSON, b'{"error":"broken"}')


@pytest.mark.parametrize("is_first", [True, False])
def test_a_response_that_json_cannot_carry_is_an_error_event(is_first: bool) -> None:
    half = InferenceResponse("simple", 3, [OutputTensor("OUT", "FP16", (1,), np.ones(1, np.float16))], final=False)
    _, client = streaming(*(() if is_first else (said("a"),)), half, end())
    answer = client.post("/v2/models/simple/generate_stream", json={"IN": 1})
    assert (answer.status_code, answer.content_type) == (400 if is_first else 200, EVENTS)
    assert b'data: {"error":"sending FP16 data via JSON is not supported' in answer.data
