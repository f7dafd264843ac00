from __future__ import annotations

from typing import Any

import pytest
from tritonclient.grpc import service_pb2

from core.grpc.messages.shared_memory import NO_REGIONS, read_status_call


@pytest.mark.parametrize("kind", ["System", "Cuda"])
def test_the_status_calls_of_both_kinds(kind: str) -> None:
    request: Any = getattr(service_pb2, f"{kind}SharedMemoryStatusRequest")(name="r")
    assert read_status_call(request.SerializeToString()) == "r"
    assert read_status_call(b"") == ""
    response: Any = getattr(service_pb2, f"{kind}SharedMemoryStatusResponse")
    assert not response.FromString(NO_REGIONS).regions
