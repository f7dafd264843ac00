"""Client shared memory, which is disabled: no region can be registered, so every name is unknown.

Source: docs/spec/shared-memory.md sections 1 to 4.
"""

from __future__ import annotations

from core.errors import ErrorCode, ModelNotFound, ServerError, Unsupported


class RegionNotFound(ServerError):
    code = ErrorCode.NOT_FOUND


def unknown_region(region: str) -> ModelNotFound:
    """The error for a tensor of a request that names a region."""
    return ModelNotFound(
        f"Unable to find shared memory region: '{region}'", hint="client shared memory is disabled on this server"
    )


def unknown_region_of(kind: str, region: str) -> RegionNotFound:
    """The error for the status of a region; `kind` is system or cuda."""
    return RegionNotFound(f"Unable to find {kind} shared memory region: '{region}'")


def change_refused() -> Unsupported:
    """The error for registering and unregistering a region."""
    return Unsupported(
        "Client shared memory is disabled. Start the server with '--allow-client-shm=true' to enable.",
        hint="that is Triton's text: here the option has no effect yet, so send tensors in the request",
    )
