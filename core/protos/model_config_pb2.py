"""The messages of `model_config.proto`. Their types are in `model_config_pb2.pyi`, which protoc writes."""

from trident.core.protos.pool import types_of

globals().update(types_of("model_config.proto"))
