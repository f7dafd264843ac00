"""The gauges of the machine, from files as Linux writes them, and the thread that reads them."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from core.observability.gpu import GpuMeter, GpuReading
from core.observability.hardware import (
    CpuMeter,
    CpuReading,
    HardwareGauges,
    HardwareReading,
    PinnedMemory,
    cpu_ticks,
    memory_bytes,
)
from tests.waiting import until

FOREVER_MS = 3_600_000.0
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


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


@pytest.fixture
def meter(proc: Proc) -> CpuMeter:
    return CpuMeter(proc.stat, proc.meminfo)


@pytest.fixture
def closing() -> Iterator[Callable[[HardwareGauges], HardwareGauges]]:
    """Closes what a test has started."""
    gauges: list[HardwareGauges] = []

    def close_later(made: HardwareGauges) -> HardwareGauges:
        gauges.append(made)
        return made

    yield close_later
    for made in gauges:
        made.close()
    assert [thread for thread in threading.enumerate() if thread.name == "hardware-gauges"] == []


def utilization(reading: CpuReading | None) -> float:
    assert reading is not None
    return reading.utilization


def test_steal_is_busy_and_iowait_idle() -> None:
    assert cpu_ticks("cpu  1 2 4 8 16 32 64 128 256 512\ncpu0 0 0 0 0\n") == (1 + 2 + 4 + 32 + 64 + 128, 255)


def test_old_kernels_have_fewer_fields() -> None:
    assert cpu_ticks("cpu  1 2 4 8\n") == (7, 15)


@pytest.mark.parametrize("text", ["", "cpu\n", "cpu0 1 2 3 4\n", "cpu 1 2 3 x\n", "intr 1 2 3 4\n"])
def test_text_that_is_no_stat_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"stat|invalid literal"):
        cpu_ticks(text)


def test_used_memory_is_what_is_not_available() -> None:
    assert memory_bytes(MEMINFO) == (2000 * 1024, 500 * 1024)


@pytest.mark.parametrize("text", ["", "MemTotal: 5 kB\n", "MemTotal:\nMemAvailable: 5 kB\n", "MemTotal: x kB\n"])
def test_text_that_is_no_meminfo_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"meminfo|invalid literal"):
        memory_bytes(text)


def test_utilization_is_of_the_time_since_the_reading_before(meter: CpuMeter, proc: Proc) -> None:
    proc.ticks(1000, 0, 0, 0, 0, 0, 0, 0)
    first = meter.read()
    assert first == CpuReading(utilization=0.0, memory_total=2000 * 1024, memory_used=500 * 1024)
    proc.ticks(1030, 0, 0, 60, 0, 0, 0, 10)
    assert utilization(meter.read()) == 0.4
    proc.ticks(1030, 0, 0, 160, 0, 0, 0, 10)
    assert utilization(meter.read()) == 0.0


def test_a_reading_within_one_tick_keeps_the_value(meter: CpuMeter, proc: Proc) -> None:
    meter.read()
    proc.ticks(1, 0, 0, 3, 0, 0, 0, 0)
    assert utilization(meter.read()) == 0.25
    assert utilization(meter.read()) == 0.25


def test_counters_that_step_back_leave_utilization_in_its_bounds(meter: CpuMeter, proc: Proc) -> None:
    proc.ticks(0, 0, 0, 0, 50, 0, 0, 0)
    meter.read()
    proc.ticks(60, 0, 0, 0, 40, 0, 0, 0)
    assert utilization(meter.read()) == 1.0


def test_without_proc_there_is_one_warning(meter: CpuMeter, proc: Proc, caplog: pytest.LogCaptureFixture) -> None:
    proc.meminfo.unlink()
    assert meter.read() is None
    assert meter.read() is None
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("no CPU metrics: ")


def test_this_machine() -> None:
    if not Path("/proc/meminfo").exists():
        pytest.skip("not Linux")
    reading = CpuMeter().read()
    assert reading is not None
    assert 0 < reading.memory_used <= reading.memory_total


def test_values_are_there_when_start_returns(
    meter: CpuMeter, closing: Callable[[HardwareGauges], HardwareGauges]
) -> None:
    pool = PinnedMemory(total=256, used=16)
    gauges = closing(HardwareGauges(interval_ms=FOREVER_MS, cpu=meter, pinned=lambda: pool))
    assert gauges.reading == HardwareReading()
    gauges.start()
    assert gauges.reading.cpu is not None
    assert gauges.reading.pinned == pool


def test_what_is_not_wanted_is_not_read(closing: Callable[[HardwareGauges], HardwareGauges]) -> None:
    gauges = closing(HardwareGauges(interval_ms=FOREVER_MS))
    gauges.start()
    assert gauges.reading == HardwareReading(cpu=None, gpus=(), pinned=PinnedMemory(total=0, used=0))


def test_the_thread_polls_on(meter: CpuMeter, proc: Proc, closing: Callable[[HardwareGauges], HardwareGauges]) -> None:
    used = iter(range(1_000_000))
    gauges = closing(HardwareGauges(interval_ms=2, cpu=meter, pinned=lambda: PinnedMemory(used=next(used))))
    gauges.start()
    proc.ticks(75, 0, 0, 25, 0, 0, 0, 0)
    until(lambda: gauges.reading.cpu is not None and gauges.reading.cpu.utilization == 0.75)
    seen = gauges.reading.pinned.used
    until(lambda: gauges.reading.pinned.used > seen)


def test_gpus_are_opened_read_and_closed_on_the_thread(
    closing: Callable[[HardwareGauges], HardwareGauges],
) -> None:
    meter = CountingMeter()
    opened_on: list[str] = []

    def open_gpu() -> GpuMeter:
        opened_on.append(threading.current_thread().name)
        return meter

    gauges = closing(HardwareGauges(interval_ms=2, open_gpu=open_gpu))
    gauges.start()
    until(lambda: bool(gauges.reading.gpus) and (gauges.reading.gpus[0].energy or 0) > 2)
    gauges.close()
    assert opened_on == meter.closed_on == ["hardware-gauges"]


def test_without_nvml_the_rest_is_polled(
    meter: CpuMeter, proc: Proc, closing: Callable[[HardwareGauges], HardwareGauges]
) -> None:
    gauges = closing(HardwareGauges(interval_ms=2, cpu=meter, open_gpu=lambda: None))
    gauges.start()
    proc.ticks(1, 0, 0, 1, 0, 0, 0, 0)
    until(lambda: gauges.reading.cpu is not None and gauges.reading.cpu.utilization == 0.5)
    assert gauges.reading.gpus == ()


def test_close_does_not_wait_for_the_interval(closing: Callable[[HardwareGauges], HardwareGauges]) -> None:
    gauges = closing(HardwareGauges(interval_ms=FOREVER_MS))
    gauges.start()
    gauges.close()
    gauges.close()


def test_close_without_start_is_nothing() -> None:
    HardwareGauges(interval_ms=FOREVER_MS).close()
