"""Tensors in shared memory beside tensors in the request."""
