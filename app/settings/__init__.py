"""The settings of a server: options, their types and groups, and how flags, variables and platforms set them."""
