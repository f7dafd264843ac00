"""How a caller waits for an outcome that another thread brings: on a lock, or as a greenlet on the hub."""
