"""Gathering a batch into tensors of the shape of its bucket."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.backend_serving import config_of, tensor_text
from tests.unit.bucket_configs import bucket_model, bucket_text
from trident.core.backends.tensors.gather import PaddingGatherer, batch_inputs, lengths_of
from trident.core.errors import BackendFailed
from trident.core.inference.request import InferenceRequest, InputTensor
from trident.core.inference.tensors import Array, bytes_array
from trident.core.observability.statistics import BucketUse


def gatherer(text: str) -> PaddingGatherer:
    spec, buckets = bucket_model(text)
    return PaddingGatherer(spec, buckets, batch_inputs=batch_inputs(config_of(text), "model"))


def request(**arrays: Array) -> InferenceRequest:
    tensors = []
    for name, array in arrays.items():
        tensors.append(InputTensor(name, "FP32", array.shape, memoryview(b"")))
        tensors[-1].array = array
    return InferenceRequest("model", tensors)


def rows(count: int, width: int, value: float = 1) -> Array:
    return np.full((count, width), value, np.float32)


def test_a_batch_gets_the_rows_of_its_bucket_as_copies_of_the_last_one() -> None:
    padding = gatherer(bucket_text(BATCH_BUCKETS="1,4,8"))
    feed = padding.gather([request(INPUT0=rows(1, 2, 3)), request(INPUT0=rows(2, 2, 5))], 3)
    assert feed["INPUT0"].tolist() == [[3, 3], [5, 5], [5, 5], [5, 5]]
    assert padding.use == BucketUse(4, 0, 6, 2)


def test_inputs_get_the_length_of_the_bucket_of_the_longest() -> None:
    padding = gatherer(bucket_text(LENGTH_BUCKETS="2,4,8", LENGTH_PAD_VALUES="INPUT0=-1"))
    feed = padding.gather([request(INPUT0=rows(1, 1)), request(INPUT0=rows(1, 3, 7))], 2)
    assert feed["INPUT0"].tolist() == [[1, -1, -1, -1], [7, 7, 7, -1]]
    assert padding.use == BucketUse(0, 4, 4, 4)


def test_a_batch_that_fills_its_bucket_is_not_copied() -> None:
    padding = gatherer(bucket_text(BATCH_BUCKETS="2,8", LENGTH_BUCKETS="4"))
    alone = rows(2, 4)
    assert padding.gather([request(INPUT0=alone)], 2)["INPUT0"] is alone
    assert padding.use == BucketUse(2, 4, 8, 0)
    together = padding.gather([request(INPUT0=rows(1, 4, 1)), request(INPUT0=rows(1, 4, 2))], 2)["INPUT0"]
    assert together.tolist() == [[1] * 4, [2] * 4]


def test_what_an_earlier_batch_left_in_the_buffer_is_not_seen() -> None:
    padding = gatherer(bucket_text(BATCH_BUCKETS="2,8", LENGTH_BUCKETS="4"))
    padding.gather([request(INPUT0=rows(1, 3, 9))], 1)
    assert padding.gather([request(INPUT0=rows(1, 1, 5))], 1)["INPUT0"].tolist() == [[5, 0, 0, 0]] * 2


def test_strings_are_padded_with_strings() -> None:
    text = bucket_text(datatype="BYTES", BATCH_BUCKETS="2,8", LENGTH_BUCKETS="3", LENGTH_PAD_VALUES="INPUT0=<pad>")
    feed = gatherer(text).gather([request(INPUT0=bytes_array([b"a", b"\0"], (1, 2)))], 1)
    assert feed["INPUT0"].tolist() == [[b"a", b"\0", b"<pad>"]] * 2
    assert {type(element) for element in feed["INPUT0"].ravel()} == {bytes}


def test_the_length_may_be_any_dimension_and_inputs_without_one_keep_theirs() -> None:
    text = bucket_text(dims=(2, -1), BATCH_BUCKETS="2,8", LENGTH_BUCKETS="3") + tensor_text("input", "S", "FP32", [1])
    padding = gatherer(text)
    feed = padding.gather([request(INPUT0=np.ones((1, 2, 2), np.float32), S=rows(1, 1, 6))], 1)
    assert feed["INPUT0"].tolist() == [[[1, 1, 0], [1, 1, 0]]] * 2
    assert feed["S"].tolist() == [[6], [6]]
    assert padding.use == BucketUse(2, 3, 5, 9)


def test_inputs_of_different_lengths_get_the_same_one() -> None:
    text = bucket_text(LENGTH_BUCKETS="2,4") + tensor_text("input", "MASK", "FP32", [-1])
    padding = gatherer(text)
    sent = request(INPUT0=rows(1, 1), MASK=rows(1, 3))
    assert {name: array.shape for name, array in padding.gather([sent], 1).items()} == {
        "INPUT0": (1, 4),
        "MASK": (1, 4),
    }
    _, buckets = bucket_model(text)
    assert lengths_of([sent, request(INPUT0=rows(1, 2), MASK=rows(1, 0))], buckets) == [3, 2]


def test_without_batching_only_the_length_is_padded() -> None:
    feed = gatherer(bucket_text(max_batch_size=0, LENGTH_BUCKETS="4")).gather([request(INPUT0=np.ones(3))], 1)
    assert feed["INPUT0"].tolist() == [1, 1, 1, 0]


@pytest.mark.parametrize(
    ("kind", "expected"),
    [("BATCH_ITEM_SHAPE", [[2], [1], [1], [1]]), ("BATCH_ITEM_SHAPE_FLATTEN", [2, 1, 1, 1])],
)
def test_shapes_of_items_are_the_real_ones_with_a_row_for_each_row(kind: str, expected: object) -> None:
    text = bucket_text(BATCH_BUCKETS="4,8", LENGTH_BUCKETS="4")
    text += f'batch_input {{ kind: {kind} target_name: "SHAPES" data_type: TYPE_INT32 source_input: "INPUT0" }}'
    feed = gatherer(text).gather([request(INPUT0=rows(1, 2)), request(INPUT0=rows(1, 1))], 2)
    assert feed["SHAPES"].tolist() == expected
    assert feed["SHAPES"].dtype == np.int32


def test_inputs_that_do_not_fit_together_fail() -> None:
    padding = gatherer(bucket_text(dims=(2, -1), LENGTH_BUCKETS="4"))
    with pytest.raises(BackendFailed, match="the inputs 'INPUT0' of a batch for 'model' do not fit together"):
        padding.gather([request(INPUT0=np.ones((1, 2, 3))), request(INPUT0=np.ones((1, 3, 3)))], 2)
