"""The benchmark of an ensemble of two steps beside one of them."""
