"""Matrices in the format of scipy.sparse.save_npz. They are written by hand, because the tests do not need scipy."""

from __future__ import annotations

import io
from typing import Any

import numpy as np
import pytest

from tests.unit.core.http.payloads.payload_models import RULES, model, one
from trident.core.errors import InvalidRequest
from trident.core.http.payloads.arrays import decode_npz, dense_matrix, is_sparse
from trident.core.http.payloads.payload import DecodeRules
from trident.core.inference.tensors import Array

MATRIX = [[0, 0, 3], [4, 5, 0]]
COMPRESSED = {"data": np.array([3, 4, 5.0]), "indices": np.array([2, 0, 1], np.int32), "shape": np.array([2, 3])}
CSR = {**COMPRESSED, "indptr": np.array([0, 1, 3], np.int32), "format": np.array(b"csr")}
CSC = {
    "data": np.array([4, 5, 3.0]),
    "indices": np.array([1, 1, 0], np.int32),
    "indptr": np.array([0, 1, 2, 3], np.int32),
    "shape": np.array([2, 3]),
    "format": np.array(b"csc"),
}
COO = {
    "data": np.array([5, 3, 4.0]),
    "row": np.array([1, 0, 1], np.int32),
    "col": np.array([1, 2, 0], np.int32),
    "shape": np.array([2, 3]),
    "format": np.array(b"coo"),
}
LIMIT = 1 << 20


def dense(arrays: dict[str, Array], **changes: Any) -> Array:
    changed = {name: np.asarray(value) for name, value in changes.items() if value is not None}
    kept = {name: array for name, array in arrays.items() if name not in changes}
    return dense_matrix({**kept, **changed}, 4, LIMIT)


def saved(**arrays: Any) -> bytes:
    file = io.BytesIO()
    np.savez_compressed(file, **arrays)
    return file.getvalue()


@pytest.mark.parametrize("arrays", [CSR, CSC, COO])
def test_each_format_becomes_a_dense_matrix(arrays: dict[str, Array]) -> None:
    assert is_sparse(arrays)
    assert dense(arrays).tolist() == MATRIX
    assert dense(arrays, format="".join(map(chr, arrays["format"].item()))).tolist() == MATRIX
    assert dense(arrays, data=np.array([True] * 3)).tolist() == (np.array(MATRIX) > 0).tolist()
    assert dense(arrays, data=arrays["data"].astype(np.float16)).dtype == np.float16


def test_values_with_the_same_position_are_added() -> None:
    assert dense(COO, row=[1, 1, 1], col=[2, 2, 0]).tolist() == [[0, 0, 0], [4, 0, 8]]
    assert dense(CSR, indices=[2, 1, 1]).tolist() == [[0, 0, 3], [0, 9, 0]]


def test_entries_after_the_last_row_are_ignored() -> None:
    assert dense(CSR, indptr=[0, 1, 2], indices=[2, 0, 99]).tolist() == [[0, 0, 3], [4, 0, 0]]


def test_a_matrix_without_values_is_zeros() -> None:
    nothing = np.array([], np.int32)
    assert dense(CSR, data=np.array([]), indices=nothing, indptr=[0, 0, 0]).tolist() == [[0, 0, 0]] * 2
    assert dense(COO, data=np.array([]), row=nothing, col=nothing).tolist() == [[0, 0, 0]] * 2


@pytest.mark.parametrize(
    ("arrays", "changes", "message"),
    [
        (CSR, {"format": b"bsr"}, "has a format that is not supported, supported are: csr, csc, coo"),
        (CSR, {"format": b"dia"}, "has a format that is not supported"),
        (CSR, {"format": 5}, "has a format that is not supported"),
        (CSR, {"format": "csr" * 100}, "has a format that is not supported"),
        (CSR, {"shape": [2, 3, 4]}, "'shape' must be the numbers of rows and columns"),
        (CSR, {"shape": [2.0, 3.0]}, "'shape' must be the numbers of rows and columns"),
        (CSR, {"shape": [-2, -3]}, "'shape' must be the numbers of rows and columns"),
        (CSR, {"shape": [2, 0]}, "'shape' must be the numbers of rows and columns"),
        (CSR, {"shape": [2**62, 2**62]}, f"at most {LIMIT} are allowed"),
        (CSR, {"shape": [1, LIMIT // 8 + 1]}, f"is {LIMIT + 8} bytes when it is dense, at most {LIMIT} are"),
        (COO, {"shape": [2**63 - 1, 1]}, f"at most {LIMIT} are allowed"),
        (CSR, {"data": [[3, 4, 5]]}, "'data' must be an array of one dimension, it has 2"),
        (CSR, {"data": ["a", "b", "c"]}, "'data' must be numbers or booleans"),
        (CSR, {"data": [1j, 2j, 3j]}, "'data' must be numbers or booleans"),
        (CSR, {"data": np.ones(LIMIT // 8 + 1, np.int8)}, f"values, at most {LIMIT // 8} are allowed"),
        (CSR, {"data": [1, 2]}, "'indices' and 'data' must have the same length"),
        (CSR, {"indices": None}, "'indices' must be an array of one dimension, there is none"),
        (CSR, {"indices": [2, 0, 3]}, "'indices' has a number that is not from 0 to 2"),
        (CSR, {"indices": [2, 0, -1]}, "'indices' has a number that is not from 0 to 2"),
        (CSR, {"indices": np.array([2, 0, 2**64 - 1], np.uint64)}, "'indices' has a number that is not from 0 to 2"),
        (CSR, {"indices": [2.0, 0.0, 1.0]}, "'indices' must be whole numbers"),
        (CSC, {"indices": [1, 1, 2]}, "'indices' has a number that is not from 0 to 1"),
        (CSR, {"indptr": [0, 1]}, "'indptr' must have 3 numbers, it has 2"),
        (CSC, {"indptr": [0, 1, 3]}, "'indptr' must have 4 numbers, it has 3"),
        (CSR, {"indptr": [0, 1, 4]}, "'indptr' has a number that is not from 0 to 3"),
        (CSR, {"indptr": [0, 3, 1]}, "'indptr' must begin at 0 and never decrease"),
        (CSR, {"indptr": [1, 1, 3]}, "'indptr' must begin at 0 and never decrease"),
        (COO, {"row": [1, 0]}, "'row', 'col' and 'data' must have the same length"),
        (COO, {"row": [2, 0, 1]}, "'row' has a number that is not from 0 to 1"),
        (COO, {"col": [1, 3, 0]}, "'col' has a number that is not from 0 to 2"),
    ],
)
def test_an_error_names_the_array(arrays: dict[str, Array], changes: dict[str, Any], message: str) -> None:
    with pytest.raises(InvalidRequest, match=message):
        dense(arrays, **changes)


@pytest.mark.parametrize("arrays", [CSR, CSC, COO, {**CSR, "_is_array": np.array(True)}])
def test_an_archive_with_a_matrix_is_the_only_input(arrays: dict[str, Array]) -> None:
    payload = decode_npz(saved(**arrays), one("FP32", 3), RULES)
    assert payload.arrays["IN"].tolist() == MATRIX
    assert payload.arrays["IN"].dtype == np.float32
    assert (payload.count, payload.stacked) == (2, True)


def test_a_matrix_with_another_shape_than_the_input_is_refused() -> None:
    with pytest.raises(InvalidRequest, match=r"input 'IN': expected shape \[-1,4\], got \[2,3\]"):
        decode_npz(saved(**CSR), one("FP32", 4), RULES)
    with pytest.raises(InvalidRequest, match="a sparse matrix needs a model with one input"):
        decode_npz(saved(**CSR), model({"A": ("FP32", (3,)), "B": ("FP32", (3,))}), RULES)
    with pytest.raises(InvalidRequest, match="at most 200 are allowed"):
        decode_npz(saved(**{**CSR, "shape": np.array([2, 30])}), one("FP32", -1), DecodeRules(max_input_size=200))


def test_inputs_may_have_the_names_of_a_matrix_arrays() -> None:
    spec = model({"data": ("FP32", (1,)), "shape": ("FP32", (1,)), "format": ("FP32", (1,))})
    payload = decode_npz(saved(**{name: np.ones((2, 1)) for name in spec.inputs}), spec, RULES)
    assert payload.arrays.keys() == spec.inputs.keys()
