"""The Python environment of a model: which interpreter runs it, and with which variables."""
