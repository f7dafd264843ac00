"""The command `trident emulate` and its options."""
