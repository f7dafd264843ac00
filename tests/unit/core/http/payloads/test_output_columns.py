from __future__ import annotations

import numpy as np
import pytest

from trident.core.errors import BackendFailed, InvalidRequest
from trident.core.http.long_json import ELEMENTS
from trident.core.http.payloads.payload import DecodedPayload, OutputColumn, output_columns, row_slices
from trident.core.inference.response import OutputTensor
from trident.core.inference.tensors import BY_NAME, Array


def tensor(name: str, array: Array, datatype: str = "FP32") -> OutputTensor:
    return OutputTensor(name, datatype, array.shape, array)


def payload(count: int | None, stacked: bool = True) -> DecodedPayload:
    return DecodedPayload(arrays={}, count=count, stacked=stacked)


def test_a_batch_is_kept_as_one_part() -> None:
    array = np.ones((2, 3), np.float32)
    (column,) = output_columns([[tensor("A", array)]], payload(2))
    assert column.parts[0] is array


def test_parts_of_a_batch_are_joined_in_order() -> None:
    responses = [[tensor("A", np.full((n, 2), n, np.float32))] for n in (2, 1)]
    (column,) = output_columns(responses, payload(3))
    assert [part.tolist() for part in column.parts] == [[[2, 2], [2, 2], [1, 1]]]


def test_single_instances_become_rows_and_keep_their_shapes() -> None:
    responses = [[tensor("A", np.zeros(n, np.float32)), tensor("B", np.float32(n) * np.ones(()))] for n in (1, 2)]
    first, second = output_columns(responses, payload(2, stacked=False))
    assert [part.shape for part in first.parts] == [(1, 1), (1, 2)]
    assert [part.tolist() for part in second.parts] == [[1, 2]]
    with pytest.raises(
        InvalidRequest, match=r"output 'A' has rows of different shapes, such as \[1\] and \[2\], which x"
    ):
        first.array("x")


def test_bf16_becomes_fp32() -> None:
    (column,) = output_columns([[tensor("A", np.array([0x3F80], np.uint16), "BF16")]], payload(1))
    assert column.parts[0].tolist() == [1.0]
    assert column.parts[0].dtype == np.float32


def test_whole_tensors_have_no_rows() -> None:
    (column,) = output_columns([[tensor("A", np.ones(()))]], payload(None))
    assert column.whole
    assert column.array("x").shape == ()


@pytest.mark.parametrize(
    "responses",
    [
        [[]],
        [[tensor("A", np.ones((3, 1)))]],
        [[tensor("A", np.ones(()))]],
        [[tensor("A", np.ones((1, 1)))], [tensor("B", np.ones((1, 1)))]],
    ],
)
def test_a_model_with_wrong_outputs_is_reported(responses: list[list[OutputTensor]]) -> None:
    with pytest.raises(BackendFailed):
        output_columns(responses, payload(2))


@pytest.mark.parametrize(("rows", "width"), [(5, 2), (3 * ELEMENTS, 1), (ELEMENTS, 3), (3, ELEMENTS), (0, 7)])
def test_slices_of_rows_are_the_rows_in_order(rows: int, width: int) -> None:
    numbers = np.arange(rows * width).reshape(rows, width)
    columns = [OutputColumn(name, BY_NAME["INT64"], [array]) for name, array in (("A", numbers), ("B", numbers[:, 0]))]
    slices = list(row_slices(columns))
    assert all(len(first.parts[0]) == len(second.parts[0]) for first, second in slices)
    assert all(first.parts[0].size <= max(ELEMENTS, width) for first, _ in slices)
    assert np.concatenate([first.parts[0] for first, _ in slices]).tolist() == numbers.tolist()


def test_columns_without_common_rows_are_one_slice() -> None:
    long, short = np.zeros(2 * ELEMENTS), np.zeros(3)
    for parts in ([long], [short]), ([long], [np.zeros(())]), ([long, short], [long]):
        columns = [OutputColumn(str(i), BY_NAME["FP64"], part, whole=True) for i, part in enumerate(parts)]
        assert list(row_slices(columns)) == [columns]
