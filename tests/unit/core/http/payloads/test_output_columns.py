from __future__ import annotations

import numpy as np
import pytest

from core.errors import BackendFailed, InvalidRequest
from core.http.payloads.output_columns import output_columns
from core.http.payloads.payload import DecodedPayload
from core.inference.response import OutputTensor
from core.inference.tensors import Array


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
