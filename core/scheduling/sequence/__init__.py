"""The sequence batcher: requests that belong together run in their order, on the instance that has their state."""
