"""Bad clients of a server with models: none ends it, stalls it or holds up others.

test_worker.py has what the worker does with bad bytes, whatever the application.
Source: docs/spec/http.md sections 4 ("Client disconnect"), 6 and 7; RFC 9112 sections 6, 9 and 11.
"""

from __future__ import annotations

import resource
import socket
from collections.abc import Iterator
from contextlib import ExitStack

import pytest

from tests.contract.servers.ports import HOST
from tests.contract.servers.probe_site import Client
from tests.contract.servers.processes import connected_front_ends, memory_bound, open_files
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.simple_model import assert_still_serves, good_body, link_models, raw_post
from tests.unit.onnx_models import add_sub, write_version
from tests.waiting import until

pytestmark = pytest.mark.slow

MANY = 10_000
GOOD = raw_post(good_body())
# A request waits 3 s for another one, far longer than it takes to notice that its client has disconnected.
HELD_CONFIG = "max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 3000000 preferred_batch_size: 2 }"


@pytest.fixture(scope="module")
def server(http_workers: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[ServerProcess]:
    """A server of `simple`, and of `held`, which holds a request until a second one arrives."""
    folder = tmp_path_factory.mktemp("bad_connections")
    repository = link_models(folder / "models", "simple")
    write_version(add_sub(), repository, "held", HELD_CONFIG)
    with ServerProcess(repository, folder / "log", "--shutdown-grace-secs=0") as running:
        until(lambda: connected_front_ends(running) == int(http_workers))
        yield running
        assert "Traceback" not in running.log_text()


@pytest.fixture(autouse=True)
def _nothing_is_left(server: ServerProcess) -> Iterator[None]:
    """After every test the server serves and has no more open files than before."""
    assert_still_serves(server)  # opens the files that a process keeps from its first request on
    before = open_files(server)
    yield
    assert_still_serves(server)
    until(lambda: open_files(server) <= before)


@pytest.fixture
def client(server: ServerProcess) -> Iterator[Client]:
    with Client(server.http_port) as client:
        yield client


# --- floods


def test_distinct_request_heads_do_not_grow_memory(client: Client, server: ServerProcess) -> None:
    with memory_bound(server, 64):
        for number in range(3000):
            path = f"/v2/models/{'m' * 500}{number}/infer"
            assert client.ask(raw_post(b"{}", {"X-Padding": "y" * 500 + str(number)}, path)).status == 404


# --- ten thousand


@pytest.fixture
def _room_for_many() -> Iterator[None]:
    """Raise the limit of open files of this process for `MANY` connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = MANY + 500
    if hard != resource.RLIM_INFINITY and hard < needed + 512:
        pytest.skip(f"the hard limit of open files is {hard}, {needed + 512} are needed")
    resource.setrlimit(resource.RLIMIT_NOFILE, (max(soft, needed), hard))
    yield
    resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))


@pytest.mark.usefixtures("_room_for_many")
def test_ten_thousand_abandoned_connections_use_bounded_memory(server: ServerProcess) -> None:
    with memory_bound(server, 512), ExitStack() as stack:
        clients = []
        for number in range(MANY):
            client = stack.enter_context(socket.create_connection((HOST, server.http_port)))
            if number % 2:
                client.sendall(GOOD[:-1])
            clients.append(client)
            if number % 1000 == 0:
                assert_still_serves(server)
        assert_still_serves(server)
        for client in (clients[1], clients[-1]):
            client.sendall(GOOD[-1:])
            assert client.recv(15) == b"HTTP/1.1 200 OK"
