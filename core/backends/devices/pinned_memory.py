"""Pinned host memory, from which a GPU copies directly.

Source: NVIDIA's CUDA runtime API reference.
"""

from __future__ import annotations

import ctypes
import logging

from core.backends.devices.cuda import CudaLibrary, LoadLibrary, load_library
from core.inference.tensors import Array

_log = logging.getLogger("trident.backends")

# The framework has loaded one of these already, and it is found again by its name. The newest is first.
_RUNTIMES = ("libcudart.so.13", "libcudart.so.12")
_PORTABLE = 1


class PinnedMemory:
    """Pins the staging buffers of one instance where they are. The instance's thread only.

    A buffer that cannot be pinned is used as it is; copies from it are slower.
    """

    def __init__(self, runtime: CudaLibrary) -> None:
        self._runtime = runtime
        self._pinned: dict[str, Array] = {}

    @classmethod
    def open(cls, load: LoadLibrary = load_library) -> PinnedMemory | None:
        """On the CUDA runtime of this process; None if it has none."""
        for name in _RUNTIMES:
            try:
                return cls(load(name))
            except OSError:
                continue
        return None

    def replace(self, name: str, buffer: Array | None) -> None:
        """Release the buffer that was pinned under `name`, and pin `buffer` instead unless it is None."""
        before = self._pinned.pop(name, None)
        if before is not None:
            self._runtime.cudaHostUnregister(ctypes.c_void_p(before.ctypes.data))
        if buffer is None:
            return
        address, size = ctypes.c_void_p(buffer.ctypes.data), ctypes.c_size_t(buffer.nbytes)
        code = self._runtime.cudaHostRegister(address, size, ctypes.c_uint(_PORTABLE))
        if code == 0:
            self._pinned[name] = buffer
        else:
            _log.debug("cannot pin %d bytes for '%s': CUDA error %d", buffer.nbytes, name, code)
