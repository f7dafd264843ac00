"""The engine: its protocol, which all front ends use, and its implementation in the process that runs the models."""
