"""The backend `python`: models in Python, each instance in a process of its own, the stub.

The registry finds a backend by its module `backend`: this room is one when it has that module.
"""
