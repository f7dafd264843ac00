"""The guard of speed: this checkout beside the last release, door by door, in two minutes."""
