from __future__ import annotations

import resource
from dataclasses import replace

from trident.app.commands.doctor.machine import LimitReading, limit_lines, read_limits
from trident.app.commands.doctor.report import Level, Line
from trident.app.process.files import IN_MEMORY
from trident.app.settings.reading import read_settings
from trident.app.supervisor.start import Topology
from trident.core.observability.hardware import MemoryRoom

GIB = 1 << 30
READING = LimitReading(
    cores=4.0,
    affinity=4,
    room=MemoryRoom(8 * GIB, 6 * GIB),
    open_files=65536,
    temporary="/tmp",
    in_memory_bytes=64 << 20,
    topology=Topology(2, "set by --http-workers"),
    worker_bytes=GIB,
)


def line(reading: LimitReading, check: str, sessions: int = 1) -> Line:
    return next(each for each in limit_lines(reading, sessions) if each.check == check)


def test_good_limits_are_ok() -> None:
    lines = limit_lines(READING, 1)
    assert {each.level for each in lines} == {Level.OK}
    assert [each.check for each in lines] == ["CPU", "memory", "processes", "temporary files", "open files"]


def test_the_cores_show_the_quota_and_the_threads_that_follow() -> None:
    text = line(replace(READING, cores=2.0, affinity=16), "CPU", 3).text
    assert text == "2 cores (a quota; 16 are visible); each of 3 sessions gets 2 threads"
    assert line(READING, "CPU").text == "4 cores; a session gets 3 threads"
    assert line(replace(READING, cores=0.5), "CPU").level is Level.WARNING


def test_shared_memory_of_the_workers_above_the_free_memory_is_a_warning() -> None:
    assert "share up to 2 GiB" in line(READING, "processes").text
    found = line(replace(READING, worker_bytes=4 * GIB), "processes")
    assert found.level is Level.WARNING
    assert "--http-worker-memory-bytes" in found.cure


def test_one_process_shares_no_memory() -> None:
    found = line(replace(READING, topology=Topology(0, "few cores"), worker_bytes=99 * GIB), "processes")
    assert (found.level, found.text) == (Level.OK, "all in one process: few cores")


def test_temporary_files_in_memory_are_a_warning_and_none_a_failure() -> None:
    found = line(replace(READING, temporary=IN_MEMORY), "temporary files")
    assert (found.level, found.text) == (Level.WARNING, "they are kept in memory, in /dev/shm, which has 64 MiB")
    assert line(replace(READING, temporary=""), "temporary files").level is Level.FAILED


def test_few_open_files_are_a_warning() -> None:
    found = line(replace(READING, open_files=1024), "open files")
    assert (found.level, found.text) == (Level.WARNING, "1024, which allows 512 connections")
    assert line(replace(READING, open_files=resource.RLIM_INFINITY), "open files").text.startswith("unlimited,")


def test_an_unknown_memory_limit_is_a_warning() -> None:
    assert line(replace(READING, room=None), "memory").level is Level.WARNING


def test_the_limits_of_this_machine_are_read() -> None:
    reading = read_limits(read_settings(["--model-repository=/m", "--http-workers=3"], {}))
    assert reading.topology.http_workers == 3
    assert 0 < reading.cores <= reading.affinity
    assert reading.open_files != 0
