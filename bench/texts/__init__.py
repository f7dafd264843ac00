"""The benchmark of health while large texts are read."""
