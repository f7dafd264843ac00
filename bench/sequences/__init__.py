"""Sequences beside dynamic batching, and the memory of open sequences."""
