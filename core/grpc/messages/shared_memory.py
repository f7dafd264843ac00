"""The calls about regions of shared memory.

Source: docs/spec/grpc.md section 1, docs/spec/shared-memory.md section 2.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from core.grpc.messages.message import message_of
from core.grpc.messages.wire import integer_field, length_field, string_field
from core.inference.tensors import Buffer
from core.shared_memory.region import CudaRegion, SystemRegion


class SystemRegisterCall(NamedTuple):
    """The arguments of `Engine.register_system_region`."""

    name: str
    key: str
    offset: int
    byte_size: int


class CudaRegisterCall(NamedTuple):
    """The arguments of `Engine.register_cuda_region`."""

    name: str
    handle: bytes
    device_id: int
    byte_size: int


def read_region_name(content: Buffer) -> str:
    """The region that a request for a status or to unregister names, of either kind; "" for all.

    Raises MalformedMessage.
    """
    # The four messages have the same one field.
    name: str = message_of("SystemSharedMemoryStatusRequest", content).name
    return name


def read_system_register_call(content: Buffer) -> SystemRegisterCall:
    """Read a SystemSharedMemoryRegisterRequest. Raises MalformedMessage."""
    message = message_of("SystemSharedMemoryRegisterRequest", content)
    return SystemRegisterCall(message.name, message.key, message.offset, message.byte_size)


def read_cuda_register_call(content: Buffer) -> CudaRegisterCall:
    """Read a CudaSharedMemoryRegisterRequest. Raises MalformedMessage."""
    message = message_of("CudaSharedMemoryRegisterRequest", content)
    return CudaRegisterCall(message.name, message.raw_handle, message.device_id, message.byte_size)


def system_status_message(regions: Iterable[SystemRegion]) -> bytes:
    """A SystemSharedMemoryStatusResponse."""
    return b"".join(
        [
            _entry(
                each.name,
                string_field(2, each.key) + integer_field(3, each.offset) + integer_field(4, each.byte_size),
            )
            for each in regions
        ]
    )


def cuda_status_message(regions: Iterable[CudaRegion]) -> bytes:
    """A CudaSharedMemoryStatusResponse."""
    return b"".join(
        [_entry(each.name, integer_field(2, each.device_id) + integer_field(3, each.byte_size)) for each in regions]
    )


def _entry(name: str, rest: bytes) -> bytes:
    """An entry of the map of regions, which is also called `name` in its value."""
    return length_field(1, string_field(1, name) + length_field(2, string_field(1, name) + rest))
