"""The metrics page: a snapshot of the engine, Triton's metric families, and their text format."""
