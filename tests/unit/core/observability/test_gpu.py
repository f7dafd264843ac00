"""GPUs through NVML: a library made up for the test, and the real one where there is a GPU."""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable
from functools import partial
from typing import Any

import pytest

from core.observability.gpu import Gpu, GpuMeter, GpuReading, gpu_memory, gpu_uuids, load_library, visible_gpus

UUIDS = ("GPU-aa11", "GPU-aa22", "GPU-bb33")
NOT_SUPPORTED = 3


class FakeNvml:
    """NVML with the GPUs of UUIDS. `codes` says which functions fail, `missing` which the library does not have.

    GPU i has i + 1 times the values of the first; a handle is the GPU's number plus 1.
    """

    def __init__(self) -> None:
        self.codes: dict[str, int] = {}
        self.missing: set[str] = set()
        self.millijoules = 5_000_000
        self.sessions = 0
        self.calls: list[str] = []

    def __getattr__(self, name: str, /) -> Callable[..., int]:
        if name in self.missing:
            raise AttributeError(name)
        return partial(self._call, name)

    def _call(self, name: str, *arguments: Any) -> int:
        self.calls.append(name)
        if code := self.codes.get(name, 0):
            return code
        match name:
            case "nvmlInit_v2":
                self.sessions += 1
            case "nvmlShutdown":
                self.sessions -= 1
            case "nvmlDeviceGetCount_v2":
                pointed(arguments[0]).value = len(UUIDS)
            case "nvmlDeviceGetHandleByIndex_v2":
                pointed(arguments[1]).value = arguments[0].value + 1
            case "nvmlDeviceGetUUID":
                arguments[1].value = UUIDS[arguments[0].value - 1].encode()
            case _:
                self._field(name, arguments[0].value, pointed(arguments[1]))
        return 0

    def _field(self, name: str, factor: int, value: Any) -> None:
        match name:
            case "nvmlDeviceGetUtilizationRates":
                value.gpu, value.memory = 25 * factor, 99
            case "nvmlDeviceGetMemoryInfo":
                value.total, value.free, value.used = 80_000 * factor, 79_000, 1_000 * factor
            case "nvmlDeviceGetPowerUsage":
                value.value = 90_500 * factor
            case "nvmlDeviceGetPowerManagementLimit":
                value.value = 700_000 * factor
            case "nvmlDeviceGetTotalEnergyConsumption":
                value.value = self.millijoules


def pointed(reference: Any) -> Any:
    """What a `byref` argument points to."""
    return reference._obj


@pytest.fixture
def library() -> FakeNvml:
    return FakeNvml()


def opened(library: FakeNvml, visible: str | None = "0") -> GpuMeter:
    meter = GpuMeter.open(visible, lambda: library)
    assert meter is not None
    return meter


def no_library() -> FakeNvml:
    raise OSError("libnvidia-ml.so.1: cannot open shared object file")


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


def test_a_field_that_failed_three_times_in_a_row_is_left_alone(
    library: FakeNvml, caplog: pytest.LogCaptureFixture
) -> None:
    meter = opened(library)
    library.codes["nvmlDeviceGetPowerUsage"] = NOT_SUPPORTED
    for _ in range(5):
        (reading,) = meter.read()
        assert reading.power_usage is None
        assert reading.power_limit == 700.0
    assert library.calls.count("nvmlDeviceGetPowerUsage") == 3
    assert caplog.messages == [
        "power usage of GPU-aa11 is not read any more: nvmlDeviceGetPowerUsage: not supported (3)"
    ]


def test_a_success_in_between_starts_the_count_again(library: FakeNvml) -> None:
    meter = opened(library)
    for code in (999, 999, 0, 999, 999, 0):
        library.codes["nvmlDeviceGetMemoryInfo"] = code
        (reading,) = meter.read()
        assert reading.memory_total == (None if code else 80_000)
        assert reading.memory_used == (None if code else 1_000)


def test_a_library_too_old_for_a_field_does_without_it(library: FakeNvml) -> None:
    library.missing.add("nvmlDeviceGetTotalEnergyConsumption")
    (reading,) = opened(library).read()
    assert reading.energy is None
    assert reading.utilization == 0.25


def test_without_the_library_there_is_nothing_to_see(caplog: pytest.LogCaptureFixture) -> None:
    with caplog.at_level(logging.INFO):
        assert GpuMeter.open(load=no_library) is None
    assert [(record.levelname, record.message) for record in caplog.records] == [
        ("INFO", "no GPU metrics: libnvidia-ml.so.1: cannot open shared object file")
    ]
    assert gpu_uuids(load=no_library) == ()


@pytest.mark.parametrize("function", ["nvmlInit_v2", "nvmlDeviceGetCount_v2"])
def test_a_driver_that_does_not_work_is_one_warning(
    library: FakeNvml, function: str, caplog: pytest.LogCaptureFixture
) -> None:
    library.codes[function] = 18
    assert GpuMeter.open(load=lambda: library) is None
    assert caplog.messages == [f"no GPU metrics: {function}: driver and library versions differ (18)"]
    assert gpu_uuids(load=lambda: library) == ()
    assert library.sessions == 0


def test_a_gpu_that_may_not_be_looked_at_keeps_its_number(library: FakeNvml, caplog: pytest.LogCaptureFixture) -> None:
    library.codes["nvmlDeviceGetUUID"] = 4
    assert gpu_uuids("0,1", lambda: library) == ("", "")
    assert opened(library).read() == ()
    assert "no metrics for GPU 0: nvmlDeviceGetUUID: no permission (4)" in caplog.messages


def test_uuids_are_those_of_the_visible_gpus(library: FakeNvml) -> None:
    assert gpu_uuids(load=lambda: library) == UUIDS
    assert gpu_uuids("2,0", lambda: library) == ("GPU-bb33", "GPU-aa11")
    assert library.sessions == 0


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
def test_visible_gpus_as_cuda_reads_them(visible: str | None, numbers: list[int]) -> None:
    gpus = [Gpu(uuid, ctypes.c_void_p(number)) for number, uuid in enumerate(UUIDS)]
    assert visible_gpus(gpus, visible) == [gpus[number] for number in numbers]


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


def test_memory_goes_by_the_number_of_the_gpu(library: FakeNvml) -> None:
    assert gpu_memory("2,0", lambda: library) == ((240_000, 3_000), (80_000, 1_000))
    library.codes["nvmlDeviceGetMemoryInfo"] = NOT_SUPPORTED
    assert gpu_memory("0,1", lambda: library) == (None, None)
    assert library.sessions == 0
    assert gpu_memory(load=no_library) == ()
