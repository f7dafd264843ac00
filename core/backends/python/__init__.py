"""The backend `python`: models in Python, each instance in a process of its own, the stub."""
