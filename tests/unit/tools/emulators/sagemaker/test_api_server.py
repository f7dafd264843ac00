"""The runtime API, called by the real SDK, in front of a scripted endpoint, and its bidirectional streams."""

from __future__ import annotations

import contextlib
import http.client
import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import pytest
from botocore.exceptions import ClientError, EventStreamError
from botocore.loaders import Loader
from botocore.model import ServiceModel
from websockets.sync.server import ServerConnection, serve

from tests.contract.emulators import sagemaker_emulator
from tests.unit.tools.emulators.sagemaker.bidirectional_caller import Caller
from tests.unit.tools.emulators.scripted_container import LIMIT_S, Answer, ScriptedContainer
from trident.tools.emulators.container import (
    HOST,
    BreachReport,
    ClientClosed,
    ContainerAnswer,
    ContainerClient,
    ContainerStream,
)
from trident.tools.emulators.sagemaker.api import RuntimeApi
from trident.tools.emulators.sagemaker.endpoint import SageMakerLimits, SingleModelEndpoint
from trident.tools.emulators.sagemaker.invocation import (
    CUSTOM_ATTRIBUTES,
    PREFIX,
    REQUEST_HEADERS,
    Invocation,
    passed_back,
    read_invocation,
)

LIMITS = SageMakerLimits(body_bytes=100_000)
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
    with contextlib.closing(sagemaker_emulator.sdk(server.url)) as client:
        yield client


def test_a_header_over_the_limit_is_refused(sdk: Any, echo: Echo) -> None:
    with pytest.raises(ClientError, match="X-Amzn-SageMaker-Inference-Id"):
        sdk.invoke_endpoint(EndpointName="any", Body=b"x", InferenceId="i" * 65)
    assert echo.invocations == []


def parts(answer: Any) -> list[bytes]:
    with contextlib.closing(answer["Body"]) as events:
        return [event["PayloadPart"]["Bytes"] for event in events]


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


def test_no_caller_is_accepted_before_the_container_is_ready(echo: Echo, report: BreachReport) -> None:
    with contextlib.closing(RuntimeApi(echo, 0, LIMITS, report)) as api:
        address = (HOST, int(api.url.rpartition(":")[2]))
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, LIMIT_S)
        with api:
            socket.create_connection(address, LIMIT_S).close()
        with pytest.raises(ConnectionRefusedError):
            socket.create_connection(address, LIMIT_S)


def answer(connection: ServerConnection) -> None:
    """Send each message back; `close` closes the stream, and `parts` is answered in fragments."""
    assert connection.request is not None
    connection.send(connection.request.path)
    for message in connection:
        if message == "close":
            connection.close(1011, "broken")
            return
        if message == "parts":
            connection.send(iter([b"a", b"b"]))
        else:
            connection.send(message)


@pytest.fixture(scope="module")
def api() -> Iterator[tuple[int, BreachReport]]:
    limits, report = SageMakerLimits(), BreachReport()
    with serve(answer, HOST, 0) as container:
        threading.Thread(target=container.serve_forever, daemon=True).start()
        client = ContainerClient(container.socket.getsockname()[1], limits)
        with RuntimeApi(SingleModelEndpoint(client, limits, report), 0, limits, report) as made:
            yield int(made.url.rpartition(":")[2]), report


def part_of(event: tuple[dict[str, Any], bytes]) -> tuple[str, str, bytes]:
    headers, payload = event
    assert headers[":event-type"] == "PayloadPart"
    return headers["DataType"], headers.get("CompletionState", ""), payload


def test_each_part_is_a_message_and_each_message_a_part(api: tuple[int, BreachReport]) -> None:
    with contextlib.closing(Caller(api[0])) as caller:
        assert caller.status() == 200
        events = caller.events()
        assert part_of(next(events)) == ("UTF8", "", b"/invocations-bidirectional-stream")
        caller.send(b"\0\1")
        assert part_of(next(events)) == ("BINARY", "", b"\0\1")
        caller.send("für".encode()[:2], DataType="UTF8", CompletionState="PARTIAL")
        caller.send("für".encode()[2:], DataType="UTF8", CompletionState="COMPLETE")
        assert part_of(next(events)) == ("UTF8", "", "für".encode())
        caller.send(b"parts", DataType="UTF8")
        parts = [part_of(next(events)) for _ in range(3)]
        assert [state for _, state, _ in parts] == ["PARTIAL", "PARTIAL", "COMPLETE"]
        assert b"".join(payload for _, _, payload in parts) == b"ab"
        caller.end()
        assert list(events) == []
        assert api[1].breaches == {}


def test_the_path_and_the_query_are_the_callers(api: tuple[int, BreachReport]) -> None:
    with contextlib.closing(
        Caller(api[0], Model_Invocation_Path="v2/models/m/stream", Model_Query_String="binary=chunk")
    ) as caller:
        assert caller.status() == 200
        assert part_of(next(caller.events()))[2] == b"/v2/models/m/stream?binary=chunk"


def test_the_code_of_the_container_reaches_the_caller_as_an_error(api: tuple[int, BreachReport]) -> None:
    with contextlib.closing(Caller(api[0])) as caller:
        assert caller.status() == 200
        caller.send(b"close", DataType="UTF8")
        *_, (headers, payload) = caller.events()
        assert headers[":exception-type"] == "ModelStreamError"
        assert payload == b'{"Message":"broken","ErrorCode":"1011"}'


# --- the headers of a call


def test_the_streaming_api_has_its_own_names_for_two_headers() -> None:
    given = {"Content-Type": "text/csv", "Accept": "*/*", PREFIX + "Accept": "text/plain"}
    assert read_invocation(given, b"", is_stream=True).headers == {"Content-Type": "text/csv", "Accept": "text/plain"}
    given[PREFIX + "Content-Type"] = "application/json"
    assert read_invocation(given, b"", is_stream=True).headers["Content-Type"] == "application/json"


def test_only_headers_known_to_the_sdk_reach_the_caller() -> None:
    report = BreachReport()
    answered = [
        ("content-type", "text/csv"),
        ("Server", "gunicorn"),
        (CUSTOM_ATTRIBUTES.lower(), "c=3"),
        (PREFIX + "New-Session-Id", "a-1; Expires=2030-01-02T03:04:05Z"),
        (PREFIX + "Closed-Session-Id", "a-0"),
    ]
    assert passed_back(answered, report) == {
        "Content-Type": "text/csv",
        CUSTOM_ATTRIBUTES: "c=3",
        PREFIX + "New-Session-Id": "a-1; Expires=2030-01-02T03:04:05Z",
        PREFIX + "Closed-Session-Id": "a-0",
    }
    assert report.breaches == {}


@pytest.mark.parametrize(
    ("name", "value"),
    [
        (CUSTOM_ATTRIBUTES, "a" * 1025),
        ("Content-Type", "ä"),
        (PREFIX + "New-Session-Id", "a"),
        (PREFIX + "New-Session-Id", "a; Expires=2030-01-02T03:04:05.000Z"),
        (PREFIX + "Closed-Session-Id", "a b"),
    ],
)
def test_a_malformed_header_of_the_answer_is_a_breach_and_is_removed(name: str, value: str) -> None:
    report = BreachReport()
    assert passed_back([(name, value)], report) == {}
    (breach,) = report.breaches
    assert name in breach


@pytest.mark.parametrize("operation", ["InvokeEndpoint", "InvokeEndpointWithResponseStream"])
def test_headers_are_those_of_the_sdks_model(operation: str) -> None:
    """A header that a newer SDK sends must be added, with its limit."""
    model = ServiceModel(Loader().load_service_model("sagemaker-runtime", "service-2")).operation_model(operation)
    sent = {each.serialization["name"]: each for each in model.input_shape.members.values() if each.serialization}
    sent.pop("EndpointName")
    for name, shape in sent.items():
        plain = name.removeprefix(PREFIX) if name.endswith(("-Accept", "-Content-Type")) else name
        longest = shape.metadata["max"]
        assert REQUEST_HEADERS[plain].fullmatch("a" * longest)
        assert not REQUEST_HEADERS[plain].fullmatch("a" * (longest + 1))
