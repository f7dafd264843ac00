"""Inference by each of its routes: generate, infer, and the v1 protocol."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

import numpy as np
import orjson
import pytest
from werkzeug.test import Client, EnvironBuilder

from tests.project import pure_python_only
from tests.unit.core.http.streaming_engine import StreamingEngine, end, failed, said
from tests.unit.fake_engine import FakeEngine, FakeModel, identity_spec
from trident.core.errors import BackendFailed, DeadlineExceeded, ErrorCode, InvalidRequest, QueueFull
from trident.core.frontend.access import parse_restricted
from trident.core.frontend.bridge import ThreadBridge
from trident.core.http.application import V2Application
from trident.core.http.front_end import HttpOptions
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import InferenceResponse, Origin, OutputTensor
from trident.core.inference.tensors import Array
from trident.core.observability.statistics import CustomFamilyMetrics, CustomSeriesMetrics, MetricsSnapshot

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


def test_execution_errors_have_tritons_content_type() -> None:
    form = {"name": "OUT", "parameters": {"classification": 1}}
    body = {"inputs": [{"name": "IN", "datatype": "BOOL", "shape": [1], "data": [True]}], "outputs": [form]}
    for origin, mime in ((None, "text/plain"), (Origin.FAILED, "text/plain"), (Origin.REFUSED, JSON)):
        error = None if origin is None else QueueFull("no")
        output = OutputTensor("OUT", "BOOL", (1,), np.array([True]))
        response = InferenceResponse("simple", 3, [output], error=error, origin=origin or Origin.FAILED)
        client = client_of(lambda _, response=response: response)  # type: ignore[misc]
        answer = client.post("/v2/models/simple/infer", json=body)
        assert (answer.status_code, answer.content_type.partition(";")[0]) == (503 if error else 400, mime)


class NotedCalls(ThreadBridge):
    """Records the calls outside the hub."""

    def __init__(self) -> None:
        super().__init__()
        self.calls: list[str] = []

    def run(self, function: Any, *args: Any, **kwargs: Any) -> Any:
        self.calls.append(function.__name__)
        return function(*args, **kwargs)


@pure_python_only
@pytest.mark.parametrize(("count", "calls"), [(1000, []), (300_000, ["decode_request", "encode_response"])])
def test_long_json_is_read_and_written_off_the_hub(count: int, calls: list[str]) -> None:
    bridge = NotedCalls()
    application = V2Application(FakeEngine(doubled), HttpOptions(), bridge)
    data = [1000] * count
    body = orjson.dumps({"inputs": [{"name": "IN", "datatype": "INT32", "shape": [count], "data": data}]})
    environ = EnvironBuilder(method="POST", path="/v2/models/simple/infer", data=body).get_environ()
    answer = b"".join(application(environ, lambda status, headers, *_: None))
    assert orjson.loads(answer)["outputs"][0]["data"] == data
    assert bridge.calls == calls


class LoadedEngine(FakeEngine):
    """Its model reports the blocks of its cache."""

    def metrics(self) -> MetricsSnapshot:
        blocks = {"used": 30, "max": 120, "tokens_per": 64}
        series = [CustomSeriesMetrics(labels={"kv_cache_block_type": kind}, value=blocks[kind]) for kind in blocks]
        name = "nv_trt_llm_kv_cache_block_metrics"
        family = CustomFamilyMetrics(name=name, type="gauge", description="", series=tuple(series))
        return MetricsSnapshot(custom=(family,))


@pytest.mark.parametrize("route", ROUTES)
def test_load_report_is_sent_on_request(route: str) -> None:
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


@pytest.mark.parametrize(
    ("response", "status", "body"),
    [
        (failed(InvalidRequest("broken")), 400, ERROR + event_of("a")),
        (failed(InvalidRequest("broken"), final=True), 400, ERROR),
        (failed(BackendFailed("broken", code=ErrorCode.UNAVAILABLE), final=True), 503, ERROR),
        (failed(DeadlineExceeded("broken"), final=True, origin=Origin.REJECTED), 503, ERROR),
        (failed(DeadlineExceeded("broken"), final=True, origin=Origin.CANCELLED), 503, b'{"error":"broken"}'),
        (failed(QueueFull("broken"), final=True, origin=Origin.REFUSED), 503, b'{"error":"broken"}'),
    ],
)
def test_a_first_error_gives_the_status(response: InferenceResponse, status: int, body: bytes) -> None:
    _, client = streaming(response, *(() if response.final else (said("a"), end())))
    answer = client.post("/v2/models/simple/generate_stream", json={"IN": 1})
    assert (answer.status_code, answer.data) == (status, body)
    assert answer.content_type == (EVENTS if body.startswith(ERROR) else JSON)
    answer = client.post("/v2/models/simple/generate", json={"IN": 1})
    assert (answer.status_code, answer.content_type, answer.data) == (status, JSON, b'{"error":"broken"}')


@pytest.mark.parametrize("is_first", [True, False])
def test_a_response_that_json_cannot_carry_is_an_error_event(is_first: bool) -> None:
    half = InferenceResponse("simple", 3, [OutputTensor("OUT", "FP16", (1,), np.ones(1, np.float16))], final=False)
    _, client = streaming(*(() if is_first else (said("a"),)), half, said("b"), end())
    answer = client.post("/v2/models/simple/generate_stream", json={"IN": 1})
    assert (answer.status_code, answer.content_type) == (400 if is_first else 200, EVENTS)
    assert b'data: {"error":"sending FP16 data via JSON is not supported' in answer.data
    assert answer.data.endswith(event_of("b"))


# --- infer


INFER = "/v2/models/simple/infer"
BODY = orjson.dumps({"id": "r", "inputs": [{"name": "IN", "datatype": "INT32", "shape": [2], "data": [1, 2]}]})


def echo(request: InferenceRequest) -> InferenceResponse:
    tensor = request.inputs[0]
    array = np.asarray(tensor.data, np.int32) if isinstance(tensor.data, np.ndarray) else None
    if array is None:
        array = np.frombuffer(tensor.data, np.int32)
    return InferenceResponse(request.model_name, 3, [OutputTensor("OUT", "INT32", array.shape, array)], id=request.id)


class InferClient:
    """The application under a test client; `seen` are the requests that reached the engine."""

    def __init__(self, options: HttpOptions | None = None) -> None:
        self.seen: list[InferenceRequest] = []
        self.engine = FakeEngine(self._respond)
        self.application = V2Application(self.engine, options or HttpOptions(), ThreadBridge())
        self.post: Callable[..., Any] = Client(self.application).post

    def _respond(self, request: InferenceRequest) -> InferenceResponse:
        self.seen.append(request)
        return echo(request)


@pytest.mark.parametrize(("waits", "arrived_ns"), [(True, 7), (False, 0)])
def test_arrival_time_is_read_only_for_models_with_a_queue_delay(waits: bool, arrived_ns: int) -> None:
    client = InferClient()
    spec = replace(identity_spec("simple"), counts_arrival=waits)
    client.engine.model = lambda name, version=-1: FakeModel(client.engine, spec)  # type: ignore[method-assign]
    assert client.post(INFER, data=BODY, environ_base={"trident.arrived_ns": 7}).status_code == 200
    assert [request.arrived_ns for request in client.seen] == [arrived_ns]


def test_a_header_length_longer_than_any_integer_is_refused() -> None:
    length = "9" * 5000
    reply = InferClient().post(INFER, data=BODY, headers={"Inference-Header-Content-Length": length})
    expected = f"value is out of range [ -2147483648, 2147483647 ], got: {length}"
    assert reply.status_code == 400
    assert orjson.loads(reply.data) == {"error": f"Unable to parse Inference-Header-Content-Length, {expected}"}


def test_matching_headers_become_parameters_under_the_name_received() -> None:
    client = InferClient(HttpOptions(header_forward_pattern="^x-team"))
    spelled = [("X-Team-Name", "a"), ("Other", "b")]
    assert client.post(INFER, data=BODY, environ_base={"trident.headers": spelled}).status_code == 200
    assert client.seen[0].parameters == {"X-Team-Name": "a"}
    assert client.post(INFER, data=BODY, headers={"X-Team-Name": "c"}).status_code == 200
    assert client.seen[1].parameters == {"x-team-name": "c"}


def test_header_names_with_underscore_and_hyphen_differ() -> None:
    client = InferClient(
        HttpOptions(header_forward_pattern="_", restricted=parse_restricted(["inference:x_key=secret"]))
    )
    for spelled, status in (("X-Key", 403), ("X_Key", 200)):
        headers = {"trident.headers": [(spelled, "secret")]}
        assert client.post(INFER, data=BODY, environ_base=headers).status_code == status
    reserved = {"trident.headers": [("X_Key", "secret"), ("sequence_id", "1")]}
    refused = client.post(INFER, data=BODY, environ_base=reserved)
    text = "Header 'sequence_id' is reserved for Triton usage and cannot be forwarded."
    assert (refused.status_code, refused.json["error"]) == (400, text)
    reserved["trident.headers"][1] = ("Sequence_id", "1")  # names are compared as Triton compares them
    assert client.post(INFER, data=BODY, environ_base=reserved).status_code == 200


# --- the v1 protocol of KServe and TensorFlow Serving beside OpenAI's routes of the same name


@pytest.fixture
def v1_client() -> Client:
    return Client(V2Application(FakeEngine(_twice), HttpOptions(), ThreadBridge()))


def _twice(request: InferenceRequest) -> InferenceResponse:
    array = np.asarray(request.inputs[0].data) * 2
    return InferenceResponse("simple", 3, [OutputTensor("OUT", "INT32", array.shape, array)])


@pytest.mark.parametrize("content_type", ["application/json", "application/x-www-form-urlencoded", None])
@pytest.mark.parametrize(
    ("path", "body", "answer"),
    [
        ("simple:predict", '{"instances": [[1, 2]]}', {"predictions": [[2, 4]]}),
        ("simple:predict", '{"instances": [{"IN": [1, 2]}]}', {"predictions": [[2, 4]]}),
        ("simple/versions/3:predict", '{"instances": [[1, 2]]}', {"predictions": [[2, 4]]}),
        ("simple:predict", '{"inputs": {"IN": [1, 2]}}', {"outputs": [2, 4]}),
    ],
)
def test_predict_has_a_prediction_for_each_instance(
    v1_client: Client, path: str, body: str, answer: dict[str, Any], content_type: str | None
) -> None:
    response = v1_client.post(f"/v1/models/{path}", data=body, content_type=content_type)
    assert (response.status_code, response.json) == (200, answer)


@pytest.mark.parametrize(
    ("body", "message"),
    [
        ("", "the body is empty"),
        ('{"instances": []}', "there are no instances: expected at least one"),
        ('{"data": [1]}', "expected a JSON object with 'instances', or an array of instances"),
    ],
)
def test_wrong_body_is_refused(v1_client: Client, body: str, message: str) -> None:
    response = v1_client.post("/v1/models/simple:predict", data=body)
    assert response.status_code == 400
    assert response.json is not None
    assert response.json["error"].startswith(message)


def test_model_has_the_members_of_both_protocols(v1_client: Client) -> None:
    model = v1_client.get("/v1/models/simple").json
    assert model is not None
    assert (model["id"], model["object"]) == ("simple", "model")
    assert (model["name"], model["ready"]) == ("simple", True)
    assert v1_client.get("/v1/models/simple:predict").status_code == 405
