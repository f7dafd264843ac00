from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from tests.unit.core.observability.hardware.proc_files import Proc
from tests.waiting import until
from trident.core.observability.hardware import (
    CpuMeter,
    GpuMeter,
    GpuReading,
    HardwareGauges,
    HardwareReading,
    PinnedMemory,
)

FOREVER_MS = 3_600_000.0


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
    """Closes the gauges that a test has started."""
    gauges: list[HardwareGauges] = []

    def close_later(made: HardwareGauges) -> HardwareGauges:
        gauges.append(made)
        return made

    yield close_later
    for made in gauges:
        made.close()
    assert [thread for thread in threading.enumerate() if thread.name == "hardware-gauges"] == []


def test_start_reads_processors_and_pinned_memory_before_it_returns(
    meter: CpuMeter, closing: Callable[[HardwareGauges], HardwareGauges]
) -> None:
    pool = PinnedMemory(total=256, used=16)
    gauges = closing(HardwareGauges(interval_ms=FOREVER_MS, cpu=meter, pinned=lambda: pool))
    assert gauges.reading == HardwareReading()
    gauges.start()
    assert gauges.reading.cpu is not None
    assert gauges.reading.pinned == pool


def test_gauges_that_are_switched_off_are_not_read(closing: Callable[[HardwareGauges], HardwareGauges]) -> None:
    gauges = closing(HardwareGauges(interval_ms=FOREVER_MS))
    gauges.start()
    assert gauges.reading == HardwareReading(cpu=None, gpus=(), pinned=PinnedMemory(total=0, used=0))


def test_the_thread_polls_until_it_is_closed(
    meter: CpuMeter, proc: Proc, closing: Callable[[HardwareGauges], HardwareGauges]
) -> None:
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


def test_the_other_gauges_are_polled_without_nvml(
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


def test_close_without_start_does_nothing() -> None:
    HardwareGauges(interval_ms=FOREVER_MS).close()
