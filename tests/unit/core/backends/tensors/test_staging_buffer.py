from __future__ import annotations

import numpy as np

from trident.core.backends.tensors.gather import StagingBuffer


def test_the_owner_is_told_of_each_buffer_and_its_end() -> None:
    seen: list[int] = []
    buffer = StagingBuffer(
        "X", np.dtype("float32"), lambda name, array: seen.append(-1 if array is None else array.size)
    )
    buffer.view((2, 3))
    buffer.view((1, 3))
    buffer.view((4, 3))
    buffer.close()
    buffer.close()
    assert seen == [6, -1, 12, -1]


def test_the_number_of_remembered_views_is_bounded() -> None:
    buffer = StagingBuffer("X", np.dtype("float32"))
    for width in range(1000):
        assert buffer.view((1, width)).shape == (1, width)
    assert len(buffer._views) <= 256
