from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from app.commands.doctor.ports import PortReading, listening_inodes, owner_of, port_lines, read_ports
from app.commands.doctor.report import Level
from app.settings.services import Service

TABLE = """\
  sl  local_address rem_address   st tx_queue rx_queue tr tm->when retrnsmt   uid  timeout inode
   0: 00000000:1F40 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4711 1 0 100 0 0 10 0
   1: 0100007F:1F40 0100007F:C350 01 00000000:00000000 00:00000000 00000000  1000        0 4712 1 0 100 0 0 10 0
   2: 00000000:1F42 00000000:0000 0A 00000000:00000000 00:00000000 00000000  1000        0 4713 1 0 100 0 0 10 0
"""


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_only_a_socket_that_listens_on_the_port_is_found() -> None:
    assert listening_inodes(TABLE, 8000) == {"4711"}
    assert listening_inodes(TABLE, 8001) == set()


def test_the_owner_of_a_port_is_found_in_proc(tmp_path: Path) -> None:
    (tmp_path / "net").mkdir()
    (tmp_path / "net" / "tcp").write_text(TABLE)
    for pid, inode in (("7", "4713"), ("8", "4711")):
        (tmp_path / pid / "fd").mkdir(parents=True)
        (tmp_path / pid / "fd" / "3").symlink_to(f"socket:[{inode}]")
        (tmp_path / pid / "comm").write_text(f"server{pid}\n")
    assert owner_of(8000, tmp_path) == "server8 (pid 8)"
    assert owner_of(8001, tmp_path) == ""


def test_a_taken_port_is_read_with_its_owner(taken: int) -> None:
    (reading,) = read_ports({Service.HTTP: ("127.0.0.1", taken)})
    assert reading.failure == f"Socket '127.0.0.1:{taken}' already in use"
    assert reading.owner.endswith(f"(pid {os.getpid()})")


def test_a_free_port_is_read_and_left_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    for _ in range(2):
        assert read_ports({Service.METRICS: ("127.0.0.1", port)}) == [PortReading("metrics", "127.0.0.1", port)]


def test_a_taken_port_fails_and_its_option_is_named() -> None:
    free = PortReading("HTTP", "0.0.0.0", 8000)
    used = PortReading("metrics", "0.0.0.0", 8002, "Socket '0.0.0.0:8002' already in use", "nginx (pid 9)")
    lines = port_lines([free, used])
    assert (lines[0].check, lines[0].level, lines[0].text) == ("HTTP", Level.OK, "0.0.0.0:8000 is free")
    assert (lines[1].check, lines[1].level) == ("Metrics", Level.FAILED)
    assert lines[1].text == "Socket '0.0.0.0:8002' already in use, by nginx (pid 9)"
    assert lines[1].cure.endswith("set --metrics-port")
