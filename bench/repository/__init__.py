"""The benchmark of the model repository: downloads, starts, many models, loads under load."""
