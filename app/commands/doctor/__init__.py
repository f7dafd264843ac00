"""The command `trident doctor`: each module reads one part of the machine and turns the readings into lines."""
