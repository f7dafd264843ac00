"""gRPC: Triton's inference service and the health service, on streams of HTTP/2 that a server gives it."""
