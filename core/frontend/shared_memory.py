"""What front ends check before they ask the engine to register or unregister regions of shared memory.

Source: docs/spec/shared-memory.md sections 1 and 3.
"""

from __future__ import annotations

from core.cuda.driver import HANDLE_SIZE
from core.errors import InvalidRequest, Unsupported


def check_allowed(*, allowed: bool) -> None:
    """Raise Unsupported unless clients may register and unregister regions."""
    if not allowed:
        raise Unsupported(
            "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.",
            hint="or send the tensors in the request",
        )


def check_region_name(name: str, kind: str) -> None:
    """Raise InvalidRequest if a region has no name; `kind` is system or cuda."""
    if not name:
        raise InvalidRequest(f"'region name' is necessary to register {kind} shared memory region")


def check_handle(handle: bytes) -> None:
    """Raise InvalidRequest unless `handle` has the size of a handle of CUDA IPC."""
    if len(handle) != HANDLE_SIZE:
        raise InvalidRequest(
            "'raw_handle' must be a valid base64 encoded cudaIpcMemHandle_t",
            hint=f"it has {len(handle)} bytes, and must have {HANDLE_SIZE}",
        )
