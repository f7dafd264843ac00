"""What the health of the server and of a model looks like on the wire.

Source: docs/spec/grpc.md section 1; grpc's `health.proto`.
"""

from __future__ import annotations

from core.grpc.messages.wire import integer_field

# The values of grpc.health.v1.HealthCheckResponse.ServingStatus.
SERVING = 1
NOT_SERVING = 2


def flag_message(value: bool) -> bytes:
    """A ServerLiveResponse, ServerReadyResponse or ModelReadyResponse."""
    return integer_field(1, int(value))


def health_message(ready: bool) -> bytes:
    """A grpc.health.v1.HealthCheckResponse."""
    return integer_field(1, SERVING if ready else NOT_SERVING)
