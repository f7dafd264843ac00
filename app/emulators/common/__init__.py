"""The parts that the emulators of all platforms share: the container, its client, an API server, reports."""
