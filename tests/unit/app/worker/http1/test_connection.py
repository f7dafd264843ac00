from __future__ import annotations

import json
import logging
import socket
import time
from collections.abc import Callable, Iterator
from typing import Any

import gevent
import gevent.event
import pytest
from gunicorn.config import Config

from tests.unit.app.worker.socket_pairs import LIMIT_S, received, received_until_end, socket_pair
from tests.unit.core.waiting.hub_thread import until
from trident.app.worker.connection import LONGEST_LINGER_S, CoarseClock, Connections, Stage
from trident.app.worker.http1.connection import Http1Connection, Http1Service, Response, ResponseHead
from trident.app.worker.http1.request import HttpHead
from trident.app.worker.listening_sockets import ConnectionLimits
from trident.core.buffers import SILENCE_S, UnfinishedBodies
from trident.core.http.reply import ARRIVED_KEY, BODY_KEY, CLIENT_GONE_KEY, Reply, text_reply
from trident.core.inference.tensors import Buffer
from trident.core.memo import Memo
from trident.core.observability.switches import SWITCHES


def echo(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
    """The method, the path and the body of the request."""
    if environ["PATH_INFO"] == "/fail":
        raise KeyError("fail")
    start_response("200 OK", [])
    return [f"{environ['REQUEST_METHOD']} {environ['PATH_INFO']} ".encode() + bytes(environ[BODY_KEY])]


class Echo:
    """`echo`, which refuses a request for /secret by its head, and takes bodies of at most MOST bytes."""

    MOST = 40_000

    def __call__(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        return echo(environ, start_response)

    def admit(self, environ: dict[str, Any]) -> int | Reply:
        return text_reply(401, b"no", "text/plain") if environ["PATH_INFO"] == "/secret" else self.MOST


class Served:
    """A client whose connection is served by a greenlet."""

    def __init__(self, connections: Connections | None = None) -> None:
        ours, self.client = socket_pair()
        self.connections = connections or Connections(CoarseClock(), ConnectionLimits(), 10)
        SWITCHES.set(access="all")
        service = Http1Service(Echo(), ("127.0.0.1", 8000), Config(), self.connections)
        self.connection = Http1Connection(ours, ("1.2.3.4", 5), service)
        self.serving = gevent.spawn(self.connection.serve)

    def ask(self, request: bytes, body: bytes) -> None:
        """Send a request and check that the response has this body."""
        self.client.sendall(request)
        self.expect(body)

    def expect(self, body: bytes) -> None:
        response = b""
        while not response.endswith(b"\r\n\r\n"):
            response += received(self.client, 1)
        assert response.startswith(b"HTTP/1.1 200 OK\r\n")
        assert f"Content-Length: {len(body)}\r\n".encode() in response
        assert received(self.client, len(body)) == body

    def wait_for(self, phase: Stage) -> None:
        until(lambda: self.connection.stage is phase)

    def refusal(self) -> tuple[bytes, str]:
        """The status line and the error of a response that ends the connection."""
        head, body = received_until_end(self.client).split(b"\r\n\r\n")
        assert b"Connection: close" in head
        return head.split(b"\r\n")[0], json.loads(body)["error"]

    def close_client(self) -> None:
        self.client.close()
        self.serving.join(LIMIT_S)
        assert self.serving.successful()

    def close(self) -> None:
        self.close_client()
        assert self.connections.open == set()


@pytest.fixture
def served() -> Iterator[Served]:
    made = Served()
    yield made
    made.close()


def test_application_gets_the_arrival_time_of_the_whole_request(
    served: Served, monkeypatch: pytest.MonkeyPatch
) -> None:
    seen: list[int] = []

    def noting(environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        seen.append(environ[ARRIVED_KEY])
        return echo(environ, start_response)

    monkeypatch.setattr(served.connection._service, "application", noting)
    served.client.sendall(b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nab")
    served.wait_for(Stage.BODY)
    begin_ns = time.monotonic_ns()
    served.ask(b"cd", b"POST /a abcd")
    assert begin_ns <= seen[0] <= time.monotonic_ns()


class Waiting:
    """An application that answers when the test says so, and its view of the client meanwhile."""

    def __init__(self, served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
        self._served = served
        self.may_answer = gevent.event.Event()
        self.client_gone: Callable[[], bool] | None = None
        monkeypatch.setattr(served.connection._service, "application", self.answer)

    def answer(self, environ: dict[str, Any], start_response: Callable[..., Any]) -> list[bytes]:
        self.client_gone = environ[CLIENT_GONE_KEY]
        self.may_answer.wait(LIMIT_S)
        return echo(environ, start_response)

    def look(self, after_s: float = 0) -> bool:
        """True if the connection reports a disconnected client this long after the last check."""
        until(lambda: self.client_gone is not None)
        self._served.connections.clock.now += after_s
        assert self.client_gone is not None
        return self.client_gone()


@pytest.fixture
def waiting(served: Served, monkeypatch: pytest.MonkeyPatch) -> Waiting:
    return Waiting(served, monkeypatch)


@pytest.mark.parametrize("looks", [[0], [0, 0.4], [0, 0.6, 0.1, 100]])
def test_half_closed_client_gets_its_answer(served: Served, waiting: Waiting, looks: list[float]) -> None:
    served.client.sendall(b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n")
    assert not waiting.look()
    served.client.shutdown(socket.SHUT_WR)
    assert [waiting.look(after_s) for after_s in looks] == [False] * len(looks)
    if len(looks) > 2:
        assert received(served.client, 25) == b"HTTP/1.1 100 Continue\r\n\r\n"
    waiting.may_answer.set()
    served.expect(b"GET /a ")


@pytest.mark.parametrize("version", [b"1.0", b"1.1"])
def test_client_disconnect_is_detected(served: Served, waiting: Waiting, version: bytes) -> None:
    served.client.sendall(b"GET /a HTTP/%s\r\nHost: h\r\n\r\n" % version)
    assert not waiting.look()
    served.client.close()
    assert waiting.look() is (version == b"1.0")
    assert not waiting.look(0.6) or waiting.look()
    until(waiting.look)
    waiting.may_answer.set()


def test_pipelined_requests_are_answered_in_order(served: Served) -> None:
    served.client.sendall(
        b"GET /a HTTP/1.1\r\nHost: h\r\n\r\nPOST /b HTTP/1.1\r\nContent-Length: 2\r\n\r\nxyGET /c HTTP/1.1\r\n\r\n"
    )
    for body in (b"GET /a ", b"POST /b xy", b"GET /c "):
        served.expect(body)


def test_a_request_may_arrive_in_pieces(served: Served) -> None:
    served.client.sendall(b"POST /b HTTP/1.1\r\nContent-")
    served.wait_for(Stage.HEAD)
    served.client.sendall(b"Length: 4\r\n\r\nbo")
    served.wait_for(Stage.BODY)
    served.ask(b"dy", b"POST /b body")


def test_a_chunked_body_is_collected_and_plain_requests_follow(served: Served) -> None:
    chunked = b"POST /b HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n2\r\nbo\r\n2\r\ndy\r\n0\r\n\r\n"
    served.client.sendall(chunked + b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n")
    served.expect(b"POST /b body")
    served.expect(b"GET /a ")


def test_truncated_body_never_reaches_the_application(served: Served) -> None:
    served.client.sendall(b"POST /b HTTP/1.1\r\nHost: h\r\nContent-Length: 4\r\n\r\nbo")
    served.wait_for(Stage.BODY)
    served.client.shutdown(socket.SHUT_WR)
    assert received_until_end(served.client) == b""


def test_failure_after_the_response_began_ends_the_connection(served: Served, monkeypatch: pytest.MonkeyPatch) -> None:
    def failing(environ: dict[str, Any], start_response: Callable[..., Any]) -> Iterator[bytes]:
        start_response("200 OK", [])
        yield b"begun"
        raise ValueError("half-way")

    monkeypatch.setattr(served.connection._service, "application", failing)
    served.client.sendall(b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n")
    assert received_until_end(served.client).endswith(b"5\r\nbegun\r\n")


def test_expect_100_continue_is_answered_before_the_body(served: Served) -> None:
    served.client.sendall(b"POST /b HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n")
    assert received(served.client, 25) == b"HTTP/1.1 100 Continue\r\n\r\n"
    served.ask(b"body", b"POST /b body")


LONG = b"Host: h\r\nContent-Length: 30000\r\n\r\n"


@pytest.mark.parametrize(
    "head",
    [
        b"POST /secret HTTP/1.1\r\n" + LONG,
        b"POST /secret HTTP/1.1\r\nHost: h\r\nExpect: 100-continue\r\nContent-Length: 4\r\n\r\n",
        b"POST /secret HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n",
    ],
    ids=["long", "expects 100", "chunked"],
)
def test_refused_head_is_answered_before_the_body_and_closes_the_connection(
    served: Served, access_lines: pytest.LogCaptureFixture, head: bytes
) -> None:
    served.client.sendall(head)
    answer = received(served.client, 25)
    assert answer.startswith(b"HTTP/1.1 401 Unauthorized")
    served.wait_for(Stage.LINGER)
    # The client still sends: all of it is taken, so that no reset overtakes the answer.
    for _ in range(50):
        served.client.sendall(bytes(20_000))
        gevent.sleep(0)
    served.client.shutdown(socket.SHUT_WR)
    assert b"\r\nConnection: close\r\n" in (answer := received_until_end(served.client))
    assert answer.endswith(b"\r\n\r\nno")
    assert logged(access_lines) == [("POST", "/secret", 401)]


def test_client_that_keeps_sending_after_a_refusal_is_disconnected(served: Served) -> None:
    served.client.sendall(b"POST /secret HTTP/1.1\r\n" + LONG)
    served.wait_for(Stage.LINGER)
    served.connections.clock.now += LONGEST_LINGER_S
    served.client.sendall(b"more")
    until(lambda: served.connection.stage is Stage.ENDED)


def test_a_chunked_body_is_cut_off_at_its_limit(served: Served) -> None:
    served.client.sendall(b"POST /b HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\n")
    for size in (b"7530", b"2710"):
        served.client.sendall(size + b"\r\n" + bytes(int(size, 16)) + b"\r\n")
    served.wait_for(Stage.BODY)
    served.client.sendall(b"1\r\n")
    status, error = served.refusal()
    assert status == b"HTTP/1.1 413 Content Too Large"
    assert error.startswith("the body of more than 40000 bytes exceeds the maximum allowed input size of 40000")


def test_unfinished_bodies_are_bounded_and_the_longest_silent_is_closed_first() -> None:
    connections = Connections(CoarseClock(), ConnectionLimits(max_unfinished_size=50_000), 10)
    now = 0.0
    connections.unfinished = UnfinishedBodies(50_000, lambda: now)
    first, second, third = (Served(connections) for _ in range(3))
    try:
        for each in (first, second, third):
            each.client.sendall(b"POST /b HTTP/1.1\r\n" + LONG + bytes(25_000))
            until(lambda each=each: each.connection.received == 25_000)
            now += SILENCE_S + 1
        assert connections.unfinished.total == 75_000  # besides the largest there is room for two
        second.client.sendall(b"a" * 1000)
        until(lambda: second.connection.received == 26_000)
        third.client.sendall(b"a" * 3000)
        assert first.refusal() == (
            b"HTTP/1.1 503 Service Unavailable",
            "too many large bodies are being received: they have more than 50000 bytes together; send fewer at once",
        )
        second.ask(b"a" * 4000, b"POST /b " + bytes(25_000) + b"a" * 5000)
        third.ask(b"a" * 2000, b"POST /b " + bytes(25_000) + b"a" * 5000)
        assert connections.unfinished.total == 0
    finally:
        for each in (first, second, third):
            each.close_client()
    until(lambda: not connections.open)


def test_stopping_server_closes_the_connection_after_the_response(served: Served) -> None:
    served.connections.announce_end()
    served.client.sendall(b"GET /a HTTP/1.1\r\nHost: h\r\n\r\n")
    assert received_until_end(served.client).endswith(
        b"Connection: close\r\n" + served.connections.clock.date_end + b"GET /a "
    )


@pytest.fixture
def access_lines(caplog: pytest.LogCaptureFixture) -> pytest.LogCaptureFixture:
    caplog.set_level(logging.INFO, "trident.access")
    return caplog


def logged(caplog: pytest.LogCaptureFixture) -> list[tuple[str, str, int]]:
    found = [record.__dict__ for record in caplog.records if record.name == "trident.access"]
    return [(line["method"], line["path"], line["status"]) for line in found]


@pytest.mark.parametrize(
    ("request_bytes", "expected"),
    [
        (b"GET /a HTTP/9\r\n\r\n", ("GET", "/a", 400)),
        (b"\x16\x03\x01\x02 junk\r\n\r\n", ("\x16\x03\x01\x02", "junk", 400)),
        (b"POST /b HTTP/1.1\r\nContent-Length: 2147483648\r\n\r\n", ("POST", "/b", 400)),
        (b"POST /b HTTP/1.1\r\nHost: h\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n", ("POST", "/b", 400)),
        (b"GET /a HTTP/1.1\r\nA: " + b"b" * 9000 + b"\r\n\r\n", ("GET", "/a", 431)),
        (b"GET /fail HTTP/1.1\r\nHost: h\r\n\r\n", ("GET", "/fail", 500)),
    ],
    ids=["malformed", "not HTTP", "too large", "bad chunk", "long header", "exception"],
)
def test_refusals_reach_the_access_log(
    served: Served,
    access_lines: pytest.LogCaptureFixture,
    request_bytes: bytes,
    expected: tuple[str, str, int],
) -> None:
    served.client.sendall(request_bytes)
    served.refusal()
    assert logged(access_lines) == [expected]


def test_requests_are_logged_on_arrival_at_the_verbose_level(served: Served, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.DEBUG, "trident.http")
    for verbose in (0, 1, 0):
        SWITCHES.set(verbose=verbose)
        served.ask(b"GET /v%d HTTP/1.1\r\nHost: h\r\n\r\n" % verbose, b"GET /v%d " % verbose)
    assert [each for each in caplog.messages if each.startswith("HTTP request")] == ["HTTP request: 0 /v1"]


@pytest.mark.parametrize("start", [b"GET /a", b"POST /a HTTP/1.1\r\nHost: h\r\nContent-Length: 2\r\n\r\nx"])
def test_a_request_that_times_out_reaches_the_access_log(
    served: Served, access_lines: pytest.LogCaptureFixture, start: bytes
) -> None:
    served.client.sendall(start)
    served.wait_for(Stage.BODY if start.endswith(b"x") else Stage.HEAD)
    served.connection.time_out()
    assert served.refusal()[0] == b"HTTP/1.1 408 Request Timeout"
    assert logged(access_lines) == [(start.split()[0].decode(), "/a", 408)]


# --- one response


class Sink:
    """Collects the sent bytes."""

    def __init__(self) -> None:
        self.sent: list[bytes] = []
        self.closing = False
        self.turns = 0

    def send(self, parts: list[Buffer], size: int) -> None:
        whole = b"".join(parts)
        assert len(whole) == size
        self.sent.append(whole)

    def is_closing(self) -> bool:
        return self.closing

    def let_others_run(self) -> None:
        self.turns += 1


def answer(
    status: str, headers: list[tuple[str, str]], parts: Any, *, method: str = "GET", minor_version: int = 1
) -> tuple[list[bytes], bool]:
    """The sent bytes, without the Date header, and whether the connection continues."""

    def application(environ: dict[str, Any], start_response: Any) -> Any:
        start_response(status, headers)
        return parts

    sink = Sink()
    head = HttpHead({"REQUEST_METHOD": method, "HTTP_CONNECTION": "keep-alive"}, minor_version)
    clock = CoarseClock()
    response = Response(sink, head, Memo(512), clock)
    response.run(application, {})
    assert clock.date_end in sink.sent[0]
    return [part.replace(clock.date_end, b"\r\n") for part in sink.sent], response.keep_alive


def test_list_is_sent_in_one_piece_with_its_length() -> None:
    sent, keep_alive = answer("200 OK", [("A", "b")], [b"one", memoryview(b"two"), b""])
    assert sent == [b"HTTP/1.1 200 OK\r\nA: b\r\nContent-Length: 6\r\n\r\nonetwo"]
    assert keep_alive


def test_a_wrong_declared_length_is_refused() -> None:
    sent, _ = answer("200 OK", [("Content-Length", "3")], [b"one"])
    assert sent == [b"HTTP/1.1 200 OK\r\nContent-Length: 3\r\n\r\none"]
    with pytest.raises(ValueError, match="Content-Length of 4 and returned 3"):
        answer("200 OK", [("Content-Length", "4")], [b"one"])
    with pytest.raises(ValueError, match="more than the Content-Length"):
        answer("200 OK", [("Content-Length", "4")], iter([b"one", b"two"]))


def test_a_stream_that_fails_is_closed() -> None:
    closed = []

    def failing() -> Iterator[bytes]:
        try:
            yield b"one"
            raise KeyError("two")
        finally:
            closed.append(True)

    with pytest.raises(KeyError):
        answer("200 OK", [], failing())
    assert closed == [True]


def test_start_response_may_be_repeated_only_for_an_error() -> None:
    head = HttpHead({"REQUEST_METHOD": "GET"}, 1)
    response = Response(Sink(), head, Memo(512), CoarseClock())
    response.start_response("200 OK", [])
    with pytest.raises(AssertionError, match="twice"):
        response.start_response("200 OK", [])
    error = ValueError("late")
    response.start_response("500 Internal Server Error", [], (ValueError, error, error.__traceback__))  # type: ignore[arg-type]
    assert response.status.startswith("500")
    response.write(b"begun")
    with pytest.raises(ValueError, match="late"):
        response.start_response("500 Internal Server Error", [], (ValueError, error, error.__traceback__))  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("status", "headers"),
    [
        ("OK", []),
        ("200OK", []),
        ("200 OK\r\nA: b", []),
        ("200 OK", [("A", "b\r\nC: d")]),
        ("200 OK", [("A", "b\nC: d")]),
        ("200 OK", [("Content-Length", "many")]),
    ],
)
def test_an_invalid_head_is_refused(status: str, headers: list[tuple[str, str]]) -> None:
    with pytest.raises(ValueError, match=r"invalid|line break"):
        ResponseHead(status, headers)
