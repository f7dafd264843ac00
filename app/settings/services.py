"""The services of the server, each of which has a port, by the names that messages use."""

from __future__ import annotations

from enum import StrEnum


class Service(StrEnum):
    GRPC = "GRPC"
    HTTP = "HTTP"
    SAGEMAKER = "SageMaker"
    VERTEX_AI = "Vertex AI"
    METRICS = "metrics"

    def option(self, address: str) -> str:
        """The option that moves the service away from where it listens."""
        return "--grpc-address" if is_unix(address) else _PORT_OPTIONS[self]


_PORT_OPTIONS = {
    Service.GRPC: "--grpc-port",
    Service.HTTP: "--http-port",
    Service.SAGEMAKER: "--sagemaker-port",
    Service.VERTEX_AI: "--vertex-ai-port",
    Service.METRICS: "--metrics-port",
}


def spell_endpoint(address: str, port: int) -> str:
    """Where a service listens, as a person reads it: `address:port`, or `unix:<path>`, which has no port."""
    return address if is_unix(address) else f"{address}:{port}"


def is_unix(address: str) -> bool:
    """Whether an address is a Unix socket, as `unix:<path>`."""
    return address.startswith("unix:")
