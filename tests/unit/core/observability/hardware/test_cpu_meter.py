from __future__ import annotations

from pathlib import Path

import pytest

from tests.unit.core.observability.hardware.proc_files import Proc
from trident.core.observability.hardware import CpuMeter, CpuReading, cpu_ticks


@pytest.fixture
def proc(tmp_path: Path) -> Proc:
    return Proc(tmp_path)


@pytest.fixture
def meter(proc: Proc) -> CpuMeter:
    return CpuMeter(proc.stat, proc.meminfo)


def utilization(reading: CpuReading | None) -> float:
    assert reading is not None
    return reading.utilization


def test_steal_counts_as_busy_and_iowait_as_idle() -> None:
    assert cpu_ticks("cpu  1 2 4 8 16 32 64 128 256 512\ncpu0 0 0 0 0\n") == (1 + 2 + 4 + 32 + 64 + 128, 255)


def test_the_fewer_fields_of_old_kernels_are_read() -> None:
    assert cpu_ticks("cpu  1 2 4 8\n") == (7, 15)


@pytest.mark.parametrize("text", ["", "cpu\n", "cpu0 1 2 3 4\n", "cpu 1 2 3 x\n", "intr 1 2 3 4\n"])
def test_a_malformed_stat_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"stat|invalid literal"):
        cpu_ticks(text)


def test_utilization_is_measured_since_the_previous_reading(meter: CpuMeter, proc: Proc) -> None:
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


def test_utilization_stays_in_its_bounds_when_counters_decrease(meter: CpuMeter, proc: Proc) -> None:
    proc.ticks(0, 0, 0, 0, 50, 0, 0, 0)
    meter.read()
    proc.ticks(60, 0, 0, 0, 40, 0, 0, 0)
    assert utilization(meter.read()) == 1.0


def test_an_unreadable_proc_gives_one_warning(meter: CpuMeter, proc: Proc, caplog: pytest.LogCaptureFixture) -> None:
    proc.meminfo.unlink()
    assert meter.read() is None
    assert meter.read() is None
    assert len(caplog.messages) == 1
    assert caplog.messages[0].startswith("no CPU metrics: ")


def test_the_meter_reads_this_machine() -> None:
    if not Path("/proc/meminfo").exists():
        pytest.skip("not Linux")
    reading = CpuMeter().read()
    assert reading is not None
    assert 0 < reading.memory_used <= reading.memory_total
