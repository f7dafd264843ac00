"""The runtime API, called by the real SDK, in front of a scripted endpoint."""

from __future__ import annotations

import contextlib
import http.client
import socket
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import boto3
import pytest
from botocore.config import Config
from botocore.exceptions import ClientError, EventStreamError

from tests.unit.app.emulators.scripted_container import LIMIT_S, Answer, ScriptedContainer
from trident.app.emulators.container import (
    HOST,
    ClientClosed,
    ContainerAnswer,
    ContainerClient,
    ContainerStream,
)
from trident.app.emulators.report import BreachReport
from trident.app.emulators.sagemaker.api import RuntimeApi
from trident.app.emulators.sagemaker.endpoint import PlatformLimits
from trident.app.emulators.sagemaker.errors import model_error, model_not_ready
from trident.app.emulators.sagemaker.invocation import CUSTOM_ATTRIBUTES, PREFIX, Invocation
from trident.core.errors import ConfigInvalid

LIMITS = PlatformLimits(body_bytes=100_000)
JSON = [("Content-Type", "application/json")]


class Echo:
    """Returns the body, and streams the parts of `answer`."""

    def __init__(self) -> None:
        self.invocations: list[Invocation] = []
        self.error: Exception | None = None
        self.headers = JSON
        self.answer = Answer()

    def invoke(self, invocation: Invocation) -> ContainerAnswer:
        self.invocations.append(invocation)
        if self.error is not None:
            raise self.error
        return ContainerAnswer(200, self.headers, invocation.body)

    @contextmanager
    def stream(self, invocation: Invocation) -> Iterator[ContainerStream]:
        self.invocations.append(invocation)
        with ScriptedContainer(lambda call: self.answer) as container:
            client = ContainerClient(container.port, LIMITS)
            with client.open("POST", "/invocations", body=b"", within_s=LIMIT_S) as stream:
                yield stream


@pytest.fixture
def echo() -> Echo:
    return Echo()


@pytest.fixture
def report() -> BreachReport:
    return BreachReport()


@pytest.fixture
def server(echo: Echo, report: BreachReport) -> Iterator[RuntimeApi]:
    with RuntimeApi(echo, 0, LIMITS, report) as made:
        yield made


@pytest.fixture
def sdk(server: RuntimeApi) -> Iterator[Any]:
    with warnings.catch_warnings():
        warnings.simplefilter("ignore", DeprecationWarning)  # some versions of the SDK warn about their own code
        client = boto3.client(
            "sagemaker-runtime",
            endpoint_url=server.url,
            region_name="us-east-1",
            aws_access_key_id="any",
            aws_secret_access_key="any",
            config=Config(retries={"max_attempts": 0}, proxies={}),
        )
    with contextlib.closing(client):
        yield client


def test_a_call_reaches_the_endpoint_and_is_answered(sdk: Any, echo: Echo, server: RuntimeApi) -> None:
    echo.headers = [("Content-Type", "text/csv"), (CUSTOM_ATTRIBUTES, "b=2"), ("Server", "secret")]
    answer = sdk.invoke_endpoint(
        EndpointName="any", ContentType="text/csv", Accept="*/*", CustomAttributes="a=1", InferenceId="id-1", Body="1,2"
    )
    assert answer["Body"].read() == b"1,2"
    assert (answer["ContentType"], answer["CustomAttributes"]) == ("text/csv", "b=2")
    assert answer["InvokedProductionVariant"] == "AllTraffic"
    (invocation,) = echo.invocations
    assert invocation.headers == {
        "Content-Type": "text/csv",
        "Accept": "*/*",
        CUSTOM_ATTRIBUTES: "a=1",
        PREFIX + "Inference-Id": "id-1",
    }
    assert server.calls == 1


@pytest.mark.parametrize(
    ("error", "kind", "status"),
    [(model_error(400, "bad row"), "ModelError", 424), (model_not_ready("loading"), "ModelNotReadyException", 429)],
)
def test_an_error_becomes_an_exception_of_the_sdk(
    sdk: Any, echo: Echo, error: Exception, kind: str, status: int
) -> None:
    echo.error = error
    with pytest.raises(ClientError) as refusal:
        sdk.invoke_endpoint(EndpointName="any", Body=b"x")
    assert isinstance(refusal.value, getattr(sdk.exceptions, kind))
    assert refusal.value.response["ResponseMetadata"]["HTTPStatusCode"] == status
    if kind == "ModelError":
        assert refusal.value.response["OriginalStatusCode"] == 400
        assert refusal.value.response["OriginalMessage"] == "bad row"


def test_a_body_over_the_limit_is_refused_and_reported(sdk: Any, echo: Echo, report: BreachReport) -> None:
    sdk.invoke_endpoint(EndpointName="any", Body=bytes(LIMITS.body_bytes))
    with pytest.raises(ClientError, match="at most 100000 bytes"):
        sdk.invoke_endpoint(EndpointName="any", Body=bytes(LIMITS.body_bytes + 1))
    assert len(echo.invocations) == 1
    (breach,) = report.breaches
    assert breach.startswith("the caller sent a request body of 100001 bytes")


def test_a_header_over_the_limit_is_refused(sdk: Any, echo: Echo) -> None:
    with pytest.raises(ClientError, match="X-Amzn-SageMaker-Inference-Id"):
        sdk.invoke_endpoint(EndpointName="any", Body=b"x", InferenceId="i" * 65)
    assert echo.invocations == []


def parts(answer: Any) -> list[bytes]:
    with contextlib.closing(answer["Body"]) as events:
        return [event["PayloadPart"]["Bytes"] for event in events]


def test_a_stream_arrives_in_parts(sdk: Any, echo: Echo, report: BreachReport) -> None:
    body = bytes(range(256)) * 12_000
    echo.answer = Answer(200, body, {"Content-Type": "text/plain", CUSTOM_ATTRIBUTES: "b=2"})
    answer = sdk.invoke_endpoint_with_response_stream(
        EndpointName="any", ContentType="text/csv", Accept="a/b", Body=b"x"
    )
    assert (answer["ContentType"], answer["CustomAttributes"]) == ("text/plain", "b=2")
    received = parts(answer)
    assert b"".join(received) == body  # streams have no size limit
    assert len(received) > 1
    assert echo.invocations[0].headers == {"Content-Type": "text/csv", "Accept": "a/b"}
    assert report.breaches == {}


def test_a_broken_stream_ends_with_an_error_event(sdk: Any, echo: Echo, report: BreachReport) -> None:
    echo.answer = Answer(200, b"some", length=10)
    answer = sdk.invoke_endpoint_with_response_stream(EndpointName="any", Body=b"x")
    with pytest.raises(EventStreamError, match="ModelStreamError"):
        parts(answer)
    assert list(report.breaches) == ["a streamed answer: the container broke its answer off"]


def raw(server: RuntimeApi, method: str, path: str, headers: dict[str, str], body: bytes = b"") -> tuple[int, str]:
    connection = http.client.HTTPConnection(server.url.removeprefix("http://"), timeout=LIMIT_S)
    with contextlib.closing(connection):
        connection.putrequest(method, path)
        for name, value in headers.items():
            connection.putheader(name, value)
        connection.endheaders(body)
        response = connection.getresponse()
        return response.status, response.headers["x-amzn-ErrorType"] + " " + response.read().decode()


@pytest.mark.parametrize(
    ("method", "path", "status"),
    [
        ("POST", "/", 404),
        ("POST", "/invocations", 404),
        ("POST", "/endpoints/a_b/invocations", 404),
        ("GET", "/endpoints/a/invocations", 405),
        ("POST", "/endpoints/a/async-invocations", 400),
    ],
)
def test_other_paths_are_refused(server: RuntimeApi, method: str, path: str, status: int) -> None:
    found, text = raw(server, method, path, {"Content-Length": "1"}, b"x")
    assert (found, text.split()[0]) == (status, "ValidationError")
    assert "InvokeEndpoint" in text


def test_a_call_during_shutdown_is_refused(sdk: Any, echo: Echo) -> None:
    echo.error = ClientClosed()
    with pytest.raises(ClientError, match="The endpoint is being deleted"):
        sdk.invoke_endpoint(EndpointName="any", Body=b"x")


def test_an_incomplete_body_never_reaches_the_container(server: RuntimeApi, echo: Echo) -> None:
    with socket.create_connection((HOST, int(server.url.rpartition(":")[2])), LIMIT_S) as caller:
        caller.sendall(b"POST /endpoints/a/invocations HTTP/1.1\r\nContent-Length: 10\r\n\r\nhalf")
        caller.shutdown(socket.SHUT_WR)
        assert b" 400 " in caller.recv(100)
    assert echo.invocations == []


def test_a_port_in_use_is_refused_at_once(server: RuntimeApi, echo: Echo, report: BreachReport) -> None:
    port = int(server.url.rpartition(":")[2])
    with pytest.raises(ConfigInvalid, match=f"cannot listen at {HOST}:{port}: Address already in use") as refusal:
        RuntimeApi(echo, port, LIMITS, report)
    assert "--port" in (refusal.value.hint or "")


def test_no_caller_is_accepted_before_the_container_is_ready(echo: Echo, report: BreachReport) -> None:
    with contextlib.closing(RuntimeApi(echo, 0, LIMITS, report)) as api:
        address = (HOST, int(api.url.rpartition(":")[2]))
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, LIMIT_S)
        with api:
            socket.create_connection(address, LIMIT_S).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, LIMIT_S)
