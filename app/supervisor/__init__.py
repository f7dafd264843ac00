"""The processes of one server: gunicorn's arbiter and its workers, the engine's process, and their shared state."""
