"""The arbiter: it replaces a dead worker, and ends the server for a failed site or a taken port.

Source: docs/spec/server-options.md section 6.
"""

from __future__ import annotations

import contextlib
import os
import signal
from collections.abc import Iterator

import pytest

from tests.contract.servers.probe_site import Client, Server, served
from tests.contract.servers.session import session_members
from tests.waiting import until

pytestmark = pytest.mark.slow


def test_failed_site_ends_the_server_after_requests_in_flight() -> None:
    with served(drain_grace_s=60.0) as server, Client(server.port) as client:
        client.send(b"POST /echo HTTP/1.1\r\nContent-Length: 4\r\n\r\nbo")
        assert server.get("poison") == "ok"
        until(lambda: not server.answers())
        client.send(b"dy")
        assert client.reply().body == b"body"
        assert server.ended() == 1


def test_ignored_signals_change_nothing() -> None:
    with served() as server:
        pid = server.get("pid")
        for number in (signal.SIGTTIN, signal.SIGTTOU, signal.SIGUSR2, signal.SIGWINCH):
            server.signal(number)
        until(lambda: server.output.count("signal ignored") == 4)
        assert server.get("pid") == pid


@contextlib.contextmanager
def inherited(action: signal.Handlers) -> Iterator[None]:
    """Set what processes that start meanwhile inherit for SIGHUP."""
    before = signal.signal(signal.SIGHUP, action)
    try:
        yield
    finally:
        signal.signal(signal.SIGHUP, before)


def hang_up(server: Server) -> None:
    """Send SIGHUP to all its processes, as a closed terminal does."""
    for process in session_members(server.started.pid):
        os.kill(process, signal.SIGHUP)


def test_closed_terminal_is_one_graceful_stop() -> None:
    with inherited(signal.SIG_DFL), served(exit_timeout_s=20.0) as server, Client(server.port) as client:
        client.send(b"POST /echo HTTP/1.1\r\nContent-Length: 4\r\n\r\nbo")
        assert server.answers()  # after this round trip the worker has read the bytes above
        hang_up(server)
        until(lambda: not server.answers())
        client.send(b"dy")
        assert client.reply().body == b"body"
        assert server.ended() == 0


def test_nohup_keeps_the_server() -> None:
    with inherited(signal.SIG_IGN), served() as server:
        pid = server.get("pid")
        hang_up(server)
        for _ in range(20):
            assert server.get("pid") == pid
        server.signal(signal.SIGTERM)
        assert server.ended() == 0
        assert server.output.count("Handling signal") == 1
