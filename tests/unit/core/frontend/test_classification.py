from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from trident.core.errors import InvalidRequest
from trident.core.frontend.request import LARGEST_ITEM, classify, top_indices
from trident.core.inference.response import OutputTensor
from trident.core.inference.tensors import BY_NAME, Array


def output(values: object, datatype: str = "FP32") -> OutputTensor:
    array = np.array(values, dtype=BY_NAME[datatype].dtype)
    return OutputTensor("OUT", datatype, array.shape, array)


def test_each_batch_item_is_ranked_separately() -> None:
    ranked = classify(output([[0.1, 0.4, 0.3, 0.2], [9, 8, 7, 6]]), 2, 8, ("cat", "dog", "bird"))
    assert (ranked.name, ranked.datatype, ranked.shape) == ("OUT", "BYTES", (2, 2))
    assert ranked.array.tolist() == [[b"0.400000:1:dog", b"0.300000:2:bird"], [b"9.000000:0:cat", b"8.000000:1:dog"]]
    ranked = classify(output([[1, 5], [9, 3]], "INT32"), 3, 0, ())
    assert (ranked.shape, ranked.array.tolist()) == ((3,), [b"9:2", b"5:1", b"3:3"])
    assert classify(output([[1.0, 2.0]]), 2**40, 8, ()).array.tolist() == [[b"2.000000:1", b"1.000000:0"]]
    assert classify(output([[3, 2, 1]], "INT8"), 3, 8, ("", "é")).array.tolist() == [[b"3:0", "2:1:é".encode(), b"1:2"]]


@pytest.mark.parametrize(("shape", "expected"), [((0, 4), (0, 2)), ((2, 0), (2, 0)), ((3,), (3, 1))])
def test_classify_handles_empty_and_scalar_shapes(shape: tuple[int, ...], expected: tuple[int, ...]) -> None:
    assert classify(output(np.zeros(shape)), 2, 8, ()).array.shape == expected


@pytest.mark.parametrize(
    ("values", "datatype", "texts"),
    [
        ([2**64 - 1, 0], "UINT64", [b"18446744073709551615:0", b"0:1"]),
        ([-(2**63), 2**63 - 1], "INT64", [b"9223372036854775807:1", b"-9223372036854775808:0"]),
        ([-128, 127], "INT8", [b"127:1", b"-128:0"]),
        ([float("nan"), float("-inf")], "FP32", [b"-inf:1", b"nan:0"]),
        ([1e20, 0.1], "FP64", [b"100000000000000000000.000000:0", b"0.100000:1"]),
    ],
)
def test_classify_formats_extreme_values(values: list[float], datatype: str, texts: list[bytes]) -> None:
    assert classify(output(values, datatype), 2, 0, ()).array.tolist() == texts


@pytest.mark.parametrize("datatype", ["BOOL", "BYTES", "FP16", "BF16"])
def test_unranked_datatypes_are_refused(datatype: str) -> None:
    with pytest.raises(InvalidRequest) as refused:
        classify(output([1], datatype), 1, 0, ())
    assert refused.value.message == (f"class result not available for output due to unsupported type '{datatype}'")


def test_items_above_the_limit_are_refused() -> None:
    assert classify(output(np.zeros((2, LARGEST_ITEM), np.float32)), 1, 8, ()).shape == (2, 1)
    with pytest.raises(InvalidRequest, match=r"^classification output tensor too large$"):
        classify(output(np.zeros(LARGEST_ITEM + 1, np.float32)), 1, 0, ())


def in_order(values: Array) -> list[int]:
    """The indices in the expected order, found with a slow and simple sort: largest first, ties by index, NaN last."""
    return sorted(range(len(values)), key=lambda i: (bool(values[i] != values[i]), -float(values[i]), i))


@given(
    st.lists(st.sampled_from([0.0, -0.0, 1.0, 2.0, 2.5, float("nan"), float("inf"), float("-inf")]), min_size=1),
    st.integers(1, 10),
)
def test_floats_rank_ties_by_index_and_nan_last(values: list[float], k: int) -> None:
    array = np.array(values, dtype=np.float32)
    found = top_indices(array, min(k, len(values))).tolist()
    nans = [i for i in in_order(array) if np.isnan(array[i])]
    expected = [i for i in in_order(array) if not np.isnan(array[i])] + sorted(nans)
    assert found == expected[: len(found)]
