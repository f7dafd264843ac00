"""The shared memory of clients: regions that they register by name, and the tensors of requests that lie in them.

The regions belong to the engine, whichever front end was asked to register them. They are mapped on request only: a
client that shrinks the object under a map ends the server with SIGBUS. Otherwise they are read and written through
their descriptors, which fails with an error instead.

    Regions            the regions by their names, and the requests that use them
    └── Region         a name, a size, and the memory behind it
        └── RegionMemory       the protocol: read, write, view
            ├── SystemMemory   an object of POSIX shared memory
            └── CudaMemory     an allocation on a GPU, through the handles of CUDA IPC (CudaDriver)
    attach             has one request use its regions
    BufferPool         memory into which inputs are copied (core/buffers.py)

Source: docs/spec/shared-memory.md.
"""

from __future__ import annotations

import logging
import mmap
import os
import resource
import stat
import threading
import weakref
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from enum import Enum
from functools import partial
from typing import Protocol

import numpy as np

from trident.core.borders import expected
from trident.core.buffers import BufferPool
from trident.core.cuda import CudaDriver, CudaError
from trident.core.errors import InvalidRequest, OutOfMemory, RegionExists, RegionFailed, RegionNotFound
from trident.core.inference.pending_request import PendingRequest
from trident.core.inference.response import (
    DevicePlace,
    InferenceResponse,
    OutputTensor,
    PlacedOutput,
    RegionInput,
    RegionReference,
    RegionRequest,
)
from trident.core.inference.tensors import Buffer

_LARGEST = 0xFFFF_FFFF_FFFF_FFFF


class RegionKind(Enum):
    """The values are used in routes and texts."""

    SYSTEM = "system"
    CUDA = "cuda"


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemRegion:
    """The status of a region of system memory: `byte_size` bytes from `offset` of the object `key`."""

    name: str
    key: str
    offset: int
    byte_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaRegion:
    """The status of a region of GPU memory."""

    name: str
    device_id: int
    byte_size: int


class RegionMemory(Protocol):
    """The memory behind a region. Any thread; it is freed with the last reference to it."""

    def read(self, offset: int, content: memoryview) -> None:
        """Fill `content` with the bytes at `offset`. Raises ServerError if the memory was shrunk."""
        ...

    def write(self, offset: int, content: Buffer) -> None:
        """Write `content` at `offset`. Raises ServerError if the memory was shrunk."""
        ...

    def on_device(self, offset: int, size: int) -> DevicePlace | None:
        """Return the address for a model on the same GPU; None for memory of the host."""
        ...

    def view(self, offset: int, size: int) -> memoryview:
        """Return the memory itself, writable: a client that shrinks it while it is used ends the process.

        Raises ServerError if it has been shrunk.
        """
        ...


class Region:
    """`users` is the number of requests that use it. With `is_unregistered` it is removed with the last of them."""

    def __init__(self, status: SystemRegion | CudaRegion, memory: RegionMemory) -> None:
        self.status = status
        self.memory = memory
        self.users = 0
        self.is_unregistered = False

    @property
    def kind(self) -> RegionKind:
        return RegionKind.SYSTEM if isinstance(self.status, SystemRegion) else RegionKind.CUDA

    def start_of(self, place: RegionReference) -> int:
        """Return the offset of `place` in `memory`. Raises InvalidRequest with Triton's text outside the region."""
        name, offset, size = place
        byte_size = self.status.byte_size
        if offset >= byte_size:
            raise _outside(f"Invalid offset for shared memory region: '{name}'", offset, size, byte_size)
        if offset + size > _LARGEST:
            raise InvalidRequest(
                f"Integer overflow detected: byte_size ({size}) + offset ({offset}) exceeds maximum value ({_LARGEST}) "
                f"for region '{name}'"
            )
        if offset + size > byte_size:
            raise _outside(f"Invalid offset + byte size for shared memory region: '{name}'", offset, size, byte_size)
        return offset + (self.status.offset if isinstance(self.status, SystemRegion) else 0)


def _outside(message: str, offset: int, size: int, byte_size: int) -> InvalidRequest:
    return InvalidRequest(
        message, hint=f"the region was registered with {byte_size} bytes; the tensor has {size} bytes at {offset}"
    )


# It is a file of its client, who may shrink, unlink or change it at any time. So it is mapped on request only:
# `preadv` and `pwritev` meet the end of a shrunken file with a short count or an error, where a map ends the process
# with SIGBUS. For 600 KB they take 30 and 40 us, for 16 MB 1 and 2 ms; a copy into a map takes 8 us and 0.7 ms, and an
# input that is read where it lies nothing at all. Source: docs/spec/shared-memory.md section 3.


DIRECTORY = "/dev/shm"
_LONGEST_NAME = 255
# Others may read and write it.
_OPEN_TO_ALL = stat.S_IROTH | stat.S_IWOTH
# Not through a link, and without waiting for the other end of a pipe.
_FLAGS = os.O_RDWR | os.O_NOFOLLOW | os.O_CLOEXEC | os.O_NONBLOCK


class SystemMemory:
    """Any thread. The descriptor is closed with the last reference.

    `key` is the name under which it was opened, `identity` the device and the number of the file.
    """

    def __init__(self, descriptor: int, key: str, identity: tuple[int, int]) -> None:
        """Use `open_object`. Takes ownership of the descriptor."""
        self._descriptor = descriptor
        self.key = key
        self.identity = identity
        self._mapped = memoryview(b"")
        weakref.finalize(self, os.close, descriptor).atexit = False

    @property
    def size(self) -> int:
        """The size of the object now, in bytes."""
        return os.fstat(self._descriptor).st_size

    def read(self, offset: int, content: memoryview) -> None:
        size = len(content)
        done = 0
        while done < size:
            count = os.preadv(self._descriptor, [content[done:]], offset + done)
            if not count:
                raise self._shrunk("read", offset, size)
            done += count

    def write(self, offset: int, content: Buffer) -> None:
        content = memoryview(content)
        size = len(content)
        # Writing behind the end would make it grow again.
        if offset + size > self.size:
            raise self._shrunk("written", offset, size)
        done = 0
        while done < size:
            try:
                done += os.pwritev(self._descriptor, [content[done:]], offset + done)
            except OSError as error:  # the memory of all such objects is used up
                raise RegionFailed(
                    f"unable to write {size} bytes at {offset} of shared memory '{self.key}': {error.strerror}",
                    hint=f"look at the free memory in {DIRECTORY}: df {DIRECTORY}",
                ) from error

    def on_device(self, offset: int, size: int) -> None:
        """None: it is memory of the host."""

    def view(self, offset: int, size: int) -> memoryview:
        end = offset + size
        actual = self.size
        if end > actual:
            raise self._shrunk("used", offset, size)
        mapped = self._mapped
        if end > len(mapped):
            try:
                mapped = self._mapped = memoryview(mmap.mmap(self._descriptor, actual))
            except (OSError, ValueError) as error:
                raise RegionFailed(f"unable to map shared memory '{self.key}': {error}") from error
        return mapped[offset:end]

    def _shrunk(self, action: str, offset: int, size: int) -> InvalidRequest:
        return InvalidRequest(
            f"{size} bytes at {offset} of shared memory '{self.key}' cannot be {action}, it has only {self.size} bytes",
            hint="the object was made smaller after its region was registered",
        )


def name_of(key: str) -> str:
    """Return the file of the object `key`; "" for a key without a name."""
    return key.lstrip("/")


def open_object(key: str, directory: str = DIRECTORY) -> SystemMemory:
    """Open the object `key`. Raises RegionFailed with Triton's text."""
    name = name_of(key)
    try:
        size = len(os.fsencode(name))
    except UnicodeEncodeError:
        size = _LONGEST_NAME + 1
    if "/" in name or "\0" in name or name in (".", "..") or size > _LONGEST_NAME:
        raise _not_opened(key, "a key is the name of one object: no slashes but at its beginning, at most 255 bytes")
    try:
        descriptor = os.open(os.path.join(directory, name), _FLAGS)
    except OSError as error:
        raise _not_opened(
            key,
            f"{directory}/{name}: {error.strerror}; make it first, so that the server may read and write it",
        ) from error
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise _not_opened(key, f"{directory}/{name} is not an object of shared memory")
        # The superuser can open everything, which must not serve clients.
        if found.st_uid != os.geteuid() and found.st_mode & _OPEN_TO_ALL != _OPEN_TO_ALL:
            raise _not_opened(
                key,
                f"{directory}/{name} belongs to user {found.st_uid}, the server is user {os.geteuid()}: run both as "
                "one user, or let others read and write it (chmod 666)",
            )
    except BaseException:
        os.close(descriptor)
        raise
    return SystemMemory(descriptor, key, (found.st_dev, found.st_ino))


def _not_opened(key: str, hint: str) -> RegionFailed:
    return RegionFailed(f"Unable to open shared memory region: '{key}'", hint=hint)


# Source: docs/spec/shared-memory.md sections 3 and 7.


# Of the addresses that the driver allocates itself.
_ALIGNMENT = 256

_log = logging.getLogger("trident.shared_memory")


OnLost = Callable[[str], None]
"""Called with a GPU (`Placement.device`) that this process can no longer use."""


def _ignore(device: str) -> None:
    pass


class CudaMemory:
    """Any thread. The handle is closed with the last reference."""

    def __init__(self, driver: CudaDriver, device_id: int, handle: bytes, on_lost: OnLost = _ignore) -> None:
        """Raises CudaError."""
        self._driver = driver
        self._on_lost = on_lost
        self._device_id = device_id
        self._address = address = driver.open_handle(device_id, handle)
        weakref.finalize(self, _close, driver, device_id, address).atexit = False

    @property
    def size(self) -> int:
        """The size of the allocation in bytes. Raises CudaError."""
        return self._driver.size_from(self._device_id, self._address)

    def read(self, offset: int, content: memoryview) -> None:
        try:
            self._driver.copy_to_host(self._device_id, self._address + offset, _address_of(content), len(content))
        except CudaError as error:
            raise self._failed("read", error) from error

    def write(self, offset: int, content: Buffer) -> None:
        size = len(content)
        if not size:
            return
        try:
            self._driver.copy_to_device(self._device_id, self._address + offset, _address_of(content), size)
        except CudaError as error:
            raise self._failed("written", error) from error

    def on_device(self, offset: int, size: int) -> DevicePlace | None:
        """Return None for a misaligned offset: a kernel that reads it ends all work on a GPU."""
        address = self._address + offset
        return DevicePlace(self._device_id, address, size) if address % _ALIGNMENT == 0 else None

    def view(self, offset: int, size: int) -> memoryview:
        raise RegionFailed("memory of a GPU cannot be used in place")

    def _failed(self, action: str, error: CudaError) -> RegionFailed:
        if error.is_poison:
            self._on_lost(f"gpu:{self._device_id}")
        return RegionFailed(f"CUDA shared memory on device {self._device_id} cannot be {action}: {error}")


def _address_of(content: Buffer) -> int:
    address: int = np.frombuffer(content, np.uint8).ctypes.data
    return address


def _close(driver: CudaDriver, device_id: int, address: int) -> None:
    try:
        driver.close_handle(device_id, address)
    except CudaError as error:
        _log.warning("CUDA shared memory on device %d was not closed: %s", device_id, error)


MOST_REGIONS = 16384
_RESERVED = "triton_python_backend_shm_region_"
_WORDS = {RegionKind.SYSTEM: "system", RegionKind.CUDA: "CUDA"}


class Regions:
    """Any thread. Both kinds of regions share the names. Inputs are read into `buffers`.

    System memory is mapped for tensors of at least `map_from` bytes, 0 for none: see RegionMemory.view.
    """

    def __init__(
        self,
        map_from: int = 0,
        open_driver: Callable[[], CudaDriver | None] = CudaDriver.open,
        on_lost: OnLost = _ignore,
    ) -> None:
        self._map_from = map_from
        self._open_driver = open_driver
        self._on_lost = on_lost
        self._driver: CudaDriver | None = None
        self._lock = threading.Lock()
        self._regions: dict[str, Region] = {}
        # Each object is opened once, however many regions are in it.
        self.buffers = BufferPool()
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
            if self._driver is None:
                self._driver = self._open_driver()  # with the first region: never before a fork
            driver = self._driver
            if driver is None:
                raise InvalidRequest(
                    f"failed to register CUDA shared memory region: '{name}', GPUs not supported",
                    hint="this machine has no NVIDIA driver, or no GPU that the server may use",
                )
            self._check_name(name)
            try:
                memory = CudaMemory(driver, device_id, handle, self._on_lost)
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
                    region.is_unregistered = True
                else:
                    del self._regions[each]
            is_last = not self._regions
        if is_last:
            self.buffers.drop()

    def system_regions(self, name: str) -> list[SystemRegion]:
        """Return the system regions by name, or the region `name`. Raises RegionNotFound."""
        found = self._statuses(RegionKind.SYSTEM, name)
        return [status for status in found if isinstance(status, SystemRegion)]

    def cuda_regions(self, name: str) -> list[CudaRegion]:
        """Return the CUDA regions by name, or the region `name`. Raises RegionNotFound."""
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
                hint="unregister it first, or choose another name; a region in use is removed after its last request",
            )
        if len(self._regions) >= MOST_REGIONS:
            raise _too_many(name, f"{MOST_REGIONS} regions are registered, which is the maximum")

    def _object(self, name: str, key: str) -> SystemMemory:
        """Return the object `key`, opened once. Under the lock."""
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
        """Return whether a tensor of `size` bytes in the region is used in place."""
        return 0 < self._map_from <= size and region.kind is RegionKind.SYSTEM

    def use(self, places: Iterable[RegionReference]) -> list[tuple[Region, int]]:
        """Return the region of each place, and the place's offset in its memory; all of them, or none if it raises.

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
        """End uses. A region that was unregistered is removed with the last one."""
        is_last = False
        with self._lock:
            for region in regions:
                region.users -= 1
                if region.is_unregistered and not region.users:
                    del self._regions[region.status.name]
                    is_last = not self._regions
        if is_last:
            self.buffers.drop()


def _too_many(name: str, reason: str) -> InvalidRequest:
    return InvalidRequest(
        f"failed to register shared memory region '{name}': {reason}",
        hint="unregister regions that are no longer used: those of clients that have ended stay until then",
    )


# --- the regions that one request uses, from its submission to its final response


# The region of an output, its offset in the region's memory, and the size that the client has given it.
_Place = tuple[Region, int, int]


def _placed(regions: Regions, places: Mapping[str, _Place], response: InferenceResponse) -> InferenceResponse:
    """Write outputs into their regions, and return a response that says so. Others may have the same outputs."""
    outputs: list[OutputTensor] = []
    for output in response.outputs:
        place = places.get(output.name)
        # The model may have written it there itself.
        if place is None or type(output) is PlacedOutput:
            outputs.append(output)
            continue
        region, start, byte_size = place
        content = output.content()
        if len(content) > byte_size:
            raise RegionFailed(
                f"shared memory size specified with the request for output '{output.name}' ({byte_size} bytes) "
                f"should be at least {len(content)} bytes to hold the results"
            )
        if regions.maps(region, len(content)):
            region.memory.view(start, len(content))[:] = memoryview(content)
        else:
            region.memory.write(start, content)
        outputs.append(PlacedOutput(output.name, output.datatype, output.shape))
    placed = InferenceResponse(
        response.model_name,
        response.model_version,
        outputs,
        id=response.id,
        parameters=response.parameters,
        final=response.final,
        is_end=response.is_end,
    )
    placed.times = response.times
    return placed


def _read(buffers: BufferPool, region: Region, start: int, size: int, into: memoryview | None) -> memoryview:
    try:
        content = buffers.take(size) if into is None else into
    except MemoryError:
        raise OutOfMemory(f"out of memory for an input of {size} bytes in shared memory") from None
    region.memory.read(start, content)
    return content


def _view(region: Region, start: int, size: int) -> memoryview:
    return region.memory.view(start, size).toreadonly()


def attach(pending: PendingRequest, request: RegionRequest, regions: Regions) -> None:
    """Find the regions of `request`, the request of `pending`, and use them until its final response.

    Raises RegionNotFound or InvalidRequest with Triton's texts; then nothing has changed.
    """
    inputs = [tensor for tensor in request.inputs if isinstance(tensor, RegionInput)]
    outputs = request.output_regions
    used = regions.use([*(tensor.reference for tensor in inputs), *outputs.values()])
    for tensor, (region, start) in zip(inputs, used, strict=False):
        size = tensor.reference.byte_size
        tensor.source = partial(_read, regions.buffers, region, start, size)
        tensor.on_device = region.memory.on_device(start, size)
        if regions.maps(region, size):
            tensor.in_place = partial(_view, region, start, size)
    places = {
        name: (region, start, reference.byte_size)
        for (name, reference), (region, start) in zip(outputs.items(), used[len(inputs) :], strict=True)
    }
    on_device = {name: region.memory.on_device(start, size) for name, (region, start, size) in places.items()}
    request.outputs_on_device = {name: place for name, place in on_device.items() if place is not None}
    in_use = [region for region, _ in used]
    on_response = pending.on_response

    def respond(response: InferenceResponse) -> None:
        """Write the outputs of a response into their regions, and pass it on. Any thread, one response at a time."""
        if places and response.error is None and response.outputs:
            try:
                response = _placed(regions, places, response)
            except Exception as error:
                is_final = response.final
                failure = expected(error, f"writing an output of model '{response.model_name}' into shared memory")
                response = InferenceResponse.failed(response, failure)
                response.final = is_final
        if response.final:
            # Before the caller knows: then it may look at the regions, or register them anew.
            ended = in_use.copy()
            in_use.clear()
            regions.release(ended)
        on_response(response)

    pending.on_response = respond
    request.needs_regions = False
