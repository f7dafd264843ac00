from __future__ import annotations

import ctypes

import pytest

from tests.unit.core.observability.hardware.fake_nvml import NOT_SUPPORTED, UUIDS, FakeNvml, no_library
from trident.core.observability.hardware import DriverReading, gpu_memory, gpu_uuids, read_driver, visible_gpus
from trident.core.observability.nvml import Gpu


@pytest.fixture
def library() -> FakeNvml:
    return FakeNvml()


def test_uuids_follow_the_order_of_the_visible_gpus(library: FakeNvml) -> None:
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
def test_visible_gpus_are_chosen_as_cuda_chooses_them(visible: str | None, numbers: list[int]) -> None:
    gpus = [Gpu(uuid, ctypes.c_void_p(number)) for number, uuid in enumerate(UUIDS)]
    assert visible_gpus(gpus, visible) == [gpus[number] for number in numbers]


def test_memory_follows_the_order_of_the_visible_gpus(library: FakeNvml) -> None:
    assert gpu_memory("2,0", lambda: library) == ((240_000, 3_000), (80_000, 1_000))
    library.codes["nvmlDeviceGetMemoryInfo"] = NOT_SUPPORTED
    assert gpu_memory("0,1", lambda: library) == (None, None)
    assert library.sessions == 0
    assert gpu_memory(load=no_library) == ()


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
