"""The response cache in a Redis server: no request waits for Redis longer than its budget, and none fails with it."""
