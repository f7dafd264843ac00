"""Checks of a model configuration, one module per part; each returns all problems it finds."""
