"""The memory that a front end and the engine share for large tensors."""
