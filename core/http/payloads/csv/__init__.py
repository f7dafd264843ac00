"""CSV bodies: one instance or prediction on each row."""
