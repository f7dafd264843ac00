"""Downloads of models from object stores into the cache: parallel, resumable, verified."""
