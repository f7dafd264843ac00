from __future__ import annotations

from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from trident.core.grpc.admin_messages import (
    cuda_status_message,
    read_cuda_register_call,
    read_region_name,
    read_system_register_call,
    system_status_message,
)
from trident.core.shared_memory.regions import CudaRegion, SystemRegion

MOST = 2**64 - 1


@pytest.mark.parametrize("kind", ["System", "Cuda"])
@pytest.mark.parametrize("action", ["Status", "Unregister"])
def test_the_region_that_a_call_names(kind: str, action: str) -> None:
    request: Any = getattr(service_pb2, f"{kind}SharedMemory{action}Request")(name="r")
    assert read_region_name(request.SerializeToString()) == "r"
    assert read_region_name(b"") == ""


def test_the_register_calls() -> None:
    system = service_pb2.SystemSharedMemoryRegisterRequest(name="r", key="/k", offset=MOST, byte_size=MOST)
    assert read_system_register_call(system.SerializeToString()) == ("r", "/k", MOST, MOST)
    cuda = service_pb2.CudaSharedMemoryRegisterRequest(name="r", raw_handle=b"h", device_id=-1, byte_size=8)
    assert read_cuda_register_call(cuda.SerializeToString()) == ("r", b"h", -1, 8)


def test_the_statuses() -> None:
    regions = [
        SystemRegion(name="a", key="/k", offset=0, byte_size=MOST),
        SystemRegion(name="größer", key="/l", offset=4096, byte_size=1),
    ]
    system: Any = service_pb2.SystemSharedMemoryStatusResponse.FromString(system_status_message(regions))
    shown = {name: (each.name, each.key, each.offset, each.byte_size) for name, each in system.regions.items()}
    assert shown == {"a": ("a", "/k", 0, MOST), "größer": ("größer", "/l", 4096, 1)}
    cuda: Any = service_pb2.CudaSharedMemoryStatusResponse.FromString(
        cuda_status_message([CudaRegion(name="c", device_id=3, byte_size=64)])
    )
    assert {name: (each.name, each.device_id, each.byte_size) for name, each in cuda.regions.items()} == {
        "c": ("c", 3, 64)
    }
    assert system_status_message([]) == cuda_status_message([]) == b""
