"""A process of the server: its environment, heap, garbage collector, files, and end."""
