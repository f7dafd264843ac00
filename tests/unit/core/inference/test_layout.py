from __future__ import annotations

from trident.core.inference.tensors import layout_of


def test_tensors_that_look_alike_share_one_layout() -> None:
    described = [("A", "INT32", (1, 3), 12), ("B", "FP64", (1, 1), 8)]
    layout = layout_of(described)
    assert layout is layout_of(list(described))
    assert layout is not layout_of(described[:1])
    assert layout.size == 20
    assert layout.entries[1] == ("B", "FP64", (1, 1), 12, 20)
    assert layout_of([]).size == 0


def test_a_forgotten_layout_is_made_again() -> None:
    first = layout_of([("A", "INT8", (0,), 0)])
    for size in range(1, 1100):
        assert layout_of([("A", "INT8", (size,), size)]).size == size
    assert layout_of([("A", "INT8", (0,), 0)]).entries == first.entries
