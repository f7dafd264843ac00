"""The messages of `grpc_service.proto`. Their types are in `grpc_service_pb2.pyi`, which protoc writes."""

from trident.core.protos.pool import types_of

globals().update(types_of("grpc_service.proto"))
