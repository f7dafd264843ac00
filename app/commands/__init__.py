"""The commands of `trident`."""
