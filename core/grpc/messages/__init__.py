"""The messages of Triton's service, from and to protobuf's wire format."""
