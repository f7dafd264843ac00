"""The change of a tensor's batch dimension between two models."""

from __future__ import annotations

import pytest

from trident.core.inference.tensors import Shape
from trident.core.scheduling.ensemble import shape_change


@pytest.mark.parametrize(
    ("takes_batch", "dims", "shape", "expected"),
    [
        (True, (4,), (4,), (1, 4)),
        (True, (4,), (3, 4), (3, 4)),
        (True, (-1,), (4,), (1, 4)),
        (False, (4,), (1, 4), (4,)),
        (False, (-1, 4), (3, 4), (3, 4)),
        (False, (-1, 4), (1, 4), (1, 4)),
        (False, (4,), (3, 4), (3, 4)),
    ],
)
def test_a_batch_dimension_comes_or_goes(takes_batch: bool, dims: Shape, shape: Shape, expected: Shape) -> None:
    change = shape_change(not takes_batch, takes_batch, dims)
    assert change is not None
    assert change.apply(shape) == expected


def test_models_of_one_kind_change_nothing() -> None:
    assert shape_change(True, True, (4,)) is None
    assert shape_change(False, False, (4,)) is None
