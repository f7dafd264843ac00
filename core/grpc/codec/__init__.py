"""Requests for inference and their responses, from and to protobuf's wire format."""
