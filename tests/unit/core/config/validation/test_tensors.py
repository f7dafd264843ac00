"""The problems of inputs, outputs, batch inputs and batch outputs."""

from __future__ import annotations

import pytest
from google.protobuf import text_format

from trident.core.config.schema import ModelConfig
from trident.core.config.validate import batch_tensor_problems, tensor_problems

GOOD_IN = 'input { name: "A" data_type: TYPE_FP32 dims: [ 4 ] }'
GOOD_OUT = 'output { name: "Z" data_type: TYPE_FP32 dims: [ 4 ] }'
DIMENSIONS = "must be integer >= 1, or -1 to indicate a variable-size dimension for m"


def config_of(text: str) -> ModelConfig:
    return text_format.Parse(text, ModelConfig(name="m", platform="onnxruntime_onnx"))


def messages(text: str) -> list[str]:
    return [problem.message for problem in tensor_problems(config_of(text), "m")]


@pytest.mark.parametrize(
    ("fields", "text"),
    [
        ("data_type: TYPE_FP32 dims: [ 1 ]", "model {side} must specify 'name' for m"),
        ('name: "X" dims: [ 1 ]', "model {side} 'X' must specify 'data_type' for m"),
        ('name: "X" data_type: 77 dims: [ 1 ]', "model {side} 'X' must specify 'data_type' for m"),
        ('name: "X" data_type: TYPE_FP32', "model {side} 'X' must specify 'dims' for m"),
        ('name: "X" data_type: TYPE_FP32 dims: [ 0 ]', f"model {{side}} 'X' dimension {DIMENSIONS}"),
        ('name: "X" data_type: TYPE_FP32 dims: [ -2 ]', f"model {{side}} 'X' dimension {DIMENSIONS}"),
        (
            'name: "X" data_type: TYPE_FP32 dims: [ 1 ] reshape {}',
            "model {side} 'X' cannot have empty reshape for non-batching model as scalar tensors are not supported "
            "for m",
        ),
        (
            'name: "X" data_type: TYPE_FP32 dims: [ 1 ] reshape { shape: [ 0 ] }',
            f"model {{side}} 'X' reshape dimensions {DIMENSIONS}",
        ),
        (
            'name: "X" data_type: TYPE_FP32 dims: [ 4 ] reshape { shape: [ 5 ] }',
            "model {side} 'X' has different size for dims and reshape for m",
        ),
        (
            'name: "X" data_type: TYPE_FP32 dims: [ -1, 4 ] reshape { shape: [ 4, -1 ] }',
            "model {side} 'X' has different size for dims and reshape for m",
        ),
        (
            'name: "X" data_type: TYPE_FP32 dims: [ -1, 4 ] reshape { shape: [ -1, -1, 4 ] }',
            "model {side} 'X' has different number of variable-size dimensions for dims and reshape for m",
        ),
        (
            'name: "X" data_type: TYPE_FP32 dims: [ 4 ] is_shape_tensor: true',
            "shape tensors are only supported for TensorRT platform for m",
        ),
        (
            'name: "X" data_type: TYPE_FP32 dims: [ 4 ] is_non_linear_format_io: true',
            "Non-linear IO format is only supported for the TensorRT platform for m",
        ),
    ],
)
@pytest.mark.parametrize("side", ["input", "output"])
def test_tensor_problem_has_its_text(side: str, fields: str, text: str) -> None:
    assert messages(f"{side} {{ {fields} }}") == [text.format(side=side)]


@pytest.mark.parametrize(
    "fields",
    [
        "dims: [ 2, 4, -1, 6 ] reshape { shape: [ 8, -1, 1, 6 ] }",
        "dims: [ -1 ] reshape { shape: [ 1, -1 ] }",
        "dims: [ 1 ] reshape {}",
        "dims: [ 2, 3 ] reshape { shape: [ 6 ] }",
    ],
)
def test_reshape_with_equal_size_has_no_problem(fields: str) -> None:
    assert messages(f'max_batch_size: 2 input {{ name: "X" data_type: TYPE_FP32 {fields} }}') == []


def test_empty_reshape_is_allowed_before_auto_complete() -> None:
    config = config_of('input { name: "X" data_type: TYPE_FP32 dims: [ 1 ] reshape {} }')
    assert tensor_problems(config, "m", completed=False) == []


def test_format_needs_three_dimensions() -> None:
    text = 'input {{ name: "X" data_type: TYPE_FP32 format: FORMAT_NCHW dims: [ {} ] }}'
    assert messages(text.format("3, 2")) == ["model input NHWC/NCHW require 3 dims for m"]
    assert messages(text.format("3, 2, 2")) == []


def test_every_tensor_problem_is_found_with_its_path() -> None:
    config = config_of(f'{GOOD_IN} input {{ name: "B" }} {GOOD_OUT} output {{ name: "Z" dims: [ 0 ] }}')
    assert [problem.path for problem in tensor_problems(config, "m")] == [
        "input[1].data_type",
        "input[1].dims",
        "output[1].data_type",
        "output[1].dims",
        "output",
    ]


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            'batch_input { kind: BATCH_ITEM_SHAPE target_name: "T" data_type: TYPE_FP32 }',
            ["batch input kind 'BATCH_ITEM_SHAPE' expects 1 source input, got 0 for m"],
        ),
        (
            'batch_input { target_name: "T" data_type: TYPE_INT64 source_input: "A" }',
            ["batch input data type must be TYPE_INT32 or TYPE_FP32 for m"],
        ),
        (
            'batch_input { target_name: "T" data_type: TYPE_INT32 source_input: "Q" }',
            ["unknown source input name 'Q' for m"],
        ),
        (
            'batch_input { data_type: TYPE_INT32 source_input: "A" }',
            ["batch input kind 'BATCH_ELEMENT_COUNT' expects a target name, got none for m"],
        ),
        (
            'batch_output { target_name: "Z" }',
            ["batch output kind 'BATCH_SCATTER_WITH_INPUT_SHAPE' expects 1 source input, got 0 for m"],
        ),
        ('batch_output { target_name: "Q" source_input: "A" }', ["unknown target output name 'Q' for m"]),
        (
            'batch_output { target_name: [ "Z", "Z" ] source_input: "A" }',
            ["target output name 'Z' can only be specified once for m"],
        ),
        (
            'batch_input { target_name: "T" data_type: TYPE_INT32 source_input: "A" } '
            'batch_output { target_name: "Z" source_input: "A" }',
            [],
        ),
        (
            'batch_input { kind: 9 target_name: "T" data_type: TYPE_INT32 source_input: "A" }',
            ["unknown batch input kind '9' for m"],
        ),
        (
            'output { name: "W" data_type: TYPE_FP32 dims: [ 4, -1 ] } '
            'batch_output { target_name: "W" source_input: "A" }',
            [
                "batch output 'W' has a variable dimension at position 2 or later, where its source input 'A' has no "
                "dimension, for m"
            ],
        ),
    ],
)
def test_batch_tensor_problem_has_its_text(text: str, expected: list[str]) -> None:
    config = config_of(f"{GOOD_IN} {GOOD_OUT} {text}")
    assert [problem.message for problem in batch_tensor_problems(config, "m")] == expected
