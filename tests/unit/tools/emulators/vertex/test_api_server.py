"""The prediction API over HTTP, in front of a scripted container, and the requests to the container."""

from __future__ import annotations

import base64
import http.client
import json
import threading
from collections.abc import Iterator
from contextlib import ExitStack, closing
from types import SimpleNamespace
from typing import Any, Self

import pytest

from tests.unit.tools.emulators.scripted_container import LIMIT_S, Answer, Call, ScriptedContainer
from trident.core.grpc.status import Status
from trident.tools.emulators.container import BreachReport, ContainerClient
from trident.tools.emulators.vertex.emulator import VertexApi
from trident.tools.emulators.vertex.endpoint import (
    Deployment,
    Endpoint,
    EndpointType,
    GoogleError,
    VertexLimits,
    read_predict_request,
    read_raw_request,
    read_sdk_request,
)
from trident.tools.emulators.vertex.project import Project

LIMITS = VertexLimits(body_bytes=10_000, inference_s=LIMIT_S)
DEPLOYMENT = Deployment(endpoint_id="12", deployed_model_id="34", display_name="mine")
ENDPOINT = "/v1/projects/p/locations/l/endpoints/12"
PREDICT_ROUTE = "/v1/endpoints/12/deployedModels/34:predict"
SDK = "?%24alt=json%3Benum-encoding%3Dint"
JSON = {"Content-Type": "application/json"}


class Platform(ExitStack):
    """An endpoint and its container, which answers with `answer`. A context manager."""

    def __init__(self, deployment: Deployment = DEPLOYMENT, limits: VertexLimits = LIMITS) -> None:
        super().__init__()
        self.answer = Answer(body=b'{"predictions": [1, 2]}', headers=JSON)
        self.report = BreachReport()
        self.said: list[str] = []
        self.has_traffic = True
        self.container = ScriptedContainer(lambda call: self.answer)
        self.client = ContainerClient(self.container.port, limits)
        endpoint = Endpoint(self.client, deployment, limits, self.report, lambda: self.has_traffic)
        running = SimpleNamespace(endpoint=endpoint, wait_until_ready=lambda _: True, stop=lambda: None)
        project = Project(lambda *_: running)
        project.begin_with(deployment, limits, {})
        assert project.wait_until_ready(lambda: False)
        self.api = VertexApi(project, 0, self.report, self.said.append)

    def __enter__(self) -> Self:
        self.enter_context(self.container)
        self.enter_context(self.api)
        return self

    @property
    def breaches(self) -> list[str]:
        return list(self.report.breaches)

    def ask(self, method: str, path: str, body: bytes | None = None, **headers: str) -> tuple[int, Any, bytes]:
        connection = http.client.HTTPConnection(self.api.address, timeout=LIMIT_S)
        with closing(connection):
            named = {name.replace("_", "-"): value for name, value in headers.items()}
            connection.request(method, path, body, named)
            response = connection.getresponse()
            return response.status, response.headers, response.read()

    def post(self, path: str, document: Any) -> tuple[int, Any]:
        status, _, body = self.ask("POST", path, json.dumps(document).encode())
        return status, json.loads(body)

    def error(self, path: str, document: Any) -> tuple[int, str, str]:
        status, answer = self.post(path, document)
        assert set(answer) == {"error"}
        assert answer["error"]["code"] == status
        return status, answer["error"]["status"], answer["error"]["message"]


@pytest.fixture
def platform() -> Iterator[Platform]:
    with Platform() as made:
        yield made


def test_wrong_number_of_predictions_is_a_breach_and_is_forwarded(platform: Platform) -> None:
    assert platform.post(f"{ENDPOINT}:predict", {"instances": [1]})[1]["predictions"] == [1, 2]
    assert platform.breaches == [f"POST {PREDICT_ROUTE}: the container answered 1 instances with 2 predictions"]


@pytest.mark.parametrize(
    "body", [b"", b"<html>", b"[1]", b"{}", b'{"predictions": {}}', b'{"predictions": [NaN]}', b"\xff"]
)
def test_an_answer_without_predictions_is_a_breach_and_an_error(body: bytes, platform: Platform) -> None:
    platform.answer = Answer(body=body)
    assert platform.error(f"{ENDPOINT}:predict", {"instances": [1]})[:2] == (500, "INTERNAL")
    (breach,) = platform.breaches
    assert breach.startswith(f"POST {PREDICT_ROUTE}: the container answered 200 with")


def test_an_unhealthy_container_gets_no_calls(platform: Platform) -> None:
    platform.has_traffic = False
    for verb in ("predict", "rawPredict", "streamRawPredict", "explain"):
        assert platform.error(f"{ENDPOINT}:{verb}", {"instances": [1]})[:2] == (503, "UNAVAILABLE")
    assert platform.container.calls == []
    assert platform.breaches == []


def test_a_late_answer_is_a_breach() -> None:
    with Platform(limits=VertexLimits(inference_s=0.1)) as platform:
        over = threading.Event()

        def answer(call: Call) -> Answer:
            over.wait(LIMIT_S)
            return Answer()

        platform.container.answer = answer
        status, _, _ = platform.ask("POST", f"{ENDPOINT}:rawPredict", b"")
        over.set()
    assert status == 504
    assert platform.breaches == [f"POST {PREDICT_ROUTE}: the container did not answer within 100 ms"]


def test_a_broken_answer_is_a_breach(platform: Platform) -> None:
    platform.answer = Answer(body=b"some", length=10)
    assert platform.error(f"{ENDPOINT}:rawPredict", {})[:2] == (503, "UNAVAILABLE")
    assert platform.breaches == [f"POST {PREDICT_ROUTE}: the container broke its answer off"]


def test_the_limit_applies_to_the_body_in_the_envelope(platform: Platform) -> None:
    def held(size: int) -> dict[str, Any]:
        return {"httpBody": {"data": base64.b64encode(bytes(size)).decode()}}

    assert platform.post(f"{ENDPOINT}:rawPredict{SDK}", held(10_000))[0] == 200
    assert platform.error(f"{ENDPOINT}:rawPredict{SDK}", held(10_001))[1] == "FAILED_PRECONDITION"
    assert platform.error(f"{ENDPOINT}:rawPredict{SDK}", held(100_000))[1] == "FAILED_PRECONDITION"
    assert len(platform.container.calls) == 1


def test_a_stream_may_exceed_the_size_limit(platform: Platform) -> None:
    content = bytes(range(256)) * 1000
    platform.answer = Answer(200, content, {"Content-Type": "c/d"})
    status, headers, body = platform.ask("POST", f"{ENDPOINT}:streamRawPredict", b"x")
    assert (status, body) == (200, content)
    assert (headers["Content-Type"], headers["Transfer-Encoding"]) == ("c/d", "chunked")
    held = {"httpBody": {"data": ""}}
    parts = platform.post(f"{ENDPOINT}:streamRawPredict{SDK}", held)[1]
    assert b"".join(base64.b64decode(part["data"]) for part in parts) == content
    assert platform.breaches == []


def test_a_refused_stream_keeps_its_status(platform: Platform) -> None:
    platform.answer = Answer(501, b'{"error": "no stream"}', JSON)
    assert platform.ask("POST", f"{ENDPOINT}:streamRawPredict", b"x")[0::2] == (501, b'{"error": "no stream"}')
    found = platform.error(f"{ENDPOINT}:streamRawPredict{SDK}", {"httpBody": {}})
    assert found == (501, "UNIMPLEMENTED", '{"error": "no stream"}')


def test_a_broken_stream_has_no_end(platform: Platform) -> None:
    platform.answer = Answer(200, b"some", length=10)
    with pytest.raises(http.client.IncompleteRead):
        platform.ask("POST", f"{ENDPOINT}:streamRawPredict", b"x")
    assert platform.breaches == ["a streamed answer: the container broke its answer off"]


INVOKED = Deployment(endpoint_id="12", deployed_model_id="34", is_invoked=True)
SHARED = Deployment(endpoint_id="12", endpoint_type=EndpointType.SHARED)


@pytest.mark.parametrize(
    ("method", "target", "deployment", "code", "text"),
    [
        ("POST", "/", DEPLOYMENT, 404, "not a call of the emulator"),
        ("POST", f"{ENDPOINT}:fetch", DEPLOYMENT, 404, "not a call of the emulator"),
        ("POST", f"{ENDPOINT}:predict/x", DEPLOYMENT, 404, "not a call of the emulator"),
        ("GET", f"{ENDPOINT}:predict", DEPLOYMENT, 405, "not allowed"),
        ("POST", f"{ENDPOINT}:directPredict", DEPLOYMENT, 501, "call directRawPredict"),
        ("POST", f"{ENDPOINT}:directRawPredict", DEPLOYMENT, 400, "--grpc-port"),
        ("POST", f"{ENDPOINT}/invoke/a", DEPLOYMENT, 400, "needs a model with an invoke route prefix"),
        ("POST", f"{ENDPOINT}:rawPredict", INVOKED, 400, "is not available for a model with an invoke route prefix"),
        ("GET", f"{ENDPOINT}/invoke/", INVOKED, 404, "not a call of the emulator"),
        ("POST", f"{ENDPOINT}:streamRawPredict", SHARED, 400, "needs a dedicated endpoint"),
    ],
)
def test_unsupported_calls_are_refused(method: str, target: str, deployment: Deployment, code: int, text: str) -> None:
    with Platform(deployment) as platform:
        status, _, body = platform.ask(method, target, b"{}")
        error = json.loads(body)["error"]
        assert (status, error["code"]) == (code, code)
        assert text in error["message"]
        assert platform.container.calls == []


@pytest.mark.parametrize(
    ("body", "text"),
    [
        (b"", "Invalid JSON payload"),
        (b"[1]", "the root must be an object"),
        (b'{"instances": [NaN]}', "Invalid JSON payload"),
        (b'{"inputs": []}', 'Unknown name "inputs"'),
        (b"{}", "at least one instance"),
        (b'{"instances": []}', "at least one instance"),
        (b'{"instances": {"a": 1}}', "at least one instance"),
    ],
)
def test_invalid_requests_are_refused(body: bytes, text: str) -> None:
    with pytest.raises(GoogleError, match=text) as refusal:
        read_predict_request(body)
    assert (refusal.value.code, refusal.value.status) == (400, Status.INVALID_ARGUMENT)


@pytest.mark.parametrize("header", [("A", "b\r\n c"), ("A b", "c"), ("A", "b\x00")])
def test_a_header_that_cannot_be_forwarded_is_refused(header: tuple[str, str]) -> None:
    with pytest.raises(GoogleError, match="malformed"):
        read_raw_request([header], b"")


@pytest.mark.parametrize(
    "body",
    [
        b"",
        b"[]",
        b"{}",
        b'{"httpBody": 1}',
        b'{"httpBody": {"data": "?"}}',
        b'{"httpBody": {"data": "\xc3\xa4"}}',
        b'{"httpBody": {"data": 1}}',
        b'{"httpBody": {"contentType": 1}}',
        b'{"httpBody": {"contentType": "a\\nb"}}',
    ],
)
def test_a_malformed_envelope_is_refused(body: bytes) -> None:
    with pytest.raises(GoogleError, match="Invalid"):
        read_sdk_request([], body)
