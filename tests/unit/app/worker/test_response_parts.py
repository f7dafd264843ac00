from __future__ import annotations

import numpy as np
import pytest

from trident.app.worker.io import drop_sent, size_of
from trident.core.inference.tensors import Buffer


def test_the_size_of_a_part_is_in_bytes() -> None:
    assert [size_of(b"abc"), size_of(np.zeros((2, 3), np.int32).data)] == [3, 24]


@pytest.mark.parametrize(
    ("sent", "left"), [(0, [b"abc", b"", b"de"]), (2, [b"c", b"", b"de"]), (3, [b"de"]), (4, [b"e"])]
)
def test_sent_bytes_are_removed_from_the_parts(sent: int, left: list[bytes]) -> None:
    parts: list[Buffer] = [b"abc", b"", b"de"]
    drop_sent(parts, sent)
    assert [bytes(part) for part in parts] == left
