from __future__ import annotations

import os
from pathlib import Path

import pytest

from trident.core.observability.hardware import MemoryRoom, host_room, resident_bytes, trim_heap

MIB = 1 << 20
GIB = 1 << 30


class Host:
    """The files of a machine with 8 GiB, of which 6 are available; the test adds cgroups."""

    def __init__(self, folder: Path) -> None:
        self.cgroups = folder / "cgroup"
        self.memberships = folder / "memberships"
        self.meminfo = folder / "meminfo"
        self.meminfo.write_text(f"MemTotal: {8 << 20} kB\nMemFree: 1 kB\nMemAvailable: {6 << 20} kB\n")

    def version_2(self, path: str, limit: object, usage: int, inactive_file: int = 0) -> None:
        self._write(path, "max", limit, "current", usage, f"anon 5\ninactive_file {inactive_file}\n")

    def version_1(self, path: str, limit: object, usage: int, inactive_file: int = 0) -> None:
        stat = f"inactive_file 7\ntotal_inactive_file {inactive_file}\n"
        self._write(f"memory{path}", "limit_in_bytes", limit, "usage_in_bytes", usage, stat)

    def room(self) -> MemoryRoom | None:
        return host_room(self.cgroups, self.memberships, self.meminfo)

    def _write(self, path: str, limit: str, limit_value: object, usage: str, usage_value: int, stat: str) -> None:
        folder = self.cgroups / path.lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"memory.{limit}").write_text(f"{limit_value}\n")
        (folder / f"memory.{usage}").write_text(f"{usage_value}\n")
        (folder / "memory.stat").write_text(stat)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


def test_the_room_without_a_limit_is_that_of_the_machine(host: Host) -> None:
    assert host.room() == MemoryRoom(8 * GIB, 6 * GIB)
    host.memberships.write_text("0::/\n")
    host.version_2("/", "max", 7 * GIB)
    assert host.room() == MemoryRoom(8 * GIB, 6 * GIB)


def test_inactive_file_pages_of_version_2_count_as_free(host: Host) -> None:
    host.memberships.write_text("0::/\n")
    host.version_2("/", 2 * GIB, 1500 * MIB, inactive_file=500 * MIB)
    assert host.room() == MemoryRoom(2 * GIB, 1048 * MIB)


def test_an_ancestor_may_have_the_tighter_limit(host: Host) -> None:
    host.memberships.write_text("0::/pod/container\n")
    host.version_2("/pod", 3 * GIB, 2900 * MIB)
    host.version_2("/pod/container", 2 * GIB, GIB)
    assert host.room() == MemoryRoom(3 * GIB, 172 * MIB)


def test_the_limit_of_version_1_is_found(host: Host) -> None:
    host.memberships.write_text("9:name=systemd:/\n4:cpu,memory:/docker/abc\n0::/\n")
    host.version_1("", 9223372036854771712, 7 * GIB)
    assert host.room() == MemoryRoom(8 * GIB, 6 * GIB)
    host.version_1("/docker/abc", GIB, 700 * MIB, inactive_file=100 * MIB)
    assert host.room() == MemoryRoom(GIB, 424 * MIB)


def test_the_root_counts_in_a_container_that_does_not_see_its_own_path(host: Host) -> None:
    host.memberships.write_text("4:memory:/docker/abc\n")
    host.version_1("", GIB, 700 * MIB)
    assert host.room() == MemoryRoom(GIB, 324 * MIB)


def test_no_room_is_left_when_more_is_used_than_allowed(host: Host) -> None:
    host.memberships.write_text("0::/\n")
    host.version_2("/", GIB, 2 * GIB)
    assert host.room() == MemoryRoom(GIB, 0)


def test_the_machine_may_have_less_than_the_limit(host: Host) -> None:
    host.memberships.write_text("0::/\n")
    host.version_2("/", 7 * GIB, 0)
    assert host.room() == MemoryRoom(8 * GIB, 6 * GIB)


def test_the_room_is_unknown_without_the_files(tmp_path: Path) -> None:
    nowhere = tmp_path / "none"
    assert host_room(nowhere, nowhere, nowhere) is None
    assert resident_bytes(proc=nowhere) == 0
    assert resident_bytes(os.getpid()) > 0


def test_trimming_lowers_the_resident_memory_of_this_process() -> None:
    room = host_room()
    assert room is not None
    assert 0 < room.free <= room.total
    block = bytearray(64 * MIB)
    held = resident_bytes()
    assert held > len(block)
    del block
    trim_heap()
    assert resident_bytes() < held - 32 * MIB
