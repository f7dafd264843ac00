"""The limits that the platform sets for a container and its callers.

Source: docs/spec/vertex.md sections A2, A4 and A5.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

_MB = 1_000_000


class EndpointType(StrEnum):
    """How callers reach an endpoint, which decides its limits."""

    DEDICATED = "dedicated"
    SHARED = "shared"


LONGEST_INFERENCE_S = 3600.0
"""The highest inference timeout of a dedicated endpoint; a shared endpoint's cannot be set."""
LONGEST_DEPLOYMENT_S = 7200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformLimits:
    """Times in seconds, sizes in bytes; the defaults are a dedicated endpoint's. Tests make them shorter."""

    liveness_tries: int = 4
    """Failed connections after which a container that does not listen is restarted."""
    liveness_interval_s: float = 10.0
    connect_s: float = 10.0
    """Until the container accepts the connection of a request or a health probe."""
    health_s: float = 10.0
    health_interval_s: float = 10.0
    health_failures: int = 4
    """Consecutive failed probes after which the container gets no calls."""
    deployment_s: float = 1800.0
    """From the start until the first successful health probe."""
    inference_s: float = 600.0
    stop_s: float = 30.0
    """From SIGTERM to SIGKILL."""
    body_bytes: int = 10 * _MB
    """The body of a request, and of an answer that is not streamed."""


def online_limits(
    endpoint_type: EndpointType, deployment_s: float | None = None, inference_s: float | None = None
) -> PlatformLimits:
    """The limits of an endpoint; None is the platform's default."""
    is_shared = endpoint_type is EndpointType.SHARED
    return PlatformLimits(
        deployment_s=deployment_s or PlatformLimits().deployment_s,
        inference_s=inference_s or (60.0 if is_shared else PlatformLimits().inference_s),
        body_bytes=_MB * 3 // 2 if is_shared else PlatformLimits().body_bytes,
    )


def batch_limits(deployment_s: float | None = None) -> PlatformLimits:
    """The limits of a batch prediction job: it waits longer for its model, and sizes are not documented."""
    return PlatformLimits(deployment_s=deployment_s or 2400.0, body_bytes=1 << 30)
