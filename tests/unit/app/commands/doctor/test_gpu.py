from __future__ import annotations

import pytest

from trident.app.commands.doctor.machine import GpuReading, gpu_lines
from trident.app.commands.doctor.report import Level, Line
from trident.core.backends.registry import DeviceSupport, ProviderState
from trident.core.observability.hardware import DriverReading

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


def test_the_linker_names_the_library_that_is_missing() -> None:
    assert "libcublas.so.12" in lines(DRIVER, 1, BROKEN)[CUDA].text


def test_an_optional_provider_may_be_absent() -> None:
    name = "OpenVINOExecutionProvider"
    assert lines(DRIVER, 1, ProviderState(name, False), ("m",))[name].level is Level.OK


def test_a_driver_whose_gpus_cannot_be_used_is_a_warning() -> None:
    found = lines(DRIVER, 0, LOADS)["driver"]
    assert found.level is Level.WARNING
    assert "CUDA_VISIBLE_DEVICES" in found.cure


def test_gpus_without_their_state_are_a_warning() -> None:
    assert lines(NO_DRIVER, 2, LOADS)["driver"].level is Level.WARNING


def test_a_backend_without_its_framework_fails() -> None:
    (_, line) = gpu_lines(GpuReading(DRIVER, (0,), {"fast": "No module named 'fast'"}), ())
    assert (line.check, line.level) == ("backend fast", Level.FAILED)


def test_many_models_that_ask_are_counted() -> None:
    asked_by = tuple(f"m{number}" for number in range(7))
    assert lines(NO_DRIVER, 0, ABSENT, asked_by)["driver"].text.endswith("m0, m1, m2, m3, m4 and 2 more")
