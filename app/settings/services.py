"""The services of the server, each of which has a port, by the names that messages use."""

from __future__ import annotations

from enum import StrEnum


class Service(StrEnum):
    HTTP = "HTTP"
    SAGEMAKER = "SageMaker"
    VERTEX_AI = "Vertex AI"
    METRICS = "metrics"
