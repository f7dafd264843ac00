"""The frameworks that run models: the protocol of a backend, the registry, and one package for each backend."""
