"""Refused bodies, and bodies without an end: neither uses up a server's memory.

Source: docs/spec/attacks.md section 3.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path
from select import select

import pytest

from tests.contract.servers.ports import free_ports
from tests.contract.servers.probe_site import Client
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.session import resident_kb
from tests.contract.servers.simple_model import PATH, assert_still_serves, link_models
from tests.waiting import until

pytestmark = [pytest.mark.slow, pytest.mark.shapes("one-process", "front-ends")]

TOKEN = "first-token-0123"
HUGE = 150 << 20
CONNECTIONS = 200
UNFINISHED = 16 << 20
# Of the JSON before the tensors of a body that announces them.
TENSORS = "Inference-Header-Content-Length: 100\r\n"


@pytest.fixture(scope="module")
def guarded(
    http_workers: str, shipped_models: Path, tmp_path_factory: pytest.TempPathFactory
) -> Iterator[ServerProcess]:
    """A server of which a client needs a token."""
    folder = tmp_path_factory.mktemp("guarded")
    file = folder / "tokens"
    file.write_text(TOKEN)
    file.chmod(0o600)
    options = ("--shutdown-grace-secs=0", f"--auth-token-file={file}", "--console=true")
    with ServerProcess(shipped_models, folder / "log", *options) as server:
        yield server


def head(path: str, length: int = HUGE, method: str = "POST", more: str = "") -> bytes:
    framing = f"Content-Length: {length}\r\n" if length else "Transfer-Encoding: chunked\r\n"
    return f"{method} {path} HTTP/1.1\r\nHost: h\r\n{framing}{more}\r\n".encode()


def send_what_is_taken(client: Client) -> None:
    """Begin to send a body, as far as the sockets take it at once."""
    client.socket.setblocking(False)
    try:
        for _ in range(8):
            client.socket.send(bytes(1 << 20))
    except (BlockingIOError, BrokenPipeError, ConnectionResetError):  # or as the server still reads them
        pass
    finally:
        client.socket.settimeout(60.0)


@pytest.mark.parametrize(
    ("head", "status"),
    [
        (head(PATH, more=TENSORS), 401),
        (head(PATH, 0), 401),
        (head(PATH, 4, more="Expect: 100-continue\r\n"), 401),
        (head(PATH, more=f"Authorization: Bearer {TOKEN}\r\n"), 413),
        (head("/v2/nothing"), 404),
        (head("/v2/nothing", 0), 404),
        (head("/v2/health/live", method="GET"), 413),
        (head("/v2/health/live"), 405),
        (head("/console"), 405),
        (head("/console/page/app.js", method="GET"), 413),
        (head("/v2/models/stats", method="GET"), 401),
    ],
    ids=range(11),
)
def test_refusal_is_sent_before_the_body_arrives(guarded: ServerProcess, head: bytes, status: int) -> None:
    with Client(guarded.http_port) as client:
        reply = client.ask(head)
        assert (reply.status, reply.headers["connection"]) == (status, "close")
        assert "error" in json.loads(reply.body)
        assert client.is_closed()
    # A client that is still sending sees the answer, too.
    with Client(guarded.http_port) as client:
        client.send(head)
        client.send(bytes(20 << 20))
        assert client.reply().status == status


def test_metrics_port_refuses_bodies(guarded: ServerProcess) -> None:
    with Client(guarded.metrics_port) as client:
        assert client.ask(head("/metrics")).status == 405
    with Client(guarded.metrics_port) as client:
        reply = client.ask(head("/metrics", method="GET"))
        assert (reply.status, reply.headers["connection"], b"nv_inference" in reply.body) == (200, "close", True)


@pytest.mark.shapes("one-process")
def test_platform_ports_refuse_before_reading_the_body(http_workers: str, shipped_models: Path, tmp_path: Path) -> None:
    sagemaker, vertex, azureml = free_ports(3)
    predict = "/v1/endpoints/0/deployedModels/0:predict"
    options = [
        "--shutdown-grace-secs=0",
        *("--allow-sagemaker=true", f"--sagemaker-port={sagemaker}"),
        *("--allow-vertex-ai=true", f"--vertex-ai-port={vertex}", "--vertex-ai-default-model=simple"),
        f"--vertex-ai-max-request-size={UNFINISHED}",
        *("--allow-azureml=true", f"--azureml-port={azureml}", "--azureml-default-model=simple"),
    ]
    with ServerProcess(shipped_models, tmp_path / "log", *options):
        for port, route in ((sagemaker, "/invocations"), (vertex, predict), (azureml, "/score")):
            for path, status in ((route, 413), ("/nothing", 404)):
                with Client(port) as client:
                    reply = client.ask(head(path))
                    assert (reply.status, reply.headers["connection"]) == (status, "close")
                    assert client.is_closed()
        redirect = "X-Vertex-Ai-Triton-Redirect: "
        for more, length, status in (
            ("", UNFINISHED + 1, 400),
            (f"{redirect}v2/models/simple/infer\r\n", UNFINISHED + 1, 400),
            (f"{redirect}v2/repository/models/simple/load\r\n", UNFINISHED, 403),
            (f"{redirect}v2/nothing\r\n", UNFINISHED, 400),
        ):
            with Client(vertex) as client:
                assert client.ask(head(predict, length, more=more)).status == status
                assert client.is_closed()


def test_unauthorized_clients_use_no_memory(guarded: ServerProcess) -> None:
    before = resident_kb(guarded.process)
    with ExitStack() as stack:
        clients = [stack.enter_context(Client(guarded.http_port)) for _ in range(CONNECTIONS)]
        for number, client in enumerate(clients):
            client.send(head(PATH, 0 if number % 2 else HUGE, more=TENSORS))
        for client in clients:
            assert client.reply().status == 401
            send_what_is_taken(client)
        most = resident_kb(guarded.process) - before
        assert guarded.request("POST", "/v2/repository/index", b"", {"authorization": f"Bearer {TOKEN}"})[0] == 200
    # Had their bodies been received, it would be hundreds of megabytes.
    assert most < 60 << 10


def test_unfinished_bodies_on_many_connections_use_bounded_memory(http_workers: str, tmp_path: Path) -> None:
    """Another client's body is received meanwhile."""
    count, sent = 100, 3 << 20
    held = 2 * (UNFINISHED + sent)  # in two front ends
    repository = link_models(tmp_path / "models", "identity_fp32", "simple")
    options = ("--shutdown-grace-secs=0", f"--http-max-unfinished-size={UNFINISHED}")
    with ExitStack() as stack:
        server = stack.enter_context(ServerProcess(repository, tmp_path / "log", *options))
        assert_still_serves(server)
        before = resident_kb(server.process)
        clients = [stack.enter_context(Client(server.http_port)) for _ in range(count)]
        for client in clients:
            client.send(head(PATH, more=TENSORS) + bytes(sent))
        raw = "Inference-Header-Content-Length: 0\r\n"
        with Client(server.http_port) as other:
            body = bytes(sent // 2)  # a larger one would be the first to make room, while no client is silent
            reply = other.ask(head("/v2/models/identity_fp32/infer", len(body), more=raw) + body)
            assert (reply.status, reply.body[-len(body) :] == body) == (200, True)
        refused: set[Client] = set()

        def are_refused() -> bool:
            readable = select([each.socket for each in clients if each not in refused], [], [], 0)[0]
            for client in (each for each in clients if each.socket in readable):
                reply = client.reply()
                assert reply.status == 503
                assert b"too many large bodies are being received" in reply.body
                refused.add(client)
            return len(refused) >= count - held // sent

        until(are_refused)
        # With the memory that is kept for the next large bodies.
        assert resident_kb(server.process) - before < count * sent // 2 >> 10
        assert_still_serves(server)
