"""Gathering the inputs of a batch and splitting its results, padded or not."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pytest

from tests.unit.backend_serving import config_of, spec_of, tensor_text
from tests.unit.bucket_configs import bucket_model, bucket_text
from tests.unit.packed_tensors import TWO, packed_request, plain_requests, two_results
from trident.core.backends.tensors import (
    Gatherer,
    PaddedSplitter,
    PaddingGatherer,
    Splitter,
    StagingBuffer,
    SteadySizes,
    batch_inputs,
    batch_total,
    scattered_outputs,
)
from trident.core.config.request_check import RequestValidator
from trident.core.config.spec import BucketSpec
from trident.core.errors import BackendFailed, ConfigInvalid
from trident.core.inference.request import InferenceRequest, InputTensor
from trident.core.inference.response import Outputs, RegionInput, RegionReference
from trident.core.inference.tensors import Array
from trident.core.observability.statistics import BucketUse

VARIABLE = "max_batch_size: 8\n" + tensor_text("input", "INPUT0", "FP32", [-1])
FIXED = "max_batch_size: 8\n" + tensor_text("input", "INPUT0", "FP32", [4])
RAGGED = "max_batch_size: 8\n" + tensor_text("input", "INPUT0", "FP32", [-1], "allow_ragged_batch: true")


def request(**arrays: Array) -> InferenceRequest:
    tensors = []
    for name, array in arrays.items():
        tensor = InputTensor(name, "FP32", array.shape, memoryview(b""))
        tensor.array = array
        tensors.append(tensor)
    return InferenceRequest("model", tensors)


def rows(count: int, width: int, value: float = 1) -> Array:
    return np.full((count, width), value, np.float32)


@pytest.mark.parametrize("text", [FIXED, VARIABLE])
@pytest.mark.parametrize("width", [4, 30_000])
def test_arrays_of_many_requests_are_concatenated(text: str, width: int) -> None:
    gatherer = Gatherer(spec_of(config_of(text.replace("[4]", f"[{width}]"))))
    feed = gatherer.gather([request(INPUT0=rows(n, width, n)) for n in (1, 2, 3)], 6)
    assert feed["INPUT0"].shape == (6, width)
    assert feed["INPUT0"][:, -1].tolist() == [1, 2, 2, 3, 3, 3]
    assert feed["INPUT0"].flags.c_contiguous


def in_region(*values: float) -> InferenceRequest:
    content = memoryview(np.array(values, np.float32)).cast("B")
    tensor = RegionInput("INPUT0", "FP32", (len(values) // 4, 4), RegionReference("r", 0, len(content)))

    def read(into: memoryview | None) -> memoryview:
        assert into is not None, "it is read straight into the batch"
        into[:] = content
        return into

    tensor.source = read
    return InferenceRequest("model", [tensor])


@pytest.mark.parametrize("steady", [None, SteadySizes({4: 1.0}, 1.0)])
def test_tensors_in_regions_are_read_into_the_batch(steady: SteadySizes | None) -> None:
    spec = spec_of(config_of(FIXED))
    gatherer = Gatherer(spec) if steady is None else PaddingGatherer(spec, BucketSpec(), steady=steady)
    feed = gatherer.gather([in_region(1, 1, 1, 1), request(INPUT0=rows(1, 4, 2)), in_region(3, 3, 3, 3)], 3)
    expected = [[1] * 4, [2] * 4, [3] * 4] if steady is None else [[1] * 4, [2] * 4, [3] * 4, [3] * 4]
    assert feed["INPUT0"].tolist() == expected


def test_tensor_in_a_region_is_read_into_pinned_memory_for_a_gpu() -> None:
    pinned: dict[str, Array | None] = {}
    gatherer = Gatherer(spec_of(config_of(FIXED)), on_buffer=pinned.__setitem__)
    array = gatherer.gather([in_region(1, 2, 3, 4)], 1)["INPUT0"]
    assert array.tolist() == [[1, 2, 3, 4]]
    assert pinned["INPUT0"] is not None
    assert np.shares_memory(array, pinned["INPUT0"])


def test_buffer_is_reused_and_grows() -> None:
    gatherer = Gatherer(spec_of(config_of(VARIABLE)))
    first = gatherer.gather([request(INPUT0=rows(1, 8))] * 2, 2)["INPUT0"]
    again = gatherer.gather([request(INPUT0=rows(1, 4, 5))] * 3, 3)["INPUT0"]
    assert np.shares_memory(first, again)
    larger = gatherer.gather([request(INPUT0=rows(1, 80, 7))] * 3, 3)["INPUT0"]
    assert larger.shape == (3, 80)
    assert (larger == 7).all()
    assert np.shares_memory(larger, gatherer.gather([request(INPUT0=rows(1, 8))] * 2, 2)["INPUT0"])


def test_batch_input_is_fed_to_all_its_targets() -> None:
    text = "batch_input { kind: BATCH_ELEMENT_COUNT target_name: ['A', 'B'] data_type: TYPE_INT32 "
    config = config_of(RAGGED + text + "source_input: 'INPUT0' }")
    gatherer = Gatherer(spec_of(config), batch_inputs=batch_inputs(config, "model"))
    for requests in (1, 2):
        feed = gatherer.gather([request(INPUT0=rows(1, 3))] * requests, requests)
        assert feed["A"].tolist() == feed["B"].tolist() == [3] * requests


def test_inputs_that_do_not_fit_together_fail() -> None:
    gatherer = Gatherer(spec_of(config_of(VARIABLE)))
    with pytest.raises(BackendFailed, match="the inputs 'INPUT0' of a batch for 'model' do not fit together"):
        gatherer.gather([request(INPUT0=rows(1, 2)), request(INPUT0=rows(1, 3))], 2)


def test_request_that_lacks_an_input_of_the_first_fails() -> None:
    gatherer = Gatherer(spec_of(config_of(FIXED)))
    with pytest.raises(BackendFailed, match="a request in the batch has no input 'INPUT0'"):
        gatherer.gather([request(INPUT0=rows(1, 4)), request()], 2)


def test_batch_with_too_many_items_is_refused() -> None:
    assert batch_total([1, 3], 4, "model") == 4
    assert batch_total([1], 0, "model") == 1
    with pytest.raises(BackendFailed, match="batch size 5 for 'model', max allowed is 4"):
        batch_total([2, 3], 4, "model")


def two_feed(*requests: InferenceRequest) -> dict[str, Array]:
    batch_sizes = [RequestValidator(TWO).check(request)[0] for request in requests]
    return Gatherer(TWO).gather(requests, sum(batch_sizes))


def test_requests_of_different_layouts_are_gathered() -> None:
    single = InferenceRequest(
        "m",
        [
            InputTensor("B", "FP64", (1, 1), np.array([9.5])),
            InputTensor("A", "INT32", (1, 3), np.array([7, 8, 9], np.int32)),
        ],
    )
    feed = two_feed(packed_request([1, 2, 3], 0.5), packed_request([4, 5, 6], 1.5, rows=2), single)
    assert feed["A"].tolist() == [[1, 2, 3], [4, 5, 6], [4, 5, 6], [7, 8, 9]]
    assert feed["B"].tolist() == [[0.5], [1.5], [1.5], [9.5]]


def test_shape_tensor_is_that_of_the_first_request() -> None:
    text = FIXED + tensor_text("input", "SHAPE", "FP32", [2], "is_shape_tensor: true")
    shape = np.array([3, 4], np.float32)
    requests = [request(INPUT0=rows(count, 4), SHAPE=shape.copy()) for count in (1, 2)]
    feed = Gatherer(spec_of(config_of(text))).gather(requests, 3)
    assert feed["SHAPE"].tolist() == [3, 4]
    assert feed["INPUT0"].shape == (3, 4)


def test_buffer_owner_is_notified_of_allocation_and_release() -> None:
    seen: list[int] = []
    buffer = StagingBuffer(
        "X", np.dtype("float32"), lambda name, array: seen.append(-1 if array is None else array.size)
    )
    buffer.view((2, 3))
    buffer.view((1, 3))
    buffer.view((4, 3))
    buffer.close()
    buffer.close()
    assert seen == [6, -1, 12, -1]


# --- padding


def gatherer(text: str) -> PaddingGatherer:
    spec, buckets = bucket_model(text)
    return PaddingGatherer(spec, buckets, batch_inputs=batch_inputs(config_of(text), "model"))


def test_batch_gets_the_rows_of_its_bucket_as_copies_of_the_last_one() -> None:
    padding = gatherer(bucket_text(BATCH_BUCKETS="1,4,8"))
    feed = padding.gather([request(INPUT0=rows(1, 2, 3)), request(INPUT0=rows(2, 2, 5))], 3)
    assert feed["INPUT0"].tolist() == [[3, 3], [5, 5], [5, 5], [5, 5]]
    assert padding.use == BucketUse(4, 0, 6, 2)


def test_steady_size_changes_if_worth_its_cost() -> None:
    steady = SteadySizes({1: 2.0, 4: 3.0, 8: 5.0}, 10.0)
    assert [steady.size(8) for _ in range(3)] == [8, 8, 8]  # it saves 16 - 5
    assert [steady.size(1) for _ in range(5)] == [8, 8, 8, 1, 1]  # saves 3 each time
    assert [steady.size(4) for _ in range(4)] == [1, 1, 4, 4]  # saves 5 each time
    assert [steady.size(16) for _ in range(3)] == [4, 4, 4]  # saves 2 each time


def test_full_bucket_is_not_copied() -> None:
    padding = gatherer(bucket_text(BATCH_BUCKETS="2,8", LENGTH_BUCKETS="4"))
    alone = rows(2, 4)
    assert padding.gather([request(INPUT0=alone)], 2)["INPUT0"] is alone
    assert padding.use == BucketUse(2, 4, 8, 0)
    together = padding.gather([request(INPUT0=rows(1, 4, 1)), request(INPUT0=rows(1, 4, 2))], 2)["INPUT0"]
    assert together.tolist() == [[1] * 4, [2] * 4]


def test_padded_inputs_that_do_not_fit_together_fail() -> None:
    padding = gatherer(bucket_text(dims=(2, -1), LENGTH_BUCKETS="4"))
    with pytest.raises(BackendFailed, match="the inputs 'INPUT0' of a batch for 'model' do not fit together"):
        padding.gather([request(INPUT0=np.ones((1, 2, 3))), request(INPUT0=np.ones((1, 3, 3)))], 2)


# --- batch inputs


def made(kind: str, *shapes: tuple[int, ...]) -> object:
    text = f"batch_input {{ kind: {kind} target_name: 'T' data_type: TYPE_INT32 source_input: 'INPUT0' }}"
    (spec,) = batch_inputs(config_of(text), "model")
    return spec.array([request(INPUT0=np.zeros(shape, np.float32)) for shape in shapes]).tolist()


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("BATCH_ELEMENT_COUNT", [2, 4, 1, 3]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT", [2, 6, 7, 10]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", [0, 2, 6, 7, 10]),
        ("BATCH_MAX_ELEMENT_COUNT_AS_SHAPE", [0, 0, 0, 0]),
    ],
)
def test_batch_inputs_count_elements(kind: str, expected: list[int]) -> None:
    assert made(kind, (1, 2), (2, 2), (1, 1), (3, 1)) == expected


def test_unknown_kind_is_refused() -> None:
    config = config_of("batch_input { kind: BATCH_ELEMENT_COUNT source_input: 'I' }")
    with pytest.raises(ConfigInvalid, match="batch input of kind 0 is not supported for model"):
        batch_inputs(config, "model")


# --- splitting


BATCHING = "max_batch_size: 8\n"


class Cutter:
    """A splitter for requests whose first input has the batch dimension."""

    def __init__(self, text: str) -> None:
        config = config_of(text)
        self._splitter = Splitter(spec_of(config), scattered_outputs(config))

    def split(self, requests: Sequence[InferenceRequest], results: Sequence[Array], total: int) -> Sequence[Outputs]:
        return self._splitter.split(requests, [request.inputs[0].shape[0] for request in requests], results, total)


def sized(*shape: int) -> InferenceRequest:
    return request(INPUT0=np.zeros(shape, np.float32))


def numbers(*shape: int) -> Array:
    return np.arange(np.prod(shape), dtype=np.float32).reshape(shape)


@pytest.mark.parametrize("shape", [(), (3, 2), (1, 2)])
def test_result_of_another_batch_size_cannot_be_split(shape: tuple[int, ...]) -> None:
    cut = Cutter(BATCHING + tensor_text("output", "O", "FP32", [2]))
    for requests in ([sized(2, 2)], [sized(1, 2), sized(1, 2)]):
        with pytest.raises(BackendFailed, match="output 'O' of 'model' has shape"):
            cut.split(requests, [numbers(*shape)], 2)


def test_variable_dimensions_are_matched_by_position() -> None:
    cut = Cutter(BATCHING + tensor_text("output", "O", "FP32", [-1, 6, -1], "reshape { shape: [-1, 2, 3, -1] }"))
    for requests, total in (([sized(1, 1)], 1), ([sized(1, 1), sized(1, 1)], 2)):
        for answer in cut.split(requests, [numbers(total, 5, 2, 3, 7)], total):
            assert answer[0].shape == (1, 5, 6, 7)
    alone = Cutter(tensor_text("output", "O", "FP32", [4], "reshape { shape: [2, 2] }"))
    assert alone.split([sized(1, 1)], [numbers(2, 2)], 1)[0][0].shape == (4,)


SCATTER = "batch_output { target_name: 'O' kind: BATCH_SCATTER_WITH_INPUT_SHAPE source_input: 'INPUT0' }"


def test_variable_dimensions_of_scattered_outputs_are_those_of_their_source() -> None:
    cut = Cutter(BATCHING + tensor_text("output", "O", "FP32", [-1]) + SCATTER)
    answers = cut.split([sized(1, 2), sized(2, 1)], [numbers(4)], 3)
    assert [answer[0].array.tolist() for answer in answers] == [[[0, 1]], [[2], [3]]]
    assert cut.split([sized(1, 2)], [numbers(2)], 1)[0][0].array.tolist() == [[0, 1]]
    with pytest.raises(BackendFailed, match="output 'O' of 'model' has 3 elements, too few"):
        cut.split([sized(1, 2), sized(1, 2)], [numbers(3)], 2)


def test_output_that_follows_a_ragged_input_needs_a_batch_output() -> None:
    ragged = tensor_text("input", "INPUT0", "FP32", [-1], "allow_ragged_batch: true")
    cut = Cutter(BATCHING + ragged + tensor_text("output", "O", "FP32", [-1]))
    with pytest.raises(BackendFailed, match="follows a ragged input: name it in a batch_output with that input"):
        cut.split([sized(1, 2), sized(1, 3)], [numbers(5)], 2)


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
    answers = split(text, [sized(1, 2), sized(2, 2)], numbers(4, 2))
    assert [answer[0].tolist() for answer in answers] == [[[0, 1]], [[2, 3], [4, 5]]]
    assert split(text, [sized(4, 2)], numbers(4, 2))[0][0].shape == (4, 2)


def test_length_is_cut_in_a_reshaped_output() -> None:
    text = f"max_batch_size: 8\n{tensor_text('input', 'INPUT0', 'FP32', [-1])}"
    text += tensor_text("output", "OUTPUT0", "FP32", [-1, 1], "reshape { shape: [ -1 ] }")
    text += 'parameters { key: "LENGTH_BUCKETS" value { string_value: "4" } }'
    (answer,) = split(text, [sized(1, 3)], numbers(1, 4), axes={"OUTPUT0": (1,)})
    assert answer[0].tolist() == [[[0], [1], [2]]]


def test_without_batching_the_whole_result_is_cut() -> None:
    text = bucket_text(max_batch_size=0, LENGTH_BUCKETS="4")
    assert split(text, [sized(3)], numbers(4), axes={"OUTPUT0": (0,)})[0][0].tolist() == [0, 1, 2]


@pytest.mark.parametrize("result", [numbers(3, 2), numbers(6), numbers()])
def test_result_without_the_rows_of_the_bucket_cannot_be_split(result: Array) -> None:
    with pytest.raises(BackendFailed, match=r"output 'OUTPUT0' of 'model' has shape .* for a batch of 4"):
        split(bucket_text(BATCH_BUCKETS="4,8"), [sized(3, 2)], result)


def test_result_without_the_length_of_the_bucket_cannot_be_cut() -> None:
    with pytest.raises(BackendFailed, match=r"has shape \[1,5\] for inputs that were padded to the length 4") as caught:
        split(bucket_text(LENGTH_BUCKETS="4"), [sized(1, 2)], numbers(1, 5), axes={"OUTPUT0": (1,)})
    assert "LENGTH_OUTPUTS" in str(caught.value.hint)
