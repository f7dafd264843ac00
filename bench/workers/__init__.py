"""The benchmark of front-end processes before one engine process."""
