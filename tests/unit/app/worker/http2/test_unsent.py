from __future__ import annotations

import pytest

from trident.app.worker.http2.streams import Unsent


@pytest.mark.parametrize("step", [1, 2, 3, 7])
def test_it_is_cut_in_order_whatever_its_parts(step: int):
    unsent = Unsent(0.0)
    unsent.add((b"abc", memoryview(b"d"), b""), 4)
    unsent.add((bytearray(b"efg"),), 3)
    cut = []
    while unsent.size:
        parts = unsent.cut(min(step, unsent.size))
        cut.append(b"".join(parts))
    assert b"".join(cut) == b"abcdefg"
    assert {len(part) for part in cut[:-1]} <= {step}
