"""Model repositories: their layout, their storages, and the configuration of the models in them."""
