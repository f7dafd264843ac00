"""Schedulers: the queue of each model version, and the threads that execute its requests in batches."""
