"""The platforms on a laptop: `trident emulate`."""
