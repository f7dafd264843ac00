"""The parts of a long array as one array."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from core.inference.tensors import Array


def joined_array(parts: Sequence[Array]) -> Array:
    """As `np.concatenate`, which holds the interpreter's lock until it has copied everything: 35 ms for 46 MB."""
    first = parts[0]
    if len(parts) == 1 or any(part.dtype != first.dtype for part in parts):
        return np.concatenate(parts)
    whole = np.empty((sum(len(part) for part in parts), *first.shape[1:]), first.dtype)
    start = 0
    for part in parts:
        whole[start : start + len(part)] = part
        start += len(part)
    return whole
