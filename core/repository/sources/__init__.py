"""The sources of models: local folders, object stores, load requests and single models."""
