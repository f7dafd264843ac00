from __future__ import annotations

import numpy as np
import pytest

from tests.unit.core.http.payloads.payload_models import model, one
from trident.core.config.spec import ModelSpec
from trident.core.errors import InvalidRequest
from trident.core.http.payloads.payload import common_count, decode_arrays, fits_dims
from trident.core.inference.tensors import Array


def test_arrays_with_rows_are_a_batch() -> None:
    payload = decode_arrays({"IN": np.ones((3, 2))}, one("FP32", 2))
    assert (payload.count, payload.stacked, payload.arrays["IN"].dtype) == (3, True, np.float32)


@pytest.mark.parametrize(
    ("shape", "spec", "count"),
    [
        ((3, 2), one("FP32", 2, batch=0), 3),
        ((2,), one("FP32", 2, batch=0), None),
        ((5, 2), one("FP32", -1, 2, batch=0), None),
        ((3, 5, 2), one("FP32", -1, 2, batch=0), 3),
        ((), one("FP32", batch=0), None),
        ((3,), one("FP32", batch=0), 3),
    ],
)
def test_a_model_without_batching_gets_instances_or_one_whole_tensor(
    shape: tuple[int, ...], spec: ModelSpec, count: int | None
) -> None:
    payload = decode_arrays({"IN": np.ones(shape)}, spec)
    assert (payload.count, payload.stacked) == (count, False)


@pytest.mark.parametrize(
    ("array", "spec", "message"),
    [
        (np.ones(2), one("FP32", 2), r"input 'IN': expected shape \[-1,2\], got \[2\]"),
        (np.ones((1, 3)), one("FP32", 2, batch=0), r"input 'IN': expected shape \[-1,2\] or \[2\], got \[1,3\]"),
        (np.ones((0, 2)), one("FP32", 2), "input 'IN' has no rows"),
        (np.ones((10**12, 0)), one("FP32", -1), "input 'IN' has 1000000000000 rows without an element"),
        (np.array([["a"]]), one("FP32", 1), "input 'IN': expected elements of FP32, got strings"),
        (np.ones((1, 1)), one("BYTES", 1), "input 'IN': expected elements of BYTES, got an array of float64"),
        (np.ones((1, 1)), one("BOOL", 1), "input 'IN': expected elements of BOOL, got an array of float64"),
        (np.array([[1], [300]]), one("INT8", 1), r"input 'IN', element \[1,0\]: expected an integer"),
        (np.ones((1, 1)), model({"A": ("FP32", (1,))}), "the arrays: 'IN' is not an input"),
    ],
)
def test_an_error_names_the_input(array: Array, spec: ModelSpec, message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        decode_arrays({"IN": array}, spec)


def test_inputs_with_different_rows_are_refused() -> None:
    assert common_count({"A": np.ones(2), "B": np.ones((2, 2))}) == 2
    with pytest.raises(InvalidRequest, match="input 'B' has 3 rows, input 'A' has 2: expected the same"):
        common_count({"A": np.ones(2), "B": np.ones(3)})


def test_variable_dims_fit_any_length() -> None:
    assert fits_dims((3, 2), (-1, 2))
    assert not fits_dims((3, 2), (3, 3))
    assert not fits_dims((3,), (3, 3))


def test_strings_become_bytes_objects() -> None:
    arrays = {"IN": np.array([["é"], ["b"]])}
    assert decode_arrays(arrays, one("BYTES", 1)).arrays["IN"].tolist() == [["é".encode()], [b"b"]]
