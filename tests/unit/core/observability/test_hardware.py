"""Gauges of the machine: CPU, memory, GPUs."""

from __future__ import annotations

import ctypes
import logging
import os
import threading
from collections.abc import Callable
from contextlib import closing
from pathlib import Path

import pytest

from tests.unit.core.observability.fake_nvml import MIG, NOT_SUPPORTED, UUIDS, FakeNvml, no_library
from tests.waiting import until
from trident.core.observability.hardware import (
    CpuMeter,
    CpuReading,
    DriverReading,
    Gpu,
    GpuMeter,
    GpuReading,
    HardwareGauges,
    MemoryState,
    cpu_ticks,
    gpu_memory,
    gpu_uuids,
    host_memory,
    memory_bytes,
    read_driver,
    resident_bytes,
    visible_gpus,
)

MEMINFO = "MemTotal:       2000 kB\nMemFree:        100 kB\nMemAvailable:   1500 kB\nHugePages_Total:    0\n"


class Proc:
    """A folder with `stat` and `meminfo`."""

    def __init__(self, folder: Path) -> None:
        self.stat = folder / "stat"
        self.meminfo = folder / "meminfo"
        self.meminfo.write_text(MEMINFO)
        self.ticks(0, 0, 0, 0, 0, 0, 0, 0)

    def ticks(self, *fields: int) -> None:
        """user nice system idle iowait irq softirq steal, since boot."""
        self.stat.write_text(f"cpu  {' '.join(map(str, fields))} 7 7\ncpu0 9 9 9 9 9 9 9 9 9 9\nintr 5\n")


def test_counts_of_proc_are_read_as_by_its_documentation() -> None:
    assert memory_bytes(MEMINFO) == (2000 * 1024, 500 * 1024)
    assert cpu_ticks("cpu  1 2 4 8 16 32 64 128 256 512\ncpu0 0 0 0 0\n") == (1 + 2 + 4 + 32 + 64 + 128, 255)
    assert cpu_ticks("cpu  1 2 4 8\n") == (7, 15)


@pytest.mark.parametrize(
    ("read", "text"),
    [
        *(
            (memory_bytes, text)
            for text in ("", "MemTotal: 5 kB\n", "MemTotal:\nMemAvailable: 5 kB\n", "MemTotal: x kB\n")
        ),
        *((cpu_ticks, text) for text in ("", "cpu\n", "cpu0 1 2 3 4\n", "cpu 1 2 3 x\n", "intr 1 2 3 4\n")),
    ],
)
def test_a_malformed_file_of_proc_is_refused(read: Callable[[str], object], text: str) -> None:
    with pytest.raises(ValueError, match=r"meminfo|stat|invalid literal"):
        read(text)


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


@pytest.fixture
def meter(proc: Proc) -> CpuMeter:
    return CpuMeter(proc.stat, proc.meminfo)


def utilization(reading: CpuReading | None) -> float:
    assert reading is not None
    return reading.utilization


def test_utilization_is_measured_since_the_previous_reading(meter: CpuMeter, proc: Proc) -> None:
    proc.ticks(1000, 0, 0, 0, 0, 0, 0, 0)
    first = meter.read()
    assert first == CpuReading(utilization=0.0, memory_total=2000 * 1024, memory_used=500 * 1024)
    proc.ticks(1030, 0, 0, 60, 0, 0, 0, 10)
    assert utilization(meter.read()) == 0.4
    proc.ticks(1030, 0, 0, 160, 0, 0, 0, 10)
    assert utilization(meter.read()) == 0.0


def test_an_unreadable_proc_gives_one_warning(meter: CpuMeter, proc: Proc, caplog: pytest.LogCaptureFixture) -> None:
    proc.meminfo.unlink()
    assert meter.read() is None
    assert meter.read() is None
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("no CPU metrics: ")


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

    def room(self) -> MemoryState | None:
        return host_memory(self.cgroups, self.memberships, self.meminfo)

    def _write(self, path: str, limit: str, limit_value: object, usage: str, usage_value: int, stat: str) -> None:
        folder = self.cgroups / path.lstrip("/")
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"memory.{limit}").write_text(f"{limit_value}\n")
        (folder / f"memory.{usage}").write_text(f"{usage_value}\n")
        (folder / "memory.stat").write_text(stat)


@pytest.fixture
def host(tmp_path: Path) -> Host:
    return Host(tmp_path)


@pytest.mark.parametrize(
    ("memberships", "version", "cgroups", "expected"),
    [
        # Inactive file pages count as free.
        ("0::/", 2, {"/": (2 * GIB, 1500 * MIB, 500 * MIB)}, MemoryState(2 * GIB, 1048 * MIB)),
        # An ancestor may have the tighter limit, and the machine a tighter one than both.
        ("0::/a/b", 2, {"/a": (3 * GIB, 2900 * MIB), "/a/b": (2 * GIB, GIB)}, MemoryState(3 * GIB, 172 * MIB)),
        ("0::/", 2, {"/": (7 * GIB, 0)}, MemoryState(8 * GIB, 6 * GIB)),
        # The root counts in a container that does not see its own path.
        ("4:memory:/docker/abc", 1, {"": (GIB, 700 * MIB)}, MemoryState(GIB, 324 * MIB)),
    ],
)
def test_tightest_limit_of_the_cgroups_counts(
    host: Host, memberships: str, version: int, cgroups: dict[str, tuple[int, ...]], expected: MemoryState
) -> None:
    host.memberships.write_text(f"{memberships}\n")
    for path, numbers in cgroups.items():
        (host.version_2 if version == 2 else host.version_1)(path, *numbers)
    assert host.room() == expected


def test_the_limit_of_version_1_is_found(host: Host) -> None:
    host.memberships.write_text("9:name=systemd:/\n4:cpu,memory:/docker/abc\n0::/\n")
    host.version_1("", 9223372036854771712, 7 * GIB)
    assert host.room() == MemoryState(8 * GIB, 6 * GIB)
    host.version_1("/docker/abc", GIB, 700 * MIB, inactive_file=100 * MIB)
    assert host.room() == MemoryState(GIB, 424 * MIB)


def test_host_memory_is_unknown_without_proc(tmp_path: Path) -> None:
    nowhere = tmp_path / "none"
    assert host_memory(nowhere, nowhere, nowhere) is None
    assert resident_bytes(proc=nowhere) == 0
    assert resident_bytes(os.getpid()) > 0


@pytest.fixture
def library() -> FakeNvml:
    return FakeNvml()


def opened(library: FakeNvml, visible: str | None = "0") -> GpuMeter:
    meter = GpuMeter.open(visible, lambda: library)
    assert meter is not None
    return meter


def test_every_field_is_read_in_the_units_of_the_page(library: FakeNvml) -> None:
    meter = opened(library, None)
    first, second, third = meter.read()
    assert first == GpuReading(
        uuid="GPU-aa11",
        utilization=0.25,
        memory_total=80_000,
        memory_used=1_000,
        power_usage=90.5,
        power_limit=700.0,
        energy=0.0,
    )
    assert (second.uuid, second.utilization, second.memory_used) == ("GPU-aa22", 0.5, 2_000)
    assert third.uuid == "GPU-bb33"
    library.millijoules += 1_500
    assert [reading.energy for reading in meter.read()] == [1.5] * 3


def test_field_is_not_read_after_three_consecutive_failures(
    library: FakeNvml, caplog: pytest.LogCaptureFixture
) -> None:
    meter = opened(library)
    library.codes["nvmlDeviceGetPowerUsage"] = NOT_SUPPORTED
    for _ in range(5):
        (reading,) = meter.read()
        assert reading.power_usage is None
        assert reading.power_limit == 700.0
    assert library.calls.count("nvmlDeviceGetPowerUsage") == 3
    assert caplog.messages == ["power usage of GPU-aa11 is no longer read: nvmlDeviceGetPowerUsage: not supported (3)"]
    library.missing.add("nvmlDeviceGetTotalEnergyConsumption")  # as in an old library
    (reading,) = meter.read()
    assert (reading.energy, reading.utilization, library.sessions) == (None, 0.25, 1)
    meter.close()
    assert library.sessions == 0


def test_a_missing_library_gives_no_meter_and_no_uuids(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert GpuMeter.open(load=no_library) is None
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("INFO", "no GPU metrics: libnvidia-ml.so.1: cannot open shared object file")
    ]
    assert gpu_uuids(load=no_library) == ()


@pytest.mark.parametrize("function", ["nvmlInit_v2", "nvmlDeviceGetCount_v2"])
def test_a_broken_driver_gives_one_warning(library: FakeNvml, function: str, caplog: pytest.LogCaptureFixture) -> None:
    library.codes[function] = 18
    assert GpuMeter.open(load=lambda: library) is None
    assert caplog.messages == [f"no GPU metrics: {function}: driver and library versions differ (18)"]
    assert gpu_uuids(load=lambda: library) == ()
    assert library.sessions == 0


def test_inaccessible_gpu_does_not_change_the_numbering(library: FakeNvml, caplog: pytest.LogCaptureFixture) -> None:
    library.codes["nvmlDeviceGetUUID"] = 4
    assert gpu_uuids("0,1", lambda: library) == ("", "")
    assert opened(library).read() == ()
    assert "no metrics for GPU 0: nvmlDeviceGetUUID: no permission (4)" in caplog.messages


def test_a_uuid_and_the_memory_of_each_visible_gpu(library: FakeNvml) -> None:
    assert gpu_uuids(load=lambda: library) == UUIDS
    assert gpu_uuids("2,0", lambda: library) == ("GPU-bb33", "GPU-aa11")
    assert library.sessions == 0
    assert gpu_memory("2,0", lambda: library) == ((240_000, 3_000), (80_000, 1_000))
    assert gpu_memory(f"{MIG},1", lambda: library) == ((640_000, 8_000), (160_000, 2_000))
    library.codes["nvmlDeviceGetMemoryInfo"] = NOT_SUPPORTED
    assert gpu_memory("0,1", lambda: library) == (None, None)
    assert library.sessions == 0
    assert gpu_memory(load=no_library) == ()


@pytest.mark.parametrize(
    ("visible", "numbers"),
    [
        (None, [0, 1, 2]),
        ("", []),
        ("1", [1]),
        (" 2 , 0 ", [2, 0]),
        ("GPU-bb", [2]),
        ("GPU-aa22,0", [1, 0]),
        ("GPU-aa", []),
        ("0,-1,1", [0]),
        ("0,3,1", [0]),
        ("0,,1", [0]),
        ("MIG-aa11", []),
    ],
)
def test_visible_gpus_are_chosen_as_cuda_chooses_them(visible: str | None, numbers: list[int]) -> None:
    gpus = [Gpu(uuid, ctypes.c_void_p(number)) for number, uuid in enumerate(UUIDS)]
    assert visible_gpus(gpus, visible) == [gpus[number] for number in numbers]


def test_the_driver_is_read_with_the_memory_of_the_visible_gpus(library: FakeNvml) -> None:
    assert read_driver("1,0", lambda: library) == DriverReading("550.54.15", "12.4", (160_000, 80_000))
    library.codes["nvmlDeviceGetMemoryInfo"] = NOT_SUPPORTED
    assert read_driver("0", lambda: library) == DriverReading("550.54.15", "12.4", (0,))
    assert library.sessions == 0


def test_a_driver_that_cannot_be_read_gives_the_reason(library: FakeNvml) -> None:
    assert read_driver(load=no_library) == "libnvidia-ml.so.1: cannot open shared object file"
    library.codes["nvmlSystemGetDriverVersion"] = 15
    assert read_driver(load=lambda: library) == "nvmlSystemGetDriverVersion: GPU is lost (15)"
    assert library.sessions == 0


class CountingMeter(GpuMeter):
    """One GPU whose energy is the number of readings."""

    def __init__(self) -> None:
        self.readings = 0
        self.closed_on: list[str] = []

    def read(self) -> tuple[GpuReading, ...]:
        self.readings += 1
        return (GpuReading(uuid="GPU-1", energy=float(self.readings)),)

    def close(self) -> None:
        self.closed_on.append(threading.current_thread().name)


def test_the_thread_polls_until_it_is_closed(meter: CpuMeter, proc: Proc) -> None:
    with closing(HardwareGauges(interval_ms=2, cpu=meter)) as gauges:
        gauges.start()
        proc.ticks(75, 0, 0, 25, 0, 0, 0, 0)
        until(lambda: gauges.reading.cpu is not None and gauges.reading.cpu.utilization == 0.75)
        proc.ticks(75, 0, 0, 75, 0, 0, 0, 0)
        until(lambda: gauges.reading.cpu is not None and gauges.reading.cpu.utilization == 0)


def test_gpus_are_opened_read_and_closed_on_the_thread() -> None:
    meter = CountingMeter()
    opened_on: list[str] = []

    def open_gpu() -> GpuMeter:
        opened_on.append(threading.current_thread().name)
        return meter

    with closing(HardwareGauges(interval_ms=2, open_gpu=open_gpu)) as gauges:
        gauges.start()
        until(lambda: bool(gauges.reading.gpus) and (gauges.reading.gpus[0].energy or 0) > 2)
    assert opened_on == meter.closed_on == ["hardware-gauges"]
    assert [thread for thread in threading.enumerate() if thread.name == "hardware-gauges"] == []
