"""A batcher with a target beside the best fixed setting: simulated, and on a real server."""
