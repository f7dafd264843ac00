"""JSON bodies: documents with instances, JSON Lines, and lines that are requests."""
