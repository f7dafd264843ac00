"""`trident doctor`."""
