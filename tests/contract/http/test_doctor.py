"""`trident doctor` and a second server beside one that runs."""

from __future__ import annotations

import json
import subprocess
from typing import Any

import pytest

from tests.contract.servers.ports import HOST, free_ports
from tests.contract.servers.server import ServerProcess
from tests.contract.servers.session import TRIDENT

pytestmark = pytest.mark.slow

LIMIT_S = 120.0


def doctor(*arguments: str) -> tuple[int, dict[str, Any]]:
    """The exit status, and the lines of the report by their check."""
    done = subprocess.run([TRIDENT, "doctor", "--json", *arguments], capture_output=True, text=True, timeout=LIMIT_S)
    return done.returncode, {line["check"]: line for line in json.loads(done.stdout)["lines"]}


def ports_of(server: ServerProcess) -> list[str]:
    return [
        f"--http-address={HOST}",
        f"--grpc-address={HOST}",
        f"--http-port={server.http_port}",
        f"--grpc-port={server.grpc_port}",
        f"--metrics-port={server.metrics_port}",
    ]


def test_the_ports_of_a_running_server_are_no_failure(server: ServerProcess) -> None:
    status, lines = doctor(*ports_of(server))
    assert status == 0
    for name in ("HTTP", "GRPC", "Metrics"):
        assert lines[name]["level"] == "warning"
        assert "is that of a running server, triton " in lines[name]["text"]
        assert f"(pid {server.process.pid})" in lines[name]["text"]


def test_a_running_server_is_asked_by_its_address(server: ServerProcess) -> None:
    status, lines = doctor(f"http://{server.address}", f"--metrics-port={server.metrics_port}")
    assert status == 0
    assert {line["level"] for line in lines.values()} == {"ok"}
    assert {"live", "ready", "version", "clock", "models", "metrics"} <= lines.keys()


def test_a_port_where_nobody_answers_has_status_1() -> None:
    (port,) = free_ports(1)
    status, lines = doctor(f"http://{HOST}:{port}")
    assert (status, lines["live"]["level"]) == (1, "failed")


def test_a_server_on_a_taken_port_names_the_owner_and_the_option(server: ServerProcess) -> None:
    command = [TRIDENT, "serve", str(server.repository), *ports_of(server), "--allow-grpc=false"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=LIMIT_S)
    assert done.returncode == 1
    assert f"Socket '{HOST}:{server.http_port}' already in use" in done.stderr
    assert f"(pid {server.process.pid}) has it: stop that process, or choose another with --http-port" in done.stderr
