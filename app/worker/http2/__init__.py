"""HTTP/2 on the worker: the protocol without I/O, and the connections on it. It knows nothing of gRPC."""
