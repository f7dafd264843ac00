"""Regions of shared memory: status, register, unregister.

Source: docs/spec/shared-memory.md sections 2 to 5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.frontend.shared_memory import check_allowed, check_handle, check_region_name
from core.grpc.messages.shared_memory import (
    cuda_status_message,
    read_cuda_register_call,
    read_region_name,
    read_system_register_call,
    system_status_message,
)
from core.shared_memory.region import RegionKind

if TYPE_CHECKING:
    from core.grpc.front_end import GrpcFrontEnd
    from core.inference.tensors import Buffer

_NOTHING = b""


def system_status(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    return system_status_message(front_end.engine.system_regions(read_region_name(message)))


def cuda_status(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    return cuda_status_message(front_end.engine.cuda_regions(read_region_name(message)))


def system_register(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    check_allowed(allowed=front_end.options.allow_client_shm)
    call = read_system_register_call(message)
    check_region_name(call.name, RegionKind.SYSTEM.value)
    front_end.engine.register_system_region(*call)
    return _NOTHING


def cuda_register(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    check_allowed(allowed=front_end.options.allow_client_shm)
    call = read_cuda_register_call(message)
    check_region_name(call.name, RegionKind.CUDA.value)
    check_handle(call.handle)
    front_end.engine.register_cuda_region(*call)
    return _NOTHING


def system_unregister(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    return _unregister(front_end, RegionKind.SYSTEM, message)


def cuda_unregister(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    return _unregister(front_end, RegionKind.CUDA, message)


def _unregister(front_end: GrpcFrontEnd, kind: RegionKind, message: Buffer) -> bytes:
    check_allowed(allowed=front_end.options.allow_client_shm)
    front_end.engine.unregister_regions(kind, read_region_name(message))
    return _NOTHING
