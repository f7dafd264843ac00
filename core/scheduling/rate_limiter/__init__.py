"""The rate limiter: instances of all models that share resources, and take turns at them."""
