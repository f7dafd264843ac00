from __future__ import annotations

import os
import socket
from collections.abc import Iterator

import pytest

from trident.app.commands.doctor.machine import PortReading, port_lines, read_ports
from trident.app.commands.doctor.report import Level
from trident.app.settings.server import Service


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_taken_port_is_read_with_its_owner(taken: int) -> None:
    (reading,) = read_ports({"HTTP": Service("127.0.0.1", taken, "--http-port", "HTTPService", False)})
    assert reading.failure == f"Socket '127.0.0.1:{taken}' already in use"
    assert reading.owner.endswith(f"(pid {os.getpid()})")


def test_a_free_port_is_read_and_left_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    for _ in range(2):
        service = Service("127.0.0.1", port, "--metrics-port", "Metrics Service", False)
        assert read_ports({"metrics": service}) == [PortReading("metrics", "127.0.0.1", port, option=service.option)]


def test_a_taken_port_fails_and_its_option_is_named() -> None:
    free = PortReading("HTTP", "0.0.0.0", 8000)
    used = PortReading(
        "metrics", "0.0.0.0", 8002, "Socket '0.0.0.0:8002' already in use", "nginx (pid 9)", "", "--metrics-port"
    )
    lines = port_lines([free, used])
    assert (lines[0].check, lines[0].level, lines[0].text) == ("HTTP", Level.OK, "0.0.0.0:8000 is free")
    assert (lines[1].check, lines[1].level) == ("Metrics", Level.FAILED)
    assert lines[1].text == "Socket '0.0.0.0:8002' already in use, by nginx (pid 9)"
    assert lines[1].cure.endswith("set --metrics-port")


def test_a_running_server_is_recognised_and_is_no_failure() -> None:
    used = PortReading(
        "HTTP", "0.0.0.0", 8000, "already in use", "trident serve models (pid 9)", "triton 0.1.0", "--http-port"
    )
    (line,) = port_lines([used])
    assert line.level is Level.WARNING
    assert line.text == "0.0.0.0:8000 is that of a running server, triton 0.1.0 (trident serve models (pid 9))"
    assert line.cure.endswith("a second server needs --http-port")
