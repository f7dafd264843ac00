"""Splitting the results of a batch, padded or not, into the outputs of each request."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tests.unit.backend_serving import config_of, spec_of, tensor_text
from tests.unit.bucket_configs import bucket_model, bucket_text
from tests.unit.packed_tensors import TWO, plain_requests, two_results
from trident.core.backends.tensors.gather import PaddingGatherer
from trident.core.backends.tensors.split import PaddedSplitter, Splitter, scattered_outputs
from trident.core.errors import BackendFailed
from trident.core.inference.request import InferenceRequest, InputTensor
from trident.core.inference.response import InferenceResponse, Outputs, PackedOutputs
from trident.core.inference.tensors import Array

BATCHING = "max_batch_size: 8\n"


class Cutter:
    """A splitter for requests whose first input has the batch dimension."""

    def __init__(self, text: str) -> None:
        config = config_of(text)
        self._splitter = Splitter(spec_of(config), scattered_outputs(config))

    def split(self, requests: Sequence[InferenceRequest], results: Sequence[Array], total: int) -> Sequence[Outputs]:
        return self._splitter.split(requests, [request.inputs[0].shape[0] for request in requests], results, total)


def request(*shape: int, outputs: tuple[str, ...] = ()) -> InferenceRequest:
    tensor = InputTensor("INPUT0", "FP32", shape, memoryview(b""))
    tensor.array = np.zeros(shape, np.float32)
    return InferenceRequest("model", [tensor], outputs=outputs)


def numbers(*shape: int) -> Array:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


def test_outputs_are_views_of_the_result() -> None:
    result = numbers(3, 2)
    answers = Cutter(BATCHING + tensor_text("output", "O", "FP32", [2])).split(
        [request(1, 2), request(2, 2)], [result], 3
    )
    assert [answer[0].array.tolist() for answer in answers] == [[[0, 1]], [[2, 3], [4, 5]]]
    assert [answer[0].shape for answer in answers] == [(1, 2), (2, 2)]
    assert all(np.shares_memory(answer[0].array, result) for answer in answers)


@pytest.mark.parametrize("shape", [(), (3, 2), (1, 2)])
def test_a_result_of_another_batch_size_cannot_be_split(shape: tuple[int, ...]) -> None:
    cut = Cutter(BATCHING + tensor_text("output", "O", "FP32", [2]))
    for requests in ([request(2, 2)], [request(1, 2), request(1, 2)]):
        with pytest.raises(BackendFailed, match="output 'O' of 'model' has shape"):
            cut.split(requests, [numbers(*shape)], 2)


def test_variable_dimensions_are_matched_by_position() -> None:
    cut = Cutter(BATCHING + tensor_text("output", "O", "FP32", [-1, 6, -1], "reshape { shape: [-1, 2, 3, -1] }"))
    for requests, total in (([request(1, 1)], 1), ([request(1, 1), request(1, 1)], 2)):
        for answer in cut.split(requests, [numbers(total, 5, 2, 3, 7)], total):
            assert answer[0].shape == (1, 5, 6, 7)


def test_a_reshape_without_batching_covers_all_dimensions() -> None:
    cut = Cutter(tensor_text("output", "O", "FP32", [4], "reshape { shape: [2, 2] }"))
    assert cut.split([request(1, 1)], [numbers(2, 2)], 1)[0][0].shape == (4,)


SCATTER = "batch_output { target_name: 'O' kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: 'INPUT0' }"


def test_variable_dimensions_of_scattered_outputs_are_those_of_their_source() -> None:
    cut = Cutter(BATCHING + tensor_text("output", "O", "FP32", [-1]) + SCATTER)
    answers = cut.split([request(1, 2), request(2, 1)], [numbers(4)], 3)
    assert [answer[0].array.tolist() for answer in answers] == [[[0, 1]], [[2], [3]]]
    assert cut.split([request(1, 2)], [numbers(2)], 1)[0][0].array.tolist() == [[0, 1]]
    with pytest.raises(BackendFailed, match="output 'O' of 'model' has 3 elements, too few"):
        cut.split([request(1, 2), request(1, 2)], [numbers(3)], 2)


def test_an_output_that_follows_a_ragged_input_needs_a_batch_output() -> None:
    ragged = tensor_text("input", "INPUT0", "FP32", [-1], "allow_ragged_batch: true")
    cut = Cutter(BATCHING + ragged + tensor_text("output", "O", "FP32", [-1]))
    with pytest.raises(BackendFailed, match="follows a ragged input: name it in a batch_output with that input"):
        cut.split([request(1, 2), request(1, 3)], [numbers(5)], 2)


def test_small_results_become_one_run_of_bytes_for_each_request() -> None:
    answers = Splitter(TWO, {}).split(plain_requests(3), [1] * 3, two_results(3), 3)
    assert all(isinstance(answer, PackedOutputs) for answer in answers)
    responses = [InferenceResponse("m", 1, answer) for answer in answers]
    assert [[output.array.tolist() for output in response.outputs] for response in responses] == [
        [[[0, 1, 2]], [[0.0]]],
        [[[3, 4, 5]], [[1.0]]],
        [[[6, 7, 8]], [[2.0]]],
    ]
    assert all(output.array.flags.aligned for response in responses for output in response.outputs)
    assert len({answer.layout for answer in answers if isinstance(answer, PackedOutputs)}) == 1


def test_requests_for_different_outputs_get_their_own() -> None:
    requests = [*plain_requests(1), *plain_requests(1, ("B",))]
    answers = Splitter(TWO, {}).split(requests, [1, 1], two_results(2), 2)
    assert [[output.name for output in answer] for answer in answers] == [["A", "B"], ["B"]]


# --- padding


def split(
    text: str, requests: Sequence[InferenceRequest], *results: Array, axes: dict[str, tuple[int, ...]] | None = None
) -> list[list[Array]]:
    """The output arrays of each request."""
    spec, buckets = bucket_model(text)
    sizes = [each.inputs[0].shape[0] for each in requests]
    gatherer = PaddingGatherer(spec, buckets)
    gatherer.gather(requests, sum(sizes))
    answers = PaddedSplitter(spec, buckets, gatherer, axes or {}).split(requests, sizes, results, sum(sizes))
    for answer in answers:
        assert all(output.array.flags.c_contiguous and output.array.shape == output.shape for output in answer)
    return [[output.array for output in answer] for answer in answers]


def test_padding_rows_are_dropped() -> None:
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


def test_the_client_sees_its_length_in_the_configured_reshape() -> None:
    text = f"max_batch_size: 8\n{tensor_text('input', 'INPUT0', 'FP32', [-1])}"
    text += tensor_text("output", "OUTPUT0", "FP32", [-1, 1], "reshape { shape: [ -1 ] }")
    text += 'parameters { key: "LENGTH_BUCKETS" value { string_value: "4" } }'
    (answer,) = split(text, [request(1, 3)], numbers(1, 4), axes={"OUTPUT0": (1,)})
    assert answer[0].tolist() == [[[0], [1], [2]]]


def test_without_batching_the_whole_result_is_cut() -> None:
    text = bucket_text(max_batch_size=0, LENGTH_BUCKETS="4")
    assert split(text, [request(3)], numbers(4), axes={"OUTPUT0": (0,)})[0][0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("result", [numbers(3, 2), numbers(6), numbers()])
def test_a_result_without_the_rows_of_the_bucket_cannot_be_split(result: Array) -> None:
    with pytest.raises(BackendFailed, match=r"output 'OUTPUT0' of 'model' has shape .* for a batch of 4"):
        split(bucket_text(BATCH_BUCKETS="4,8"), [request(3, 2)], result)


def test_a_result_without_the_length_of_the_bucket_cannot_be_cut() -> None:
    with pytest.raises(BackendFailed, match=r"has shape \[1,5\] for inputs that were padded to the length 4") as caught:
        split(bucket_text(LENGTH_BUCKETS="4"), [request(1, 2)], numbers(1, 5), axes={"OUTPUT0": (1,)})
    assert "LENGTH_OUTPUTS" in str(caught.value.hint)
