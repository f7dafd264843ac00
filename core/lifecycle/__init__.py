"""The lifecycle of models: loading, versions and their states, reloading, unloading."""
