"""The scheduler of ensembles: which steps run, when, and what passes between them."""
