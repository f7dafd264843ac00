from __future__ import annotations

import pytest

from tests.unit.core.http.payloads.payload_models import Signature, model
from trident.core.errors import InvalidRequest
from trident.core.http.payloads.csv import CsvLayout
from trident.core.http.payloads.payload import InstanceSignature, instance_signature


def signature(inputs: Signature, optional: str = "") -> InstanceSignature:
    return instance_signature(model(inputs, optional=optional), None)


def blocks(inputs: Signature, columns: int, optional: str = "") -> list[tuple[str, int, int, tuple[int, ...]]]:
    layout = CsvLayout(signature(inputs, optional), columns)
    return [(b.spec.name, b.columns.start, b.columns.stop, b.dims) for b in layout.blocks]


def test_inputs_are_columns_side_by_side() -> None:
    inputs: Signature = {"A": ("FP32", (2, 3)), "B": ("BYTES", (1,)), "C": ("FP32", ())}
    assert blocks(inputs, 8) == [("A", 0, 6, (2, 3)), ("B", 6, 7, (1,)), ("C", 7, 8, ())]


def test_the_number_of_columns_resolves_a_variable_dim() -> None:
    assert blocks({"A": ("FP32", (-1, 3)), "B": ("FP32", (1,))}, 7) == [("A", 0, 6, (2, 3)), ("B", 6, 7, (1,))]


def test_optional_inputs_may_be_missing() -> None:
    inputs: Signature = {"A": ("FP32", (2,)), "B": ("FP32", (1,))}
    assert len(blocks(inputs, 3, optional="B")) == 2
    assert blocks(inputs, 2, optional="B") == [("A", 0, 2, (2,))]


@pytest.mark.parametrize(
    ("inputs", "columns", "message"),
    [
        ({"A": ("FP32", (2,))}, 3, "row 1: expected 2 columns, got 3"),
        ({"A": ("FP32", (2,)), "B": ("FP32", ())}, 2, r"row 1: expected 3 columns \(2 for 'A', 1 for 'B'\), got 2"),
        ({"A": ("FP32", (-1, 3))}, 4, "row 1: expected columns: a multiple of 3 for 'A', got 4"),
        ({"A": ("FP32", (-1,)), "B": ("FP32", (4,))}, 4, "columns: a multiple of 1 for 'A', 4 for 'B', got 4"),
        ({"A": ("FP32", (-1, 0))}, 4, "got 4"),
        ({"A": ("FP32", (-1, -1))}, 4, "several variable dimensions"),
        ({"A": ("FP32", (-1,)), "B": ("FP32", (-1,))}, 4, "several variable dimensions"),
    ],
)
def test_a_wrong_number_of_columns_is_refused(inputs: Signature, columns: int, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        CsvLayout(signature(inputs), columns)
