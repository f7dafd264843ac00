"""One registered region: its name, its memory, and how many requests use it.

Source: docs/spec/shared-memory.md sections 1, 5 and 6.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from typing import Protocol

from core.errors import InvalidRequest
from core.inference.region_tensors import DevicePlace, RegionReference
from core.inference.tensors import Buffer

_LARGEST = 0xFFFF_FFFF_FFFF_FFFF


class RegionKind(Enum):
    """The value is the word in routes and in texts."""

    SYSTEM = "system"
    CUDA = "cuda"


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemRegion:
    """What the status shows of a region of system memory: `byte_size` bytes from `offset` of the object `key`."""

    name: str
    key: str
    offset: int
    byte_size: int


@dataclass(frozen=True, slots=True, kw_only=True)
class CudaRegion:
    """What the status shows of a region of GPU memory."""

    name: str
    device_id: int
    byte_size: int


class RegionMemory(Protocol):
    """The memory behind a region. Any thread; it is freed with the last reference to it."""

    def read(self, offset: int, content: memoryview) -> None:
        """Fill `content` with the bytes at `offset`. Raises ServerError if they are no longer there."""
        ...

    def write(self, offset: int, content: Buffer) -> None:
        """Put `content` at `offset`. Raises ServerError if it no longer fits there."""
        ...

    def on_device(self, offset: int, size: int) -> DevicePlace | None:
        """Where a model on the same GPU finds the bytes; None for memory of the host."""
        ...

    def view(self, offset: int, size: int) -> memoryview:
        """The memory itself, writable: a client that shrinks it while it is used ends the process.

        Raises ServerError if it is not there now.
        """
        ...


class Region:
    """`users` is how many requests use it; `is_leaving`: it was unregistered, and leaves with its last user."""

    __slots__ = ("is_leaving", "memory", "status", "users")

    def __init__(self, status: SystemRegion | CudaRegion, memory: RegionMemory) -> None:
        self.status = status
        self.memory = memory
        self.users = 0
        self.is_leaving = False

    @property
    def kind(self) -> RegionKind:
        return RegionKind.SYSTEM if isinstance(self.status, SystemRegion) else RegionKind.CUDA

    def start_of(self, place: RegionReference) -> int:
        """Where `place` begins in `memory`. Raises InvalidRequest with Triton's text if it is not in the region."""
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
