"""Inference requests and responses as plain data, for every front end and the engine."""
