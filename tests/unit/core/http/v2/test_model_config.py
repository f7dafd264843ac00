"""The config API's JSON, against what Triton 2.51 answered for the same models, text for text."""

from __future__ import annotations

import json

from google.protobuf import text_format

from trident.core.config.autocomplete import auto_complete, fill_identity, normalize
from trident.core.config.problem import ModelSignature, TensorSignature
from trident.core.config.schema import ModelConfig
from trident.core.engine.protocol import ConfigMessage
from trident.core.http.admin import model_config_json

SIMPLE = (
    '{"name":"simple","platform":"onnxruntime_onnx","backend":"onnxruntime","runtime":"",'
    '"version_policy":{"latest":{"num_versions":1}},"max_batch_size":8,"input":[{"name":"INPUT0",'
    '"data_type":"TYPE_INT32","format":"FORMAT_NONE","dims":[16],"is_shape_tensor":false,'
    '"allow_ragged_batch":false,"optional":false,"is_non_linear_format_io":false},{"name":"INPUT1",'
    '"data_type":"TYPE_INT32","format":"FORMAT_NONE","dims":[16],"is_shape_tensor":false,'
    '"allow_ragged_batch":false,"optional":false,"is_non_linear_format_io":false}],'
    '"output":[{"name":"OUTPUT0","data_type":"TYPE_INT32","dims":[16],"label_filename":"",'
    '"is_shape_tensor":false,"is_non_linear_format_io":false},{"name":"OUTPUT1","data_type":"TYPE_INT32",'
    '"dims":[16],"label_filename":"","is_shape_tensor":false,"is_non_linear_format_io":false}],'
    '"batch_input":[],"batch_output":[],"optimization":{"priority":"PRIORITY_DEFAULT",'
    '"input_pinned_memory":{"enable":true},"output_pinned_memory":{"enable":true},'
    '"gather_kernel_buffer_threshold":0,"eager_batching":false},'
    '"dynamic_batching":{"preferred_batch_size":[8],"max_queue_delay_microseconds":0,'
    '"preserve_ordering":false,"priority_levels":0,"default_priority_level":0,"priority_queue_policy":{}},'
    '"instance_group":[{"name":"simple_0","kind":"KIND_CPU","count":1,"gpus":[],"secondary_devices":[],'
    '"profile":[],"passive":false,"host_policy":""}],"default_model_filename":"model.onnx",'
    '"cc_model_filenames":{},"metric_tags":{},"parameters":{},"model_warmup":[]}'
)
AUTO_NOBATCH = (
    '{"name":"auto_nobatch","platform":"onnxruntime_onnx","backend":"onnxruntime","runtime":"",'
    '"version_policy":{"latest":{"num_versions":1}},"max_batch_size":0,"input":[{"name":"IN",'
    '"data_type":"TYPE_FP32","format":"FORMAT_NONE","dims":[2,4],"is_shape_tensor":false,'
    '"allow_ragged_batch":false,"optional":false,"is_non_linear_format_io":false}],"output":[{"name":"OUT",'
    '"data_type":"TYPE_FP32","dims":[2,4],"label_filename":"","is_shape_tensor":false,'
    '"is_non_linear_format_io":false}],"batch_input":[],"batch_output":[],'
    '"optimization":{"priority":"PRIORITY_DEFAULT","input_pinned_memory":{"enable":true},'
    '"output_pinned_memory":{"enable":true},"gather_kernel_buffer_threshold":0,"eager_batching":false},'
    '"instance_group":[{"name":"auto_nobatch","kind":"KIND_CPU","count":2,"gpus":[],"secondary_devices":[],'
    '"profile":[],"passive":false,"host_policy":""}],"default_model_filename":"model.onnx",'
    '"cc_model_filenames":{},"metric_tags":{},"parameters":{},"model_warmup":[]}'
)
CLS_OVERRIDDEN = (
    '{"name":"cls","platform":"onnxruntime_onnx","backend":"onnxruntime","runtime":"",'
    '"version_policy":{"latest":{"num_versions":1}},"max_batch_size":2,"input":[{"name":"IN",'
    '"data_type":"TYPE_FP32","format":"FORMAT_NONE","dims":[4],"is_shape_tensor":false,'
    '"allow_ragged_batch":false,"optional":false,"is_non_linear_format_io":false}],"output":[{"name":"OUT",'
    '"data_type":"TYPE_FP32","dims":[4],"label_filename":"","is_shape_tensor":false,'
    '"is_non_linear_format_io":false}],"batch_input":[],"batch_output":[],'
    '"optimization":{"priority":"PRIORITY_DEFAULT","input_pinned_memory":{"enable":true},'
    '"output_pinned_memory":{"enable":true},"gather_kernel_buffer_threshold":0,"eager_batching":false},'
    '"dynamic_batching":{"preferred_batch_size":[2],"max_queue_delay_microseconds":0,'
    '"preserve_ordering":false,"priority_levels":0,"default_priority_level":0,"priority_queue_policy":{}},'
    '"instance_group":[{"name":"cls","kind":"KIND_CPU","count":2,"gpus":[],"secondary_devices":[],'
    '"profile":[],"passive":false,"host_policy":""}],"default_model_filename":"model.onnx",'
    '"cc_model_filenames":{},"metric_tags":{},"parameters":{},"model_warmup":[]}'
)


def rendered(name: str, text: str, signature: ModelSignature | None = None) -> str:
    """The JSON text of a model on a machine without GPUs, printed as Triton prints it."""
    config = text_format.Parse(text, ModelConfig())
    fill_identity(config, name, ["model.onnx"])
    normalize(config, ())
    if signature is not None:
        auto_complete(config, signature, 4)
        normalize(config, ())
    return json.dumps(model_config_json(ConfigMessage.of(config)), separators=(",", ":"))


def fp32(in_shape: tuple[int, ...]) -> ModelSignature:
    return ModelSignature((TensorSignature("IN", "FP32", in_shape),), (TensorSignature("OUT", "FP32", in_shape),))


def test_a_written_config() -> None:
    text = 'name: "simple" backend: "onnxruntime" max_batch_size: 8 dynamic_batching {} '
    text += "instance_group [ { kind: KIND_CPU count: 1 } ] "
    for side in ("input", "output"):
        for number in (0, 1):
            text += f'{side} {{ name: "{side.upper()}{number}" data_type: TYPE_INT32 dims: [ 16 ] }} '
    assert rendered("simple", text) == SIMPLE


def test_an_auto_completed_config_without_batching() -> None:
    assert rendered("auto_nobatch", "", fp32((2, 4))) == AUTO_NOBATCH


def test_an_overridden_config() -> None:
    assert rendered("cls", 'backend: "onnxruntime" max_batch_size: 2', fp32((-1, 4))) == CLS_OVERRIDDEN


def test_the_integers_that_triton_prints_as_strings() -> None:
    config = text_format.Parse(
        "input { dims: [ 9007199254740993 ] } sequence_batching { state { dims: 2 initial_state { dims: 3 } } } "
        'optimization { cuda { graph_spec { input { key: "x" value { dim: 4 } } } } } '
        "instance_group { secondary_devices { device_id: 5 } }",
        ModelConfig(),
    )
    printed = model_config_json(ConfigMessage.of(config))
    assert printed["input"][0]["dims"] == [9007199254740993]
    state = printed["sequence_batching"]["state"][0]
    assert (state["dims"], state["initial_state"][0]["dims"]) == ([2], ["3"])
    assert printed["optimization"]["cuda"]["graph_spec"][0]["input"] == {"x": {"dim": ["4"]}}
    assert printed["instance_group"][0]["secondary_devices"][0]["device_id"] == "5"


def test_maps_floats_and_chosen_fields() -> None:
    config = text_format.Parse(
        "dynamic_batching { priority_queue_policy { key: 2 value { max_queue_size: 3 } } } "
        'parameters { key: "b" value { string_value: "1" } } parameters { key: "a" value {} } '
        'model_warmup { name: "w" batch_size: 1 inputs { key: "IN" value { dims: 4 zero_data: true } } } '
        "model_metrics { metric_control { histogram_options { buckets: [ 0.5, inf ] } } } "
        "input { data_type: 77 }",
        ModelConfig(),
    )
    printed = model_config_json(ConfigMessage.of(config))
    assert printed["dynamic_batching"]["priority_queue_policy"] == {
        "2": {
            "timeout_action": "REJECT",
            "default_timeout_microseconds": 0,
            "allow_timeout_override": False,
            "max_queue_size": 3,
        }
    }
    assert printed["parameters"] == {"a": {"string_value": ""}, "b": {"string_value": "1"}}
    warmup = {"data_type": "TYPE_INVALID", "dims": [4], "zero_data": True}
    assert printed["model_warmup"][0]["inputs"] == {"IN": warmup}
    assert printed["model_metrics"]["metric_control"][0]["histogram_options"]["buckets"] == [0.5, "Infinity"]
    assert printed["input"][0]["data_type"] == 77


def test_a_float32_is_printed_in_the_digits_it_has() -> None:
    config = text_format.Parse("sequence_batching { direct { minimum_slot_utilization: 0.1 } }", ModelConfig())
    assert model_config_json(ConfigMessage.of(config))["sequence_batching"]["direct"]["minimum_slot_utilization"] == 0.1
