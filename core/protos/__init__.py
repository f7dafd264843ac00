"""Protobuf's messages: Triton's configurations and service, and gRPC's health checks. `make protos` compiles them."""
