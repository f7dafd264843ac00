"""Calls: what becomes of a stream, from its first message to its status."""
