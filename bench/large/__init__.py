"""The benchmark of large tensors beside the least that moving them through a socket costs."""
