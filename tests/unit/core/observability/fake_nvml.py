"""NVML without a driver."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any

UUIDS = ("GPU-aa11", "GPU-aa22", "GPU-bb33")
MIG = "MIG-41c8"
NOT_SUPPORTED, NOT_FOUND = 3, 6


class FakeNvml:
    """NVML with the GPUs of UUIDS. `codes` are the error codes of failing functions, `missing` the absent functions.

    GPU i has i + 1 times the values of the first; a handle is the GPU's number plus 1. MIG is an instance of the first
    GPU, with the values of a GPU 8. `cuda` is the newest version that the driver supports.
    """

    def __init__(self) -> None:
        self.uuids: Sequence[str] = UUIDS
        self.unit = 1  # of memory, in bytes
        self.driver, self.cuda = "550.54.15", 12040
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
                pointed(arguments[0]).value = len(self.uuids)
            case "nvmlSystemGetDriverVersion":
                arguments[0].value = self.driver.encode()
            case "nvmlSystemGetCudaDriverVersion_v2":
                pointed(arguments[0]).value = self.cuda
            case "nvmlDeviceGetHandleByIndex_v2":
                pointed(arguments[1]).value = arguments[0].value + 1
            case "nvmlDeviceGetHandleByUUID":
                if arguments[0].value.decode() != MIG:
                    return NOT_FOUND
                pointed(arguments[1]).value = 8
            case "nvmlDeviceGetUUID":
                arguments[1].value = self.uuids[arguments[0].value - 1].encode()
            case _:
                self._field(name, arguments[0].value, pointed(arguments[1]))
        return 0

    def _field(self, name: str, factor: int, value: Any) -> None:
        match name:
            case "nvmlDeviceGetUtilizationRates":
                value.gpu, value.memory = 25 * factor, 99
            case "nvmlDeviceGetMemoryInfo":
                value.total, value.free, value.used = (
                    each * self.unit for each in (80_000 * factor, 79_000, 1_000 * factor)
                )
            case "nvmlDeviceGetPowerUsage":
                value.value = 90_500 * factor
            case "nvmlDeviceGetPowerManagementLimit":
                value.value = 700_000 * factor
            case "nvmlDeviceGetTotalEnergyConsumption":
                value.value = self.millijoules


def pointed(reference: Any) -> Any:
    """The object that a `byref` argument points to."""
    return reference._obj


def no_library() -> FakeNvml:
    raise OSError("libnvidia-ml.so.1: cannot open shared object file")
