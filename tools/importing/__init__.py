"""Makes models in a repository from what other programs have written."""
