"""gRPC beside binary HTTP: one server, one engine, two ports."""
