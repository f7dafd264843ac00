"""The command `trident completion`: scripts by which shells complete command lines of `trident`."""
