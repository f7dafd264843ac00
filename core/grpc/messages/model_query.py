"""Requests that name a model and perhaps a version of it: its readiness, metadata, configuration and statistics."""

from __future__ import annotations

from typing import NamedTuple

from core.grpc.messages.message import message_of
from core.inference.tensors import Buffer


class ModelQuery(NamedTuple):
    """`version` is the text that the client sent, empty for the latest, or for all."""

    name: str
    version: str


def read_model_query(content: Buffer) -> ModelQuery:
    """Read a ModelReadyRequest, ModelMetadataRequest, ModelConfigRequest or ModelStatisticsRequest, which have the
    same fields. Raises MalformedMessage."""
    message = message_of("ModelReadyRequest", content)
    return ModelQuery(message.name, message.version)
