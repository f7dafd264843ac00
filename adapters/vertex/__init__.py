"""Vertex AI's container contract: routes, instances and predictions, redirects and settings."""
