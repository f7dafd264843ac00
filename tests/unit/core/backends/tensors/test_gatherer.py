"""Gathering the inputs of a batch: which arrays are copied, and to where."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.backend_serving import config_of, spec_of, strings, tensor_text
from tests.unit.packed_tensors import TWO, packed_request
from trident.core.backends.tensors.gather import Gatherer, batch_inputs, batch_total
from trident.core.config.request_check import RequestValidator
from trident.core.errors import BackendFailed
from trident.core.inference.request import InferenceRequest, InputTensor
from trident.core.inference.tensors import Array

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


def test_the_arrays_of_one_request_are_not_copied() -> None:
    array = rows(2, 4)
    assert Gatherer(spec_of(config_of(FIXED))).gather([request(INPUT0=array)], 2)["INPUT0"] is array


@pytest.mark.parametrize("text", [FIXED, VARIABLE])
@pytest.mark.parametrize("width", [4, 30_000])
def test_the_arrays_of_many_requests_are_concatenated(text: str, width: int) -> None:
    gatherer = Gatherer(spec_of(config_of(text.replace("[4]", f"[{width}]"))))
    feed = gatherer.gather([request(INPUT0=rows(n, width, n)) for n in (1, 2, 3)], 6)
    assert feed["INPUT0"].shape == (6, width)
    assert feed["INPUT0"][:, -1].tolist() == [1, 2, 2, 3, 3, 3]
    assert feed["INPUT0"].flags.c_contiguous


def test_the_buffer_is_reused_and_grows() -> None:
    gatherer = Gatherer(spec_of(config_of(VARIABLE)))
    first = gatherer.gather([request(INPUT0=rows(1, 8))] * 2, 2)["INPUT0"]
    again = gatherer.gather([request(INPUT0=rows(1, 4, 5))] * 3, 3)["INPUT0"]
    assert np.shares_memory(first, again)
    larger = gatherer.gather([request(INPUT0=rows(1, 80, 7))] * 3, 3)["INPUT0"]
    assert larger.shape == (3, 80)
    assert (larger == 7).all()
    assert np.shares_memory(larger, gatherer.gather([request(INPUT0=rows(1, 8))] * 2, 2)["INPUT0"])


def test_strings_are_not_staged() -> None:
    text = "max_batch_size: 8\n" + tensor_text("input", "INPUT0", "BYTES", [1])
    gatherer = Gatherer(spec_of(config_of(text)))
    feeds = [gatherer.gather([request(INPUT0=strings(e)) for e in pair], 2) for pair in ((b"a", b"b"), (b"c", b"d"))]
    assert [feed["INPUT0"].tolist() for feed in feeds] == [[[b"a"], [b"b"]], [[b"c"], [b"d"]]]


def test_ragged_inputs_are_flattened() -> None:
    gatherer = Gatherer(spec_of(config_of(RAGGED)))
    feed = gatherer.gather([request(INPUT0=rows(1, n, n)) for n in (2, 1, 3)], 3)
    assert feed["INPUT0"].tolist() == [2, 2, 1, 3, 3, 3]
    assert gatherer.gather([request(INPUT0=rows(1, 2))], 1)["INPUT0"].tolist() == [1, 1]


def test_a_batch_input_is_fed_to_all_its_targets() -> None:
    text = "batch_input { kind: BATCH_ELEMENT_COUNT target_name: ['A', 'B'] data_type: TYPE_INT32 "
    config = config_of(RAGGED + text + "source_input: 'INPUT0' }")
    gatherer = Gatherer(spec_of(config), batch_inputs=batch_inputs(config, "model"))
    for requests in (1, 2):
        feed = gatherer.gather([request(INPUT0=rows(1, 3))] * requests, requests)
        assert feed["A"].tolist() == feed["B"].tolist() == [3] * requests


def test_an_input_without_dimensions_gets_an_array_without_dimensions() -> None:
    spec = spec_of(config_of(tensor_text("input", "INPUT0", "FP32", [1])))
    gatherer = Gatherer(spec, scalars=frozenset({"INPUT0"}))
    assert gatherer.gather([request(INPUT0=np.ones(1, np.float32))], 1)["INPUT0"].shape == ()


def test_inputs_that_do_not_fit_together_fail() -> None:
    gatherer = Gatherer(spec_of(config_of(VARIABLE)))
    with pytest.raises(BackendFailed, match="the inputs 'INPUT0' of a batch for 'model' do not fit together"):
        gatherer.gather([request(INPUT0=rows(1, 2)), request(INPUT0=rows(1, 3))], 2)


def test_a_request_that_lacks_an_input_of_the_first_fails() -> None:
    gatherer = Gatherer(spec_of(config_of(FIXED)))
    with pytest.raises(BackendFailed, match="a request in the batch has no input 'INPUT0'"):
        gatherer.gather([request(INPUT0=rows(1, 4)), request()], 2)


def test_a_batch_with_too_many_items_is_refused() -> None:
    assert batch_total([1, 3], 4, "model") == 4
    assert batch_total([1], 0, "model") == 1
    with pytest.raises(BackendFailed, match="batch size 5 for 'model', max allowed is 4"):
        batch_total([2, 3], 4, "model")


def two_feed(*requests: InferenceRequest) -> dict[str, Array]:
    batch_sizes = [RequestValidator(TWO).check(request)[0] for request in requests]
    return Gatherer(TWO).gather(requests, sum(batch_sizes))


def test_requests_of_one_layout_become_one_block() -> None:
    feed = two_feed(packed_request([1, 2, 3], 0.5), packed_request([4, 5, 6], 1.5), packed_request([7, 8, 9], 2.5))
    assert feed["A"].tolist() == [[1, 2, 3], [4, 5, 6], [7, 8, 9]]
    assert feed["B"].tolist() == [[0.5], [1.5], [2.5]]
    assert all(array.flags.c_contiguous and array.flags.aligned for array in feed.values())


def test_requests_of_several_items_and_one_layout_become_one_block() -> None:
    feed = two_feed(packed_request([1, 2, 3], 0.5, rows=2), packed_request([4, 5, 6], 1.5, rows=2))
    assert feed["A"].tolist() == [[1, 2, 3]] * 2 + [[4, 5, 6]] * 2
    assert feed["B"].tolist() == [[0.5], [0.5], [1.5], [1.5]]


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


def test_a_shape_tensor_is_that_of_the_first_request() -> None:
    text = FIXED + tensor_text("input", "SHAPE", "FP32", [2], "is_shape_tensor: true")
    shape = np.array([3, 4], np.float32)
    requests = [request(INPUT0=rows(count, 4), SHAPE=shape.copy()) for count in (1, 2)]
    feed = Gatherer(spec_of(config_of(text))).gather(requests, 3)
    assert feed["SHAPE"].tolist() == [3, 4]
    assert feed["INPUT0"].shape == (3, 4)
