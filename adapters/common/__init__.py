"""The parts of a container that are the same on every platform."""
