"""The cache on the local disk for models from object stores."""
