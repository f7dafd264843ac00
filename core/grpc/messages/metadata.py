"""The metadata of the server and of a model, and a model's configuration.

Source: docs/spec/grpc.md section 1.
"""

from __future__ import annotations

from core.engine.config_message import ConfigMessage
from core.engine.metadata import ModelMetadata, ServerMetadata, TensorMetadata
from core.grpc.messages.wire import length_field, packed_integers, string_field


def server_metadata_message(metadata: ServerMetadata) -> bytes:
    """A ServerMetadataResponse."""
    extensions = [length_field(3, extension.encode()) for extension in metadata.extensions]
    return string_field(1, metadata.name) + string_field(2, metadata.version) + b"".join(extensions)


def model_metadata_message(metadata: ModelMetadata) -> bytes:
    """A ModelMetadataResponse."""
    versions = [length_field(2, str(version).encode()) for version in metadata.versions]
    inputs = [length_field(4, _tensor(tensor)) for tensor in metadata.inputs]
    outputs = [length_field(5, _tensor(tensor)) for tensor in metadata.outputs]
    name, platform = string_field(1, metadata.name), string_field(3, metadata.platform)
    return b"".join([name, *versions, platform, *inputs, *outputs])


def model_config_message(config: ConfigMessage) -> bytes:
    """A ModelConfigResponse."""
    return length_field(1, config.serialized)


def _tensor(tensor: TensorMetadata) -> bytes:
    return string_field(1, tensor.name) + string_field(2, tensor.datatype) + packed_integers(3, tensor.shape)
