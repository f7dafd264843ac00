"""Metadata of the server and its models, their configurations and their statistics.

The engine raises the lookup errors.
Source: docs/spec/grpc.md sections 1 and 5.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from core.frontend.version_text import version_number
from core.grpc.messages.metadata import model_config_message, model_metadata_message, server_metadata_message
from core.grpc.messages.model_query import read_model_query
from core.grpc.messages.statistics import model_statistics_message

if TYPE_CHECKING:
    from core.grpc.front_end import GrpcFrontEnd
    from core.inference.tensors import Buffer


def server_metadata(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    return server_metadata_message(front_end.engine.server_metadata())


def model_metadata(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    name, version = read_model_query(message)
    return model_metadata_message(front_end.engine.model_metadata(name, version_number(version)))


def model_config(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    name, version = read_model_query(message)
    return model_config_message(front_end.engine.model_config(name, version_number(version)))


def model_statistics(front_end: GrpcFrontEnd, message: Buffer) -> bytes:
    """The statistics of one model or, without a name, of all that are ready."""
    name, version = read_model_query(message)
    return model_statistics_message(front_end.engine.model_statistics(name, version_number(version)))
