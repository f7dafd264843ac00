"""The command `trident validate`."""
