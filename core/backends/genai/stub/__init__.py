"""What runs in the process of an instance. It imports nothing of the server but the library of Python models."""
