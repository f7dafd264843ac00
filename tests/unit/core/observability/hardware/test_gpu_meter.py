from __future__ import annotations

import logging

import pytest

from tests.unit.core.observability.hardware.fake_nvml import NOT_SUPPORTED, FakeNvml, no_library
from trident.core.observability.hardware import GpuMeter, GpuReading, gpu_uuids
from trident.core.observability.nvml import load_library


@pytest.fixture
def library() -> FakeNvml:
    return FakeNvml()


def opened(library: FakeNvml, visible: str | None = "0") -> GpuMeter:
    meter = GpuMeter.open(visible, lambda: library)
    assert meter is not None
    return meter


def test_every_field_is_read_in_the_units_of_the_page(library: FakeNvml) -> None:
    first, second, third = opened(library, None).read()
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


def test_energy_counts_from_the_first_reading(library: FakeNvml) -> None:
    meter = opened(library)
    meter.read()
    library.millijoules += 1_500
    assert [reading.energy for reading in meter.read()] == [1.5]


def test_closing_ends_the_session(library: FakeNvml) -> None:
    meter = opened(library)
    assert library.sessions == 1
    meter.close()
    assert library.sessions == 0


def test_a_field_is_no_longer_read_after_three_failures_in_a_row(
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


def test_a_success_resets_the_count_of_failures(library: FakeNvml) -> None:
    meter = opened(library)
    for code in (999, 999, 0, 999, 999, 0):
        library.codes["nvmlDeviceGetMemoryInfo"] = code
        (reading,) = meter.read()
        assert reading.memory_total == (None if code else 80_000)
        assert reading.memory_used == (None if code else 1_000)


def test_a_field_that_an_old_library_lacks_is_none(library: FakeNvml) -> None:
    library.missing.add("nvmlDeviceGetTotalEnergyConsumption")
    (reading,) = opened(library).read()
    assert reading.energy is None
    assert reading.utilization == 0.25


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


def test_a_gpu_without_permission_keeps_its_number(library: FakeNvml, caplog: pytest.LogCaptureFixture) -> None:
    library.codes["nvmlDeviceGetUUID"] = 4
    assert gpu_uuids("0,1", lambda: library) == ("", "")
    assert opened(library).read() == ()
    assert "no metrics for GPU 0: nvmlDeviceGetUUID: no permission (4)" in caplog.messages


@pytest.mark.gpu
def test_the_real_library_reports_the_real_gpu() -> None:
    try:
        load_library()
    except OSError:
        pytest.skip("no NVML here")
    meter = GpuMeter.open()
    if meter is None:
        pytest.skip("NVML does not work here")
    try:
        readings = meter.read()
    finally:
        meter.close()
    assert readings
    assert [reading.uuid for reading in readings] == [uuid for uuid in gpu_uuids() if uuid]
    for reading in readings:
        assert reading.uuid.startswith("GPU-")
        assert reading.utilization is None or 0 <= reading.utilization <= 1
        assert reading.memory_total is not None
        assert reading.memory_used is not None
        assert 0 <= reading.memory_used <= reading.memory_total
