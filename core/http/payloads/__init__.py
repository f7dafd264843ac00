"""Bodies in formats other than the v2 protocol's: their decoders, their encoders and inference on them."""
