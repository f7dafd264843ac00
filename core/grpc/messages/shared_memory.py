"""The calls about client shared memory: its status can be read, and no region can be registered.

Source: docs/spec/grpc.md section 1, docs/spec/shared-memory.md sections 1 to 4.
"""

from __future__ import annotations

from core.grpc.messages.message import message_of
from core.inference.tensors import Buffer

# A SystemSharedMemoryStatusResponse or a CudaSharedMemoryStatusResponse without regions.
NO_REGIONS = b""


def read_status_call(content: Buffer) -> str:
    """The region that a SystemSharedMemoryStatusRequest or a CudaSharedMemoryStatusRequest names, "" for all.

    Raises MalformedMessage.
    """
    name: str = message_of("SystemSharedMemoryStatusRequest", content).name
    return name
