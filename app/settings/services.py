"""The services of the server, each of which has a port, by the names that messages use."""

from __future__ import annotations

from enum import StrEnum


class Service(StrEnum):
    GRPC = "GRPC"
    HTTP = "HTTP"
    SAGEMAKER = "SageMaker"
    VERTEX_AI = "Vertex AI"
    METRICS = "metrics"


def spell_endpoint(address: str, port: int) -> str:
    """Where a service listens, as a person reads it: `address:port`, or `unix:<path>`, which has no port."""
    return address if is_unix(address) else f"{address}:{port}"


def is_unix(address: str) -> bool:
    """Whether an address is a Unix socket, as `unix:<path>`."""
    return address.startswith("unix:")
