"""The response cache: keys of requests, and stored answers in memory or in Redis."""
