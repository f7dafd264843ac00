"""The limits that the platform holds a container and its callers to.

Source: docs/spec/vertex.md sections A2, A4 and A5.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import StrEnum

_MB = 1_000_000


class EndpointType(StrEnum):
    """How an endpoint is reached, which decides what it lets through."""

    DEDICATED = "dedicated"
    SHARED = "shared"


LONGEST_INFERENCE_S = 3600.0
"""What the inference timeout of a dedicated endpoint may be set to; that of a shared one cannot be set."""
LONGEST_DEPLOYMENT_S = 7200.0


@dataclass(frozen=True, slots=True, kw_only=True)
class PlatformLimits:
    """Times in seconds, sizes in bytes; those of a dedicated endpoint. Tests make them shorter."""

    liveness_tries: int = 4
    """Connections that are tried before a container that nobody listens in is started again."""
    liveness_interval_s: float = 10.0
    connect_s: float = 10.0
    """Until the container accepts the connection of a request or a health probe."""
    health_s: float = 10.0
    health_interval_s: float = 10.0
    health_failures: int = 4
    """Bad probes in a row after which there is no traffic."""
    deployment_s: float = 1800.0
    """From the start until the first good health probe."""
    inference_s: float = 600.0
    stop_s: float = 30.0
    """From SIGTERM to SIGKILL."""
    body_bytes: int = 10 * _MB
    """A request's body, and that of an answer that is not streamed."""


def online_limits(
    endpoint_type: EndpointType, deployment_s: float | None = None, inference_s: float | None = None
) -> PlatformLimits:
    """Of an endpoint; None is the platform's default."""
    is_shared = endpoint_type is EndpointType.SHARED
    return PlatformLimits(
        deployment_s=deployment_s or PlatformLimits().deployment_s,
        inference_s=inference_s or (60.0 if is_shared else PlatformLimits().inference_s),
        body_bytes=_MB * 3 // 2 if is_shared else PlatformLimits().body_bytes,
    )


def batch_limits(deployment_s: float | None = None) -> PlatformLimits:
    """Of a batch prediction job: it waits longer for its model, and nothing is said of sizes."""
    return PlatformLimits(deployment_s=deployment_s or 2400.0, body_bytes=1 << 30)
