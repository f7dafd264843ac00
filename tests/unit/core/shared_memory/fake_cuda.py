"""The driver's library on memory of the CPU."""

from __future__ import annotations

import ctypes
from collections.abc import Callable
from typing import Any

from core.shared_memory.cuda_driver import IpcHandle

DEVICES = 2


class FakeCuda:
    """Has allocations of other processes by their handles. `failing` is the call that fails, `calls` are all.

    Checks that each call which needs a context has one.
    """

    def __init__(self) -> None:
        self.allocations: dict[bytes, Any] = {}
        self.opened: list[int] = []
        self.calls: list[str] = []
        self.failing = ""
        self.devices = DEVICES
        self._current: list[int] = []

    def allocate(self, content: bytes) -> bytes:
        """The handle of a new allocation."""
        handle = bytes([len(self.allocations) + 1]) + bytes(62) + b"\xff"
        self.allocations[handle] = ctypes.create_string_buffer(content, len(content))
        return handle

    def content(self, handle: bytes) -> bytes:
        found: bytes = self.allocations[handle].raw
        return found

    def __getitem__(self, name: str) -> Callable[..., int]:
        def call(*arguments: Any) -> int:
            self.calls.append(name)
            if name == self.failing:
                return 700
            status: int = getattr(self, f"_{name}")(*arguments)
            return status

        return call

    def _cuInit(self, flags: Any) -> int:
        return 0

    def _cuDeviceGetCount(self, count: Any) -> int:
        count._obj.value = self.devices
        return 0

    def _cuDeviceGet(self, device: Any, number: Any) -> int:
        device._obj.value = number.value
        return 0 if number.value < self.devices else 101

    def _cuDevicePrimaryCtxRetain(self, context: Any, device: Any) -> int:
        context._obj.value = 1000 + device.value
        return 0

    def _cuCtxPushCurrent_v2(self, context: Any) -> int:
        self._current.append(context.value)
        return 0

    def _cuCtxPopCurrent_v2(self, context: Any) -> int:
        context._obj.value = self._current.pop()
        return 0

    def _cuIpcOpenMemHandle_v2(self, address: Any, handle: IpcHandle, flags: Any) -> int:
        assert self._current
        found = self.allocations.get(bytes(handle))
        if found is None:
            return 1
        address._obj.value = ctypes.addressof(found)
        self.opened.append(address._obj.value)
        return 0

    def _cuIpcCloseMemHandle(self, address: Any) -> int:
        assert self._current
        self.opened.remove(address.value)
        return 0

    def _cuMemGetAddressRange_v2(self, base: Any, size: Any, address: Any) -> int:
        assert self._current
        for allocation in self.allocations.values():
            if ctypes.addressof(allocation) == address.value:
                base._obj.value, size._obj.value = address.value, len(allocation)
                return 0
        return 1

    def _cuMemcpyDtoH_v2(self, host: Any, address: Any, size: Any) -> int:
        assert self._current
        ctypes.memmove(host.value, address.value, size.value)
        return 0

    def _cuMemcpyHtoD_v2(self, address: Any, host: Any, size: Any) -> int:
        assert self._current
        ctypes.memmove(address.value, host.value, size.value)
        return 0

    def _cuStreamSynchronize(self, stream: Any) -> int:
        assert self._current
        return 0
