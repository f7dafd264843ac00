"""The regions that clients have registered.

Source: docs/spec/shared-memory.md sections 3 to 6.
"""

from __future__ import annotations

import mmap
import resource
import threading
import weakref
from collections.abc import Callable, Iterable

from core.cuda.driver import CudaDriver, CudaError
from core.errors import InvalidRequest, RegionExists, RegionNotFound
from core.inference.region_tensors import RegionReference
from core.kept_memory import KeptMemory
from core.shared_memory.cuda_memory import CudaMemory
from core.shared_memory.region import CudaRegion, Region, RegionKind, SystemRegion
from core.shared_memory.system_memory import SystemMemory, name_of, open_object

MOST_REGIONS = 16384
_RESERVED = "triton_python_backend_shm_region_"
_WORDS = {RegionKind.SYSTEM: "system", RegionKind.CUDA: "CUDA"}


class Regions:
    """Any thread. Both kinds of regions share the names. Inputs are read into `buffers`.

    System memory is mapped for tensors of at least `map_from` bytes, 0 for none: see RegionMemory.view.
    """

    def __init__(self, map_from: int = 0, open_driver: Callable[[], CudaDriver | None] = CudaDriver.open) -> None:
        self._map_from = map_from
        self._open_driver = open_driver
        self._driver: CudaDriver | None = None
        self._lock = threading.Lock()
        self._regions: dict[str, Region] = {}
        # Each object is opened once, however many regions are in it.
        self.buffers = KeptMemory()
        self._objects: weakref.WeakValueDictionary[tuple[int, int], SystemMemory] = weakref.WeakValueDictionary()

    # --- clients register regions

    def register_system(self, name: str, key: str, offset: int, byte_size: int) -> None:
        """Register `byte_size` bytes from `offset` of the object `key` of POSIX shared memory.

        Raises InvalidRequest, RegionExists or RegionFailed with Triton's texts.
        """
        file = name_of(key)
        if not file:
            raise InvalidRequest(
                f"cannot register shared memory region '{name}' - invalid shm key '{key}'",
                hint="a key is the name of an object of shared memory, such as /my_inputs",
            )
        if file.startswith(_RESERVED):
            raise InvalidRequest(
                f"cannot register shared memory region '{name}' with key '{key}' as the key contains the reserved "
                f"prefix '{_RESERVED}'"
            )
        with self._lock:
            self._check_name(name)
            memory = self._object(name, key)
            size = memory.size
            if offset + byte_size > size:
                raise InvalidRequest(
                    f"failed to register shared memory region '{name}': invalid args",
                    hint=f"'{key}' has {size} bytes, which end before {byte_size} bytes from {offset}",
                )
            if not byte_size or offset % mmap.ALLOCATIONGRANULARITY:
                # Triton maps the region.
                raise InvalidRequest(
                    f"failed to register shared memory region '{name}': unable to process address space"
                    "Invalid argument",
                    hint=f"byte_size must not be 0, offset must be a multiple of {mmap.ALLOCATIONGRANULARITY}",
                )
            status = SystemRegion(name=name, key=key, offset=offset, byte_size=byte_size)
            self._regions[name] = Region(status, memory)

    def register_cuda(self, name: str, handle: bytes, device_id: int, byte_size: int) -> None:
        """Register `byte_size` bytes of the allocation on GPU `device_id` that `handle`, of CUDA IPC, refers to.

        Raises InvalidRequest or RegionExists with Triton's texts.
        """
        with self._lock:
            driver = self._cuda_driver()
            if driver is None:
                raise InvalidRequest(
                    f"failed to register CUDA shared memory region: '{name}', GPUs not supported",
                    hint="this machine has no NVIDIA driver, or no GPU that the server may use",
                )
            self._check_name(name)
            try:
                memory = CudaMemory(driver, device_id, handle)
                size = memory.size
            except CudaError as error:
                raise InvalidRequest(
                    "failed to register shared memory region: invalid args",
                    hint=f"{error}; client and server must be on one machine and see device {device_id} as the same",
                ) from error
            if byte_size > size:
                raise InvalidRequest(
                    f"failed to register shared memory region '{name}': invalid args",
                    hint=f"the allocation has {size} bytes",
                )
            status = CudaRegion(name=name, device_id=device_id, byte_size=byte_size)
            self._regions[name] = Region(status, memory)

    def _cuda_driver(self) -> CudaDriver | None:
        """Opened when the first region asks for it: never before a fork. Under the lock."""
        if self._driver is None:
            self._driver = self._open_driver()
        return self._driver

    def unregister(self, kind: RegionKind, name: str) -> None:
        """Remove the region `name`, all of `kind` if it is empty. One that requests use stays until the last is done.

        Does nothing for an unknown name, and for one of the other kind.
        """
        with self._lock:
            names = [name] if name else list(self._regions)
            for each in names:
                region = self._regions.get(each)
                if region is None or region.kind is not kind:
                    continue
                if region.users:
                    region.is_leaving = True
                else:
                    del self._regions[each]
            is_last = not self._regions
        if is_last:
            self.buffers.drop()

    def system_regions(self, name: str) -> list[SystemRegion]:
        """The system regions by name, the region `name` if it is not empty. Raises RegionNotFound."""
        found = self._statuses(RegionKind.SYSTEM, name)
        return [status for status in found if isinstance(status, SystemRegion)]

    def cuda_regions(self, name: str) -> list[CudaRegion]:
        """The CUDA regions by name, the region `name` if it is not empty. Raises RegionNotFound."""
        found = self._statuses(RegionKind.CUDA, name)
        return [status for status in found if isinstance(status, CudaRegion)]

    def _statuses(self, kind: RegionKind, name: str) -> list[SystemRegion | CudaRegion]:
        with self._lock:
            if not name:
                return [region.status for _, region in sorted(self._regions.items())]
            region = self._regions.get(name)
        if region is None:
            raise RegionNotFound(f"Unable to find {kind.value} shared memory region: '{name}'")
        if region.kind is not kind:
            raise RegionNotFound(
                f"The region named '{name}' is registered as {_WORDS[region.kind]} shared memory, not {_WORDS[kind]} "
                "shared memory"
            )
        return [region.status]

    def _check_name(self, name: str) -> None:
        """Raise unless a region may be registered under `name`. Under the lock."""
        if name in self._regions:
            raise RegionExists(
                f"shared memory region '{name}' already in manager",
                hint="unregister it first, or choose another name; a region in use leaves with its last request",
            )
        if len(self._regions) >= MOST_REGIONS:
            raise _too_many(name, f"{MOST_REGIONS} regions are registered, which is the maximum")

    def _object(self, name: str, key: str) -> SystemMemory:
        """The object `key`. Under the lock."""
        opened = open_object(key)
        known = self._objects.get(opened.identity)
        if known is not None:
            return known
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4
        if len(self._objects) >= most:
            raise _too_many(name, f"{most} objects of shared memory are open, a quarter of the limit of open files")
        self._objects[opened.identity] = opened
        return opened

    # --- requests use regions

    def maps(self, region: Region, size: int) -> bool:
        """Whether a tensor of `size` bytes in the region is used where it lies."""
        return 0 < self._map_from <= size and region.kind is RegionKind.SYSTEM

    def use(self, places: Iterable[RegionReference]) -> list[tuple[Region, int]]:
        """The region of each place, and where the place begins in its memory; all of them, or none if it raises.

        Each place is released once. Raises RegionNotFound and InvalidRequest with Triton's texts.
        """
        used: list[tuple[Region, int]] = []
        with self._lock:
            for place in places:
                region = self._regions.get(place.region)
                if region is None:
                    raise RegionNotFound(
                        f"Unable to find shared memory region: '{place.region}'",
                        hint="register it first; regions do not survive a restart of the server",
                    )
                used.append((region, region.start_of(place)))
            for region, _ in used:
                region.users += 1
        return used

    def release(self, regions: Iterable[Region]) -> None:
        """End uses. A region that was unregistered leaves with its last one."""
        is_last = False
        with self._lock:
            for region in regions:
                region.users -= 1
                if region.is_leaving and not region.users:
                    del self._regions[region.status.name]
                    is_last = not self._regions
        if is_last:
            self.buffers.drop()


def _too_many(name: str, reason: str) -> InvalidRequest:
    return InvalidRequest(
        f"failed to register shared memory region '{name}': {reason}",
        hint="unregister regions that are no longer used: those of clients that have ended stay until then",
    )
