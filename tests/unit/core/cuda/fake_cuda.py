"""The driver's library on memory of the CPU."""

from __future__ import annotations

import ctypes
import threading
from collections.abc import Callable
from typing import Any

from trident.core.cuda import POISON, IpcHandle

DEVICES = 2

# What was begun on each stream and has not run yet, by the stream's handle.
STREAMS: dict[int, list[Callable[[], None]]] = {}


def run_stream(handle: int) -> None:
    """Execute the pending operations of a stream."""
    begun, STREAMS[handle] = STREAMS[handle], []
    for each in begun:
        each()


class FakeCuda:
    """Has allocations of other processes by their handles. `failing` is the call that fails, `calls` are all.

    `failures` are the statuses of calls. After one of POISON all calls have it, in this process: the context is lost.

    Checks that each call which needs a context has one. Copies on a stream are made when it is waited for, as late as
    on a GPU. `memory` has the blocks on the devices, `limit` is how many bytes one may have, `pinned` are the ranges
    of pinned memory, `capabilities` are those of the devices, `open_streams` and `open_events` what was not destroyed.
    """

    def __init__(self) -> None:
        self.allocations: dict[bytes, Any] = {}
        self.opened: list[int] = []
        self.calls: list[str] = []
        self.failing = ""
        self.failures: dict[str, int] = {}
        self._lost = 0
        self.devices = DEVICES
        self.capabilities = [(9, 0)] * DEVICES
        self.limit = 1 << 30
        self.memory: dict[int, Any] = {}
        self.pinned: dict[int, int] = {}
        self.open_streams: dict[int, int] = {}
        self.open_events: dict[int, int] = {}
        self._events: dict[int, int] = {}
        self._handles = iter(range(1, 1 << 30))
        self._contexts = threading.local()

    @property
    def _current(self) -> list[int]:
        """The contexts of this thread."""
        found: list[int] | None = getattr(self._contexts, "stack", None)
        if found is None:
            found = self._contexts.stack = []
        return found

    def allocate(self, content: bytes) -> bytes:
        """The handle of a new allocation."""
        handle = bytes([len(self.allocations) + 1]) + bytes(62) + b"\xff"
        # As the driver aligns them.
        whole = ctypes.create_string_buffer(len(content) + 256)
        start = -ctypes.addressof(whole) % 256
        block = self.allocations[handle] = (ctypes.c_char * len(content)).from_buffer(whole, start)
        block.raw = content
        return handle

    def content(self, handle: bytes) -> bytes:
        found: bytes = self.allocations[handle].raw
        return found

    def forget_streams_but(self, count: int) -> None:
        """As the end of a process does with what was not destroyed; the first `count` stay, with their events."""
        for handle in list(self.open_streams)[count:]:
            del STREAMS[handle], self.open_streams[handle]
        for handle in list(self.open_events)[count:]:
            del self.open_events[handle]

    def __getitem__(self, name: str) -> Callable[..., int]:
        method = getattr(self, f"_{name}")

        def call(*arguments: Any) -> int:
            self.calls.append(name)
            if name == self.failing:
                return 700
            failure = self._lost or self.failures.get(name, 0)
            if failure:
                self._lost = failure if failure in POISON else 0
                return failure
            status: int = method(*arguments)
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

    def _cuDeviceGetAttribute(self, value: Any, attribute: Any, device: Any) -> int:
        value._obj.value = self.capabilities[device.value][attribute.value - 75]
        return 0

    def _cuMemAlloc_v2(self, address: Any, size: Any) -> int:
        assert self._current
        if size.value > self.limit:
            return 2
        block = ctypes.create_string_buffer(size.value)
        address._obj.value = ctypes.addressof(block)
        self.memory[address._obj.value] = block
        return 0

    def _cuMemFree_v2(self, address: Any) -> int:
        assert self._current
        del self.memory[address.value]
        return 0

    def _cuMemHostRegister_v2(self, address: Any, size: Any, flags: Any) -> int:
        assert self._current
        if size.value > self.limit:
            return 2
        self.pinned[address.value] = size.value
        return 0

    def _cuMemHostUnregister(self, address: Any) -> int:
        del self.pinned[address.value]
        return 0

    def _cuCtxGetStreamPriorityRange(self, lowest: Any, highest: Any) -> int:
        lowest._obj.value, highest._obj.value = 0, -5
        return 0

    def _cuStreamCreateWithPriority(self, stream: Any, flags: Any, priority: Any) -> int:
        assert self._current
        stream._obj.value = next(self._handles) + (id(self) << 31)
        STREAMS[stream._obj.value] = []
        self.open_streams[stream._obj.value] = priority.value
        return 0

    def _cuStreamDestroy_v2(self, stream: Any) -> int:
        del STREAMS[stream.value], self.open_streams[stream.value]
        return 0

    def _cuEventCreate(self, event: Any, flags: Any) -> int:
        event._obj.value = next(self._handles)
        self.open_events[event._obj.value] = flags.value
        return 0

    def _cuEventDestroy_v2(self, event: Any) -> int:
        del self.open_events[event.value]
        return 0

    def _cuEventRecord(self, event: Any, stream: Any) -> int:
        self._events[event.value] = stream.value
        return 0

    def _cuEventSynchronize(self, event: Any) -> int:
        run_stream(self._events[event.value])
        return 0

    def _cuMemcpyHtoDAsync_v2(self, address: Any, host: Any, size: Any, stream: Any) -> int:
        return self._begin(address.value, host.value, size.value, stream)

    def _cuMemcpyDtoHAsync_v2(self, host: Any, address: Any, size: Any, stream: Any) -> int:
        return self._begin(host.value, address.value, size.value, stream)

    def _begin(self, to: int, source: int, size: int, stream: Any) -> int:
        assert self._current
        STREAMS[stream.value].append(lambda: ctypes.memmove(to, source, size) and None)
        return 0
