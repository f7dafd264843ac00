"""The graceful stop of the whole server process.

Source: docs/spec/server-options.md section 5.
"""

from __future__ import annotations

import re
import signal
import threading
from concurrent.futures import ThreadPoolExecutor

import pytest

from tests.contract.servers.probe_site import PATIENCE_S, Client, Server, served
from tests.waiting import until

pytestmark = pytest.mark.slow

GET = b"GET /pid HTTP/1.1\r\nHost: a\r\n\r\n"


def refuses_connections(server: Server) -> bool:
    try:
        with Client(server.port):
            return False
    except OSError:
        return True


def ask_until_refused(port: int, answered: threading.Semaphore) -> None:
    """Ask on one new connection after the other, and release `answered` for each; fails if an answer is missing."""
    while True:
        try:
            client = Client(port)
        except OSError:
            return
        with client:
            assert client.ask(GET).status == 200
        answered.release()


@pytest.mark.parametrize("workers", [1, 2])
def test_every_connection_that_was_established_gets_its_answer(workers: int) -> None:
    with ThreadPoolExecutor(16) as pool:
        for _ in range(2):
            with served(workers=workers, exit_timeout_s=20.0) as server:
                answered = [threading.Semaphore(0) for _ in range(16)]
                clients = [pool.submit(ask_until_refused, server.port, each) for each in answered]
                assert all(each.acquire(timeout=PATIENCE_S) for each in answered)
                server.signal(signal.SIGTERM)  # while they ask
                assert server.ended() == 0
                for client in clients:
                    client.result()


def test_request_in_flight_finishes_and_closes_its_connection() -> None:
    with served(exit_timeout_s=20.0) as server, ThreadPoolExecutor(1) as pool:
        with Client(server.port) as waiting, Client(server.port) as releasing, Client(server.port) as idle:
            assert idle.ask(GET).status == 200
            answer = pool.submit(waiting.ask, b"GET /wait HTTP/1.1\r\n\r\n")
            until(lambda: server.get("waiting") == "1")
            # The releasing request is in flight too: its body is sent after the stop has begun.
            releasing.send(b"POST /release HTTP/1.1\r\nContent-Length: 4\r\n\r\nbo")
            assert server.answers()  # after this round trip the worker has read the bytes above
            server.signal(signal.SIGTERM)
            until(lambda: refuses_connections(server))
            assert idle.is_closed()
            releasing.send(b"dy")
            assert releasing.reply().headers["connection"] == "close"
            assert answer.result().headers["connection"] == "close"
            assert answer.result().body == b"released"
        assert server.ended() == 0


def test_last_port_answers_until_the_drain_ends() -> None:
    with served("--last", exit_timeout_s=20.0) as server, ThreadPoolExecutor(1) as pool:
        watched = server.ports[1]
        with Client(server.port) as waiting, Client(server.port) as releasing, Client(watched) as watching:
            answer = pool.submit(waiting.ask, b"GET /wait HTTP/1.1\r\n\r\n")
            until(lambda: server.get("waiting") == "1")
            releasing.send(b"POST /release HTTP/1.1\r\nContent-Length: 4\r\n\r\nbo")
            assert watching.ask(GET).status == 200
            server.signal(signal.SIGTERM)
            until(lambda: refuses_connections(server))
            for _ in range(2):
                assert watching.ask(GET).body.decode() == str(watched)
            with Client(watched) as newcomer:
                assert newcomer.ask(GET).body.decode() == str(watched)
            releasing.send(b"dy")
            assert answer.result().body == b"released"
            assert watching.is_closed()
        assert server.ended() == 0


def test_exit_timeout_forces_exit_status_1() -> None:
    with served(exit_timeout_s=1.0) as server, Client(server.port) as client, Client(server.port) as idle:
        assert idle.ask(GET).status == 200
        client.send(b"GET /wait HTTP/1.1\r\n\r\n")
        until(lambda: server.get("waiting") == "1")
        server.signal(signal.SIGTERM)
        assert server.ended() == 1
        assert "Exit timeout expired. Exiting immediately." in server.output
        found = set(re.findall(r"Found (\d+) connections with requests in flight", server.output))
        assert found == {"1"}


def test_undrained_site_forces_exit_status_1() -> None:
    with served("--undrained") as server:
        server.signal(signal.SIGTERM)
        assert server.ended() == 1
