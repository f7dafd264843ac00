"""The life of models: loading, versions and their states, reloading, unloading, and what serves."""
