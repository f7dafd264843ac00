"""Splitting the results of a padded batch."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tests.unit.backend_serving import tensor_text
from tests.unit.bucket_configs import bucket_model, bucket_text
from trident.core.backends.tensors.split import PaddedSplitter
from trident.core.errors import BackendFailed
from trident.core.inference.request import InferenceRequest, InputTensor
from trident.core.inference.tensors import Array


def request(*shape: int, outputs: tuple[str, ...] = ()) -> InferenceRequest:
    tensor = InputTensor("INPUT0", "FP32", shape, memoryview(b""))
    tensor.array = np.zeros(shape, np.float32)
    return InferenceRequest("model", [tensor], outputs=outputs)


def numbers(*shape: int) -> Array:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def split(
    text: str, requests: Sequence[InferenceRequest], *results: Array, axes: dict[str, tuple[int, ...]] | None = None
) -> list[list[Array]]:
    """The output arrays of each request."""
    spec, buckets = bucket_model(text)
    sizes = [each.inputs[0].shape[0] for each in requests]
    answers = PaddedSplitter(spec, buckets, axes or {}).split(requests, sizes, results, sum(sizes))
    for answer in answers:
        assert all(output.array.flags.c_contiguous and output.array.shape == output.shape for output in answer)
    return [[output.array for output in answer] for answer in answers]


def test_added_rows_belong_to_nobody() -> None:
    text = bucket_text(BATCH_BUCKETS="4,8")
    answers = split(text, [request(1, 2), request(2, 2)], numbers(4, 2))
    assert [answer[0].tolist() for answer in answers] == [[[0, 1]], [[2, 3], [4, 5]]]
    assert split(text, [request(4, 2)], numbers(4, 2))[0][0].shape == (4, 2)


@pytest.mark.parametrize("width", [2, 40_000])
def test_each_request_gets_its_own_length(width: int) -> None:
    """Small and large outputs."""
    text = bucket_text(BATCH_BUCKETS="4,8", LENGTH_BUCKETS="3", dims=(-1, width))
    result = numbers(4, 3, width)
    first, second = split(text, [request(1, 1, width), request(2, 3, width)], result, axes={"OUTPUT0": (1,)})
    assert np.array_equal(first[0], result[:1, :1])
    assert np.array_equal(second[0], result[1:3])


def test_several_dimensions_may_be_as_long_as_the_inputs() -> None:
    text = bucket_text(LENGTH_BUCKETS="3", out_dims=(-1, -1))
    result = numbers(2, 3, 3)
    answers = split(text, [request(1, 2), request(1, 1)], result, axes={"OUTPUT0": (1, 2)})
    assert [answer[0].tolist() for answer in answers] == [[[[0, 1], [3, 4]]], [[[9]]]]


def test_other_outputs_stay_as_the_model_made_them() -> None:
    text = bucket_text(LENGTH_BUCKETS="3") + tensor_text("output", "OTHER", "FP32", [-1])
    (answer,) = split(text, [request(1, 2)], numbers(1, 3), numbers(1, 3), axes={"OUTPUT0": (1,)})
    assert [array.shape for array in answer] == [(1, 2), (1, 3)]


def test_the_client_sees_its_length_in_the_configured_reshape() -> None:
    text = f"max_batch_size: 8\n{tensor_text('input', 'INPUT0', 'FP32', [-1])}"
    text += tensor_text("output", "OUTPUT0", "FP32", [-1, 1], "reshape { shape: [ -1 ] }")
    text += 'parameters { key: "LENGTH_BUCKETS" value { string_value: "4" } }'
    (answer,) = split(text, [request(1, 3)], numbers(1, 4), axes={"OUTPUT0": (1,)})
    assert answer[0].tolist() == [[[0], [1], [2]]]


def test_without_batching_the_whole_result_is_cut() -> None:
    text = bucket_text(max_batch_size=0, LENGTH_BUCKETS="4")
    assert split(text, [request(3)], numbers(4), axes={"OUTPUT0": (0,)})[0][0].tolist() == [0, 1, 2]


def test_only_the_requested_outputs_are_given() -> None:
    text = bucket_text(LENGTH_BUCKETS="3") + tensor_text("output", "OTHER", "FP32", [1])
    wanted = request(1, 2, outputs=("OTHER",))
    ((other,),) = split(text, [wanted], numbers(1, 3), numbers(1, 1), axes={"OUTPUT0": (1,)})
    assert other.tolist() == [[0]]


@pytest.mark.parametrize("result", [numbers(3, 2), numbers(6), numbers()])
def test_a_result_without_the_rows_of_the_bucket_cannot_be_split(result: Array) -> None:
    with pytest.raises(BackendFailed, match=r"output 'OUTPUT0' of 'model' has shape .* for a batch of 4"):
        split(bucket_text(BATCH_BUCKETS="4,8"), [request(3, 2)], result)


def test_a_result_without_the_length_of_the_bucket_cannot_be_cut() -> None:
    with pytest.raises(BackendFailed, match=r"has shape \[1,5\] for inputs that were padded to the length 4") as caught:
        split(bucket_text(LENGTH_BUCKETS="4"), [request(1, 2)], numbers(1, 5), axes={"OUTPUT0": (1,)})
    assert "LENGTH_OUTPUTS" in str(caught.value.hint)
