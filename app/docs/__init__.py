"""Generators of the pages in docs/ that list settings and metrics."""
