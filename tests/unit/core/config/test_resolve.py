"""The resolved spec of a model version."""

from __future__ import annotations

import pytest
from google.protobuf import text_format

from trident.core.config.resolve import resolve_model_spec, with_graph_labels
from trident.core.config.schema import ModelConfig
from trident.core.config.spec import BatchingSpec, InputSpec, ModelSpec, OutputSpec, QueuePolicy
from trident.core.inference.tensors import BY_NAME

TARGET = 'parameters { key: "TARGET_P99_MS" value { string_value: "2.5" } }'


def resolved(text: str) -> ModelSpec:
    config = text_format.Parse(text, ModelConfig(name="m", platform="onnxruntime_onnx", backend="onnxruntime"))
    return resolve_model_spec(config, 3, {"Z": ("cat", "dog")})


def batching(text: str) -> BatchingSpec | None:
    return resolved(text).batching


def test_spec_holds_the_tensors_by_name() -> None:
    spec = resolved(
        'max_batch_size: 8 input { name: "A" data_type: TYPE_STRING dims: [ 1 ] reshape {} optional: true '
        'allow_ragged_batch: true } input { name: "B" data_type: TYPE_FP32 dims: [ -1, 2 ] } '
        'output { name: "Z" data_type: TYPE_INT8 dims: [ 4 ] reshape { shape: [ 2, 2 ] } } '
        'metric_tags { key: "team" value: "x" } model_transaction_policy { decoupled: true }'
    )
    assert spec == ModelSpec(
        name="m",
        version=3,
        platform="onnxruntime_onnx",
        backend="onnxruntime",
        max_batch_size=8,
        inputs={
            "A": InputSpec(
                name="A",
                datatype=BY_NAME["BYTES"],
                dims=(1,),
                model_dims=(),
                optional=True,
                allow_ragged_batch=True,
            ),
            "B": InputSpec(name="B", datatype=BY_NAME["FP32"], dims=(-1, 2)),
        },
        outputs={
            "Z": OutputSpec(name="Z", datatype=BY_NAME["INT8"], dims=(4,), model_dims=(2, 2), labels=("cat", "dog"))
        },
        decoupled=True,
        metric_tags={"team": "x"},
    )


def test_the_labels_of_the_graph_are_used_where_no_label_file_is_named() -> None:
    text = "".join(
        f'output {{ name: "{name}" data_type: TYPE_FP32 dims: [ 2 ] {more} }} '
        for name, more in (("Y", ""), ("Z", 'label_filename: "labels.txt"'), ("W", ""))
    )
    config = text_format.Parse(text, ModelConfig(name="m", platform="onnxruntime_onnx", backend="onnxruntime"))
    spec = resolve_model_spec(config, 3, {"Z": ("cat", "dog")})
    labelled = with_graph_labels(spec, config, {"Y": ("7", "8"), "Z": ("0", "1")})
    assert {name: output.labels for name, output in labelled.outputs.items()} == {
        "Y": ("7", "8"),
        "Z": ("cat", "dog"),
        "W": (),
    }


def test_model_without_dynamic_batching_has_no_batching_spec() -> None:
    assert batching("max_batch_size: 8") is None


def test_batching_spec_has_sorted_sizes_and_nanoseconds() -> None:
    text = "preferred_batch_size: [ 6, 2, 6 ] max_queue_delay_microseconds: 500 preserve_ordering: true"
    assert batching(f"max_batch_size: 8 dynamic_batching {{ {text} }}") == BatchingSpec(
        preferred_batch_sizes=(2, 6), max_queue_delay_ns=500_000, preserve_ordering=True
    )


@pytest.mark.parametrize(
    ("text", "counts"),
    [
        ("", False),
        ("dynamic_batching {}", False),
        ("dynamic_batching { max_queue_delay_microseconds: 1 }", True),
        (f"dynamic_batching {{}} {TARGET}", True),
    ],
)
def test_the_arrival_of_requests_counts_where_batches_wait(text: str, counts: bool) -> None:
    assert resolved(f"max_batch_size: 8 {text}").counts_arrival is counts


def test_a_target_is_in_nanoseconds() -> None:
    assert batching(f"max_batch_size: 8 dynamic_batching {{}} {TARGET}") == BatchingSpec(
        preferred_batch_sizes=(8,), target_p99_ns=2_500_000
    )


def test_a_delay_may_have_to_be_waited_out() -> None:
    text = 'parameters { key: "WAIT_OUT_QUEUE_DELAY" value { string_value: "true" } }'
    assert batching(f"max_batch_size: 8 dynamic_batching {{}} {text}") == BatchingSpec(
        preferred_batch_sizes=(8,), waits_out_delay=True
    )


def test_model_that_cannot_batch_has_a_preferred_size_of_one() -> None:
    assert batching("dynamic_batching {}") == BatchingSpec(preferred_batch_sizes=(1,))


def test_priority_levels_without_a_policy_have_the_default() -> None:
    spec = batching(
        "dynamic_batching { preferred_batch_size: [ 1 ] priority_levels: 3 default_priority_level: 2 "
        "default_queue_policy { max_queue_size: 7 } priority_queue_policy { key: 2 value { timeout_action: DELAY "
        "default_timeout_microseconds: 10 allow_timeout_override: true } } }"
    )
    default = QueuePolicy(max_queue_size=7)
    delayed = QueuePolicy(delay_on_timeout=True, default_timeout_ns=10_000, allow_timeout_override=True)
    assert spec == BatchingSpec(
        preferred_batch_sizes=(1,),
        priority_levels=3,
        default_priority_level=2,
        default_policy=default,
        level_policies={2: delayed},
    )
