from __future__ import annotations

import numpy as np
import pytest

from trident.core.http.long_json import joined_array
from trident.core.inference.tensors import Array


@pytest.mark.parametrize(
    "parts",
    [
        [np.arange(3)],
        [np.arange(3), np.arange(2), np.arange(0)],
        [np.ones((2, 3), np.float32), np.zeros((1, 3), np.float32)],
        [np.array([b"a", None], object), np.array([b"b"], object)],
        [np.array([1]), np.array([2.5])],
        [np.array(["a"]), np.array(["bcd"])],
    ],
)
def test_it_is_what_numpy_joins(parts: list[Array]) -> None:
    joined, expected = joined_array(parts), np.concatenate(parts)
    assert (joined.dtype, joined.tolist()) == (expected.dtype, expected.tolist())
