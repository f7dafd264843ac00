"""The doctor's lines about this machine: GPUs, limits and ports."""

from __future__ import annotations

import os
import resource
import socket
from collections.abc import Iterator
from dataclasses import replace

import pytest

from trident.app.commands.doctor.machine import (
    GpuReading,
    LimitReading,
    PortReading,
    gpu_lines,
    limit_lines,
    port_lines,
    read_limits,
    read_ports,
)
from trident.app.commands.doctor.report import Level, Line
from trident.app.process.files import IN_MEMORY
from trident.app.settings.reading import read_settings
from trident.app.settings.server import Service
from trident.app.supervisor.start import Topology
from trident.core.backends.registry import DeviceSupport, ProviderState
from trident.core.observability.hardware import DriverReading, MemoryState

CUDA = "CUDAExecutionProvider"
DRIVER = DriverReading("550.54.15", "12.4", (80 << 30,))
NO_DRIVER = "libnvidia-ml.so.1: cannot open shared object file"
LOADS = ProviderState(CUDA, True)
BROKEN = ProviderState(CUDA, True, "libcublas.so.12: cannot open shared object file", "install [gpu]")
ABSENT = ProviderState(CUDA, False, cure="install [gpu]")


def lines(
    driver: DriverReading | str, gpus: int, state: ProviderState, asked_by: tuple[str, ...] = ()
) -> dict[str, Line]:
    support = {"fast": DeviceSupport("Fast 1.0", [state])}
    return {line.check: line for line in gpu_lines(GpuReading(driver, range(gpus), support), asked_by)}


def test_a_gpu_that_works_is_shown_with_its_versions() -> None:
    found = lines(DRIVER, 1, LOADS)
    assert {line.level for line in found.values()} == {Level.OK}
    assert found["driver"].text == "550.54.15, CUDA up to 12.4, 1 GPU (80 GiB)"
    assert found["backend fast"].text == "Fast 1.0"
    assert found[CUDA].text == "its libraries load"


def test_no_gpu_is_fine_unless_a_model_asks_for_one() -> None:
    found = lines(NO_DRIVER, 0, ABSENT)
    assert {line.level for line in found.values()} == {Level.OK}
    found = lines(NO_DRIVER, 0, ABSENT, ("resnet",))
    assert found["driver"].level is Level.FAILED
    assert found["driver"].text.endswith("; asked for by resnet")
    assert found[CUDA].level is Level.FAILED
    assert found[CUDA].cure == "install [gpu]"


@pytest.mark.parametrize(
    ("gpus", "state", "asked_by", "level"),
    [
        (1, BROKEN, (), Level.FAILED),
        (0, BROKEN, (), Level.WARNING),
        (0, BROKEN, ("m",), Level.FAILED),
        (1, ABSENT, (), Level.WARNING),
        (1, ABSENT, ("m",), Level.FAILED),
    ],
)
def test_a_missing_provider_is_as_bad_as_the_need_for_it(
    gpus: int, state: ProviderState, asked_by: tuple[str, ...], level: Level
) -> None:
    assert lines(DRIVER, gpus, state, asked_by)[CUDA].level is level


def test_libraries_and_frameworks_that_are_missing_are_named() -> None:
    assert "libcublas.so.12" in lines(DRIVER, 1, BROKEN)[CUDA].text
    name = "OpenVINOExecutionProvider"
    assert lines(DRIVER, 1, ProviderState(name, False), ("m",))[name].level is Level.OK
    (_, line) = gpu_lines(GpuReading(DRIVER, (0,), {"fast": "No module named 'fast'"}), ())
    assert (line.check, line.level) == ("backend fast", Level.FAILED)


def test_gpus_that_cannot_be_used_are_a_warning() -> None:
    found = lines(DRIVER, 0, LOADS)["driver"]
    assert found.level is Level.WARNING
    assert "CUDA_VISIBLE_DEVICES" in found.cure
    assert lines(NO_DRIVER, 2, LOADS)["driver"].level is Level.WARNING
    asked_by = tuple(f"m{number}" for number in range(7))
    assert lines(NO_DRIVER, 0, ABSENT, asked_by)["driver"].text.endswith("m0, m1, m2, m3, m4 and 2 more")


GIB = 1 << 30
READING = LimitReading(
    cores=4.0,
    affinity=4,
    room=MemoryState(8 * GIB, 6 * GIB),
    open_files=65536,
    temporary="/tmp",
    in_memory_bytes=64 << 20,
    topology=Topology(2, "set by --http-workers"),
    worker_bytes=GIB,
)


def line(reading: LimitReading, check: str, sessions: int = 1) -> Line:
    return next(each for each in limit_lines(reading, sessions) if each.check == check)


def test_good_limits_are_ok_and_the_cores_show_the_quota() -> None:
    lines = limit_lines(READING, 1)
    assert {each.level for each in lines} == {Level.OK}
    assert [each.check for each in lines] == ["CPU", "memory", "processes", "temporary files", "open files"]
    text = line(replace(READING, cores=2.0, affinity=16), "CPU", 3).text
    assert text == "2 cores (a quota; 16 are visible); each of 3 sessions gets 2 threads"
    assert line(READING, "CPU").text == "4 cores; a session gets 3 threads"
    assert line(replace(READING, cores=0.5), "CPU").level is Level.WARNING


def test_shared_memory_is_that_of_several_processes() -> None:
    assert "share up to 2 GiB" in line(READING, "processes").text
    found = line(replace(READING, worker_bytes=4 * GIB), "processes")
    assert found.level is Level.WARNING
    assert "--http-worker-memory-bytes" in found.cure
    found = line(replace(READING, topology=Topology(0, "few cores"), worker_bytes=99 * GIB), "processes")
    assert (found.level, found.text) == (Level.OK, "all in one process: few cores")


def test_tight_limits_are_warnings() -> None:
    found = line(replace(READING, temporary=IN_MEMORY), "temporary files")
    assert (found.level, found.text) == (Level.WARNING, "they are kept in memory, in /dev/shm, which has 64 MiB")
    assert line(replace(READING, temporary=""), "temporary files").level is Level.FAILED
    found = line(replace(READING, open_files=1024), "open files")
    assert (found.level, found.text) == (Level.WARNING, "1024, which allows 512 connections")
    assert line(replace(READING, open_files=resource.RLIM_INFINITY), "open files").text.startswith("unlimited,")
    assert line(replace(READING, room=None), "memory").level is Level.WARNING


def test_the_limits_of_this_machine_are_read() -> None:
    reading = read_limits(read_settings(["--model-repository=/m", "--http-workers=3"], {}))
    assert reading.topology.http_workers == 3
    assert 0 < reading.cores <= reading.affinity
    assert reading.open_files != 0


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def test_a_taken_port_is_read_with_its_owner(taken: int) -> None:
    # Whoever has the port of HTTP would be asked who it is.
    (reading,) = read_ports({"metrics": Service("127.0.0.1", taken, "--metrics-port", "Metrics Service", False)})
    assert reading.failure == f"Socket '127.0.0.1:{taken}' already in use"
    assert reading.owner.endswith(f"(pid {os.getpid()})")


def test_a_free_port_is_read_and_left_free() -> None:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        port = listener.getsockname()[1]
    for _ in range(2):
        service = Service("127.0.0.1", port, "--metrics-port", "Metrics Service", False)
        assert read_ports({"metrics": service}) == [PortReading("metrics", "127.0.0.1", port, option=service.option)]


def test_a_running_server_is_recognised_and_is_no_failure() -> None:
    used = PortReading(
        "HTTP", "0.0.0.0", 8000, "already in use", "trident serve models (pid 9)", "triton 0.1.0", "--http-port"
    )
    (line,) = port_lines([used])
    assert line.level is Level.WARNING
    assert line.text == "0.0.0.0:8000 is that of a running server, triton 0.1.0 (trident serve models (pid 9))"
    assert line.cure.endswith("a second server needs --http-port")
