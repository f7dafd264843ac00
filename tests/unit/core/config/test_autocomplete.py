"""Auto-complete from a graph's signature."""

from __future__ import annotations

import pytest
from google.protobuf import text_format

from trident.core.config.autocomplete import auto_complete, needs_signature
from trident.core.config.problem import ModelSignature, TensorSignature
from trident.core.config.schema import DataType, ModelConfig
from trident.core.errors import ConfigInvalid


def signature(in_shape: tuple[int, ...] = (-1, 16), out_shape: tuple[int, ...] = (-1, 16)) -> ModelSignature:
    return ModelSignature((TensorSignature("IN", "INT32", in_shape),), (TensorSignature("OUT", "INT8", out_shape),))


def completed(text: str, graph: ModelSignature, default: int = 4) -> ModelConfig:
    config = text_format.Parse(text, ModelConfig(name="m"))
    auto_complete(config, graph, default)
    return config


@pytest.mark.parametrize(
    ("text", "needed"),
    [
        ("", True),
        ('input { name: "a" }', True),
        ('output { name: "a" }', True),
        ('input { name: "a" } output { name: "b" }', False),
        ('batch_input { target_name: "a" } output { name: "b" }', False),
    ],
)
def test_missing_side_needs_the_graph(text: str, needed: bool, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO", "trident.config")
    assert needs_signature(text_format.Parse(text, ModelConfig(name="m"))) is needed
    skipped = "skipping model configuration auto-complete for 'm': inputs and outputs already specified"
    assert (skipped in caplog.messages) is not needed


def test_batchable_graph_gets_the_default_batch_size_and_a_batcher(caplog: pytest.LogCaptureFixture) -> None:
    config = completed("", signature())
    assert config.max_batch_size == 4
    assert config.HasField("dynamic_batching")
    assert (config.input[0].name, config.input[0].data_type, list(config.input[0].dims)) == ("IN", 8, [16])
    assert (config.output[0].name, config.output[0].data_type, list(config.output[0].dims)) == ("OUT", 6, [16])
    assert caplog.messages == [
        "autofilled max_batch_size to 4 for model 'm' since batching is supported but no max_batch_size is specified "
        "in model configuration. Must specify max_batch_size to utilize autofill with a larger max batch size"
    ]


def test_given_batch_size_stays_and_gets_a_batcher() -> None:
    config = completed("max_batch_size: 2", signature())
    assert config.max_batch_size == 2
    assert config.HasField("dynamic_batching")


def test_batch_size_of_one_or_a_given_scheduler_gets_no_batcher() -> None:
    assert completed("", signature(), default=1).WhichOneof("scheduling_choice") is None
    assert completed("sequence_batching {}", signature()).WhichOneof("scheduling_choice") == "sequence_batching"


def test_default_of_zero_leaves_the_model_without_batching() -> None:
    config = completed("", signature(), default=0)
    assert config.max_batch_size == 0
    assert list(config.input[0].dims) == [-1, 16]
    assert not config.HasField("dynamic_batching")


@pytest.mark.parametrize(("in_shape", "out_shape"), [((2, 4), (-1, 4)), ((-1, 4), ()), ((-1, 4), (2, 4))])
def test_batch_size_for_a_graph_that_cannot_batch_is_refused(
    in_shape: tuple[int, ...], out_shape: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    assert completed("", signature(in_shape, out_shape)).max_batch_size == 0
    assert completed("", signature(in_shape, out_shape), default=0).max_batch_size == 0
    side, name, shape = ("input", "IN", in_shape) if in_shape[:1] != (-1,) else ("output", "OUT", out_shape)
    tensor = f"{side} '{name}' has shape [{','.join(map(str, shape))}]"
    assert caplog.messages == [
        "model 'm' runs one request at a time, because the first dimension of each tensor must be -1 for batching, "
        f"and {tensor}; to batch it, export it with a dynamic first dimension"
    ]
    with pytest.raises(ConfigInvalid) as caught:
        completed("max_batch_size: 8", signature(in_shape, out_shape))
    assert caught.value.message == (
        "autofill failed for model 'm': model does not support batching while non-zero max_batch_size is specified"
    )
    assert (caught.value.hint or "").startswith(tensor)


def test_given_side_stays_unchanged() -> None:
    config = completed('input { name: "mine" }', signature())
    assert [entry.name for entry in config.input] == ["mine"]
    assert [entry.name for entry in config.output] == ["OUT"]
    assert not completed('batch_input { target_name: "IN" }', signature()).input


def test_tensor_without_dimensions_gets_one() -> None:
    batching = completed("", signature((-1,), (-1,))).input[0]
    assert list(batching.dims) == [1]
    assert batching.HasField("reshape")
    scalar = completed("", signature((), ())).input[0]
    assert list(scalar.dims) == [1]
    assert not scalar.HasField("reshape")


def test_dimension_of_zero_becomes_variable_and_is_no_batch_dimension() -> None:
    config = completed("", signature((0, 3), (0,)))
    assert (list(config.input[0].dims), list(config.output[0].dims)) == ([-1, 3], [-1])
    assert config.max_batch_size == 0
    assert list(completed("", signature((-1, 0))).input[0].dims) == [-1]


def test_unsupported_datatype_becomes_invalid() -> None:
    graph = ModelSignature((TensorSignature("IN", "", (-1, 2)),), ())
    assert completed("", graph).input[0].data_type == DataType.TYPE_INVALID
