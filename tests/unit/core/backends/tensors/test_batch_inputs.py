"""Batch inputs: tensors that describe the requests of a batch."""

from __future__ import annotations

import numpy as np
import pytest

from tests.unit.backend_serving import config_of
from trident.core.backends.tensors.gather import batch_inputs, input_named
from trident.core.errors import BackendFailed, ConfigInvalid
from trident.core.inference.request import InferenceRequest, InputTensor


def request(*shape: int) -> InferenceRequest:
    tensor = InputTensor("INPUT0", "FP32", shape, memoryview(b""))
    tensor.array = np.zeros(shape, np.float32)
    return InferenceRequest("model", [tensor])


def made(kind: str, *shapes: tuple[int, ...], data_type: str = "TYPE_INT32") -> object:
    text = f"batch_input {{ kind: {kind} target_name: 'T' data_type: {data_type} source_input: 'INPUT0' }}"
    (spec,) = batch_inputs(config_of(text), "model")
    return spec.array([request(*shape) for shape in shapes]).tolist()


@pytest.mark.parametrize(
    ("kind", "expected"),
    [
        ("BATCH_ELEMENT_COUNT", [2, 4, 1, 3]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT", [2, 6, 7, 10]),
        ("BATCH_ACCUMULATED_ELEMENT_COUNT_WITH_ZERO", [0, 2, 6, 7, 10]),
        ("BATCH_MAX_ELEMENT_COUNT_AS_SHAPE", [0, 0, 0, 0]),
    ],
)
def test_counts_of_elements(kind: str, expected: list[int]) -> None:
    assert made(kind, (1, 2), (2, 2), (1, 1), (3, 1)) == expected


def test_shapes_have_a_row_for_every_item() -> None:
    assert made("BATCH_ITEM_SHAPE", (2, 1, 3), (1, 2, 2)) == [[1, 3], [1, 3], [2, 2]]
    assert made("BATCH_ITEM_SHAPE_FLATTEN", (2, 1, 3), (1, 2, 2)) == [1, 3, 1, 3, 2, 2]


def test_targets_and_datatype_are_configured() -> None:
    text = "batch_input { kind: BATCH_ELEMENT_COUNT target_name: ['A', 'B'] data_type: TYPE_FP32 source_input: 'I' }"
    (spec,) = batch_inputs(config_of(text), "model")
    assert (spec.target_names, spec.source, spec.dtype) == (("A", "B"), "I", np.dtype("float32"))


def test_an_unknown_kind_is_refused() -> None:
    config = config_of("batch_input { kind: BATCH_ELEMENT_COUNT source_input: 'I' }")
    with pytest.raises(ConfigInvalid, match="batch input of kind 0 is not supported for model"):
        batch_inputs(config, "model")


def test_a_request_without_the_source_fails() -> None:
    with pytest.raises(BackendFailed, match="a request in the batch has no input 'OTHER'"):
        input_named(request(1), "OTHER")
