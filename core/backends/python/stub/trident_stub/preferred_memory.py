"""PreferredMemory: where the outputs of another model should be.

Source: docs/spec/python-backend.md section 4.3.
"""

from __future__ import annotations

from enum import Enum


class MemoryType(Enum):
    TRITONSERVER_MEMORY_GPU = 0
    TRITONSERVER_MEMORY_CPU = 1


class PreferredMemory:
    """A preference, which this server answers with CPU memory."""

    __slots__ = ("_device_id", "_type")

    def __init__(self, preferred_memory_type: MemoryType, preferred_device_id: int = 0) -> None:
        """Raises TypeError for other types."""
        if not isinstance(preferred_memory_type, MemoryType):
            raise TypeError("PreferredMemory(): the type must be TRITONSERVER_MEMORY_CPU or TRITONSERVER_MEMORY_GPU")
        if type(preferred_device_id) is not int:
            raise TypeError("PreferredMemory(): the device id must be an int")
        self._type = preferred_memory_type
        self._device_id = preferred_device_id
