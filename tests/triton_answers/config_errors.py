"""Configurations that the server refuses, and such that it must not: each rule of Triton's validation."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.contract.servers.server import ServerProcess
from tests.triton_answers import Answers
from tests.triton_answers.config_autocomplete import ROW, graph, load, loaded, write_model

OPTIONS = ("--model-control-mode=explicit", "--log-verbose=0", "--cache-config=local,size=1048576")
OTHERWISE: dict[str, tuple[str, Any]] = {
    "configs: input_dims_huge": (
        "no tensor is larger than a number of 64 bits",
        {
            "load": [
                400,
                (
                    "load failed for model 'input_dims_huge': version 1 is at UNAVAILABLE state: "
                    "Invalid argument: element count for tensor 'IN0' exceeds maximum size of "
                    "9223372036854775807 for input_dims_huge;\n"
                ),
            ]
        },
    ),
    "configs: output_variable": (
        "an output may be configured as variable",
        {
            "config": {
                "name": "output_variable",
                "max_batch_size": 8,
                "input": [{"name": "IN0", "data_type": "TYPE_FP32", "format": "FORMAT_NONE", "dims": [4]}],
                "output": [{"name": "OUT0", "data_type": "TYPE_FP32", "dims": [-1]}],
                "instance_group": [{"name": "output_variable", "kind": "KIND_CPU", "count": 2}],
            }
        },
    ),
    "configs: input_twice": (
        "a name is given once",
        {
            "load": [
                400,
                (
                    "load failed for model 'input_twice': version 1 is at UNAVAILABLE state: Invalid "
                    "argument: model input 'IN0' is specified 2 times for input_twice;\n"
                ),
            ]
        },
    ),
    "configs: output_twice": (
        "a name is given once",
        {
            "load": [
                400,
                (
                    "load failed for model 'output_twice': version 1 is at UNAVAILABLE state: "
                    "Invalid argument: model output 'OUT0' is specified 2 times for output_twice;\n"
                ),
            ]
        },
    ),
    "configs: control_two_kinds": (
        "a tensor has one control",
        {
            "poll": (
                "sequence batching control tensor 'A' is specified for multiple control kinds for control_two_kinds"
            )
        },
    ),
    "configs: control_unknown_tensor": (
        "a configuration is an invalid argument",
        {
            "load": [
                400,
                (
                    "load failed for model 'control_unknown_tensor': version 1 is at UNAVAILABLE "
                    "state: Invalid argument: configuration specified sequence control 'A', but "
                    "model does not provide that input;\n"
                ),
            ]
        },
    ),
    "configs: control_own_tensor": (
        "clients do not send controls",
        {"poll": ("sequence batching control tensor 'IN0' must not be a model input for control_own_tensor")},
    ),
    "configs: group_gpu": (
        "an installation for CPUs",
        {
            "load": [
                400,
                (
                    "load failed for model 'group_gpu': version 1 is at UNAVAILABLE state: Invalid "
                    "argument: instance group group_gpu_0 of model group_gpu has kind KIND_GPU but "
                    "server does not support GPUs;\n"
                ),
            ]
        },
    ),
    "configs: labels_outside": (
        "the text of newer releases",
        {
            "load": [
                400,
                (
                    "load failed for model 'labels_outside': version 1 is at UNAVAILABLE state: "
                    "Unsupported: label file path '../l.txt' for output 'OUT0' in model "
                    "'labels_outside' is outside model directory;\n"
                ),
            ]
        },
    ),
    "configs: agent": (
        "only the checksum agent is built in",
        {"poll": "unable to find repo agent 'mine': only 'checksum' is built in"},
    ),
    "configs: parameter_shrinkage": (
        "it would fail every request",
        {
            "load": [
                400,
                (
                    "load failed for model 'parameter_shrinkage': version 1 is at UNAVAILABLE state: "
                    "Invalid argument: unable to load model 'parameter_shrinkage', every request "
                    "would fail, because memory.enable_memory_arena_shrinkage is 'x': onnx runtime "
                    "error 2: Unsupported device specified in the memory arena shrink list: x;\n"
                ),
            ]
        },
    ),
    "ensembles: input_is_output": (
        "a step cannot write an input",
        {"poll": ("ensemble tensor 'A' is an input of ensemble 'ensemble_input_is_output', so step 0 cannot write it")},
    ),
    "ensembles: broken_config": (
        "every model is named, with its fault",
        {
            "load": [
                400,
                (
                    "load failed for model 'ensemble_broken_config': ensemble "
                    "'ensemble_broken_config' depends on 'size_negative' which is not valid. Model "
                    "'size_negative' failed with error: Invalid argument: 'max_batch_size' must be "
                    "non-negative value for size_negative"
                ),
            ]
        },
    ),
    "ensembles: itself": (
        "every model is named, with its fault",
        {
            "load": [
                400,
                (
                    "load failed for model 'ensemble_itself': circular dependency between ensembles: "
                    "ensemble_itself -> ensemble_itself"
                ),
            ]
        },
    ),
    "ensembles: typeless": (
        "a tensor has a datatype",
        {
            "load": [
                400,
                (
                    "load failed for model 'ensemble_typeless': model input 'A' must specify "
                    "'data_type' for ensemble_typeless"
                ),
            ]
        },
    ),
    "ensembles: no_version": (
        "git keeps no empty folders",
        {
            "config": {
                "platform": "ensemble",
                "backend": None,
                "default_model_filename": None,
                "optimization": None,
                "name": "ensemble_no_version",
                "max_batch_size": 8,
                "input": [{"name": "A", "data_type": "TYPE_FP32", "format": "FORMAT_NONE", "dims": [4]}],
                "output": [{"name": "B", "data_type": "TYPE_FP32", "dims": [4]}],
                "ensemble_scheduling": {
                    "step": [
                        {
                            "model_name": "model",
                            "model_version": -1,
                            "input_map": {"IN0": "A"},
                            "output_map": {"OUT0": "B"},
                        }
                    ]
                },
            }
        },
    ),
    "overrides: enum_case": (
        "names of enums are written as they are",
        [500, "failed to load 'model', failed to poll from model repository"],
    ),
}

BACKEND = 'backend: "onnxruntime" '
IN = 'input { name: "IN0" data_type: TYPE_FP32 dims: 4 } '
OUT = 'output { name: "OUT0" data_type: TYPE_FP32 dims: 4 } '
BOTH = IN + OUT
BATCHED = BOTH + "max_batch_size: 8 "


def given(members: str, side: str = "input") -> str:
    """A tensor of these members, and the one of the other side."""
    return f"{side} {{ {members} }} " + (OUT if side == "input" else IN)


def tensors(side: str) -> dict[str, str]:
    name = f'name: "{"IN0" if side == "input" else "OUT0"}" '
    typed = name + "data_type: TYPE_FP32 "
    return {
        f"{side}_{key}": given(members, side) + "max_batch_size: 8"
        for key, members in {
            "nameless": "data_type: TYPE_FP32 dims: 4",
            "typeless": name + "dims: 4",
            "dimless": typed,
            "dim_zero": typed + "dims: 0",
            "dim_minus_two": typed + "dims: -2",
            **({"dims_huge": typed + "dims: [ 4294967296, 4294967296, 4 ]"} if side == "input" else {}),
            "wrong_name": 'name: "X" data_type: TYPE_FP32 dims: 4',
            "wrong_type": name + "data_type: TYPE_INT32 dims: 4",
            "string": name + "data_type: TYPE_STRING dims: 4",
            "wrong_dims": typed + "dims: 5",
            "wrong_rank": typed + "dims: [ 4, 4 ]",
            "variable": typed + "dims: -1",
            "reshape": typed + "dims: [ 2, 2 ] reshape { shape: [ 4 ] }",
            "reshape_empty": typed + "dims: [ 1 ] reshape { }",
            "reshape_empty_four": typed + "dims: [ 4 ] reshape { }",
            "reshape_zero": typed + "dims: [ 4 ] reshape { shape: 0 }",
            "reshape_minus_two": typed + "dims: [ 4 ] reshape { shape: -2 }",
            "reshape_size": typed + "dims: [ 4 ] reshape { shape: 5 }",
            "reshape_variable": typed + "dims: [ 4 ] reshape { shape: -1 }",
            "reshape_fixed": typed + "dims: [ -1 ] reshape { shape: 4 }",
            "reshape_count": typed + "dims: [ -1, -1 ] reshape { shape: [ -1 ] }",
            "reshape_chunks": typed + "dims: [ 2, 4, -1, 6 ] reshape { shape: [ 8, -1, 3 ] }",
            "reshape_chunks_fit": typed + "dims: [ 2, 4, -1, 6 ] reshape { shape: [ 8, -1, 1, 6 ] }",
            "shape_tensor": typed + "dims: 4 is_shape_tensor: true",
            "non_linear": typed + "dims: 4 is_non_linear_format_io: true",
            "non_linear_three": typed + "dims: [ 4, 1, 1 ] is_non_linear_format_io: true",
        }.items()
    }


FLAG = "control { kind: CONTROL_SEQUENCE_START int32_false_true: [ 0, 1 ] }"


def controls(*inputs: str) -> str:
    listed = " ".join(f"control_input {{ {members} }}" for members in inputs)
    return BATCHED + f"sequence_batching {{ {listed} }}"


CONFIGS = {
    **tensors("input"),
    **tensors("output"),
    "input_format": given('name: "IN0" data_type: TYPE_FP32 dims: 4 format: FORMAT_NHWC'),
    "input_format_three": given('name: "IN0" data_type: TYPE_FP32 dims: [ 4, 1, 1 ] format: FORMAT_NHWC'),
    "input_twice": IN + BATCHED,
    "output_twice": BATCHED + OUT,
    "input_reshape_unbatched": given('name: "IN0" data_type: TYPE_FP32 dims: [ -1, 4 ] reshape { }'),
    "input_reshape_one": given('name: "IN0" data_type: TYPE_FP32 dims: [ 1 ] reshape { }'),
    "input_unbatched": given('name: "IN0" data_type: TYPE_FP32 dims: [ -1, 4 ]'),
    "unbatched": BOTH,
    "unbatched_both": 'input { name: "IN0" data_type: TYPE_FP32 dims: [ -1, 4 ] } '
    'output { name: "OUT0" data_type: TYPE_FP32 dims: [ -1, 4 ] } ',
    "unbatched_fixed": 'input { name: "IN0" data_type: TYPE_FP32 dims: [ 3, 4 ] } '
    'output { name: "OUT0" data_type: TYPE_FP32 dims: [ 3, 4 ] } ',
    "input_ragged_optional": given('name: "IN0" data_type: TYPE_FP32 dims: 4 optional: true allow_ragged_batch: true')
    + "max_batch_size: 2",
    "input_ragged": given('name: "IN0" data_type: TYPE_FP32 dims: 4 allow_ragged_batch: true') + "max_batch_size: 2",
    "input_optional": given('name: "IN0" data_type: TYPE_FP32 dims: 4 optional: true') + "max_batch_size: 2",
    "input_optional_unbatched": given('name: "IN0" data_type: TYPE_FP32 dims: [ -1, 4 ] optional: true'),
    "input_too_many": BATCHED + 'input { name: "IN1" data_type: TYPE_FP32 dims: 4 }',
    "output_too_many": BATCHED + 'output { name: "OUT1" data_type: TYPE_FP32 dims: 4 }',
    "size_negative": BOTH + "max_batch_size: -1",
    "size_negative_incomplete": "max_batch_size: -3",
    "preferred_zero": BATCHED + "dynamic_batching { preferred_batch_size: 0 }",
    "preferred_negative": BATCHED + "dynamic_batching { preferred_batch_size: [ 4, -4 ] }",
    "preferred_large": BATCHED + "dynamic_batching { preferred_batch_size: 9 }",
    "preferred_unbatched": BOTH + "dynamic_batching { preferred_batch_size: 1 }",
    "preferred_incomplete": "dynamic_batching { preferred_batch_size: 2 }",
    "priority_default": BATCHED + "dynamic_batching { priority_levels: 3 }",
    "priority_default_high": BATCHED + "dynamic_batching { priority_levels: 3 default_priority_level: 4 }",
    "priority_policy_zero": BATCHED + "dynamic_batching { priority_levels: 3 default_priority_level: 1 "
    "priority_queue_policy { key: 0 value { } } }",
    "priority_policy_high": BATCHED + "dynamic_batching { priority_levels: 3 default_priority_level: 1 "
    "priority_queue_policy { key: 4 value { } } }",
    "priority_without_levels": BATCHED + "dynamic_batching { default_priority_level: 4 priority_queue_policy { key: 7 "
    "value { } } }",
    "ordered_levels": BATCHED + "dynamic_batching { preserve_ordering: true priority_levels: 2 "
    "default_priority_level: 1 }",
    "ordered_delay": BATCHED + "dynamic_batching { preserve_ordering: true default_queue_policy { timeout_action: "
    "DELAY default_timeout_microseconds: 1 } }",
    "ordered_delay_untimed": BATCHED + "dynamic_batching { preserve_ordering: true default_queue_policy { "
    "timeout_action: DELAY } }",
    "ordered_delay_level": BATCHED + "dynamic_batching { preserve_ordering: true priority_levels: 1 "
    "default_priority_level: 1 priority_queue_policy { key: 1 value { timeout_action: DELAY "
    "default_timeout_microseconds: 1 } } }",
    "cache_sequence": BATCHED + "sequence_batching { } response_cache { enable: true }",
    "cache_decoupled": BATCHED + "model_transaction_policy { decoupled: true } response_cache { enable: true }",
    "cache": BATCHED + "response_cache { enable: true }",
    "decoupled": BATCHED + "model_transaction_policy { decoupled: true }",
    "control_nameless": controls(FLAG),
    "control_twice": controls(
        'name: "A" ' + FLAG, 'name: "A" control { kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] }'
    ),
    "control_two_kinds": controls(
        'name: "A" ' + FLAG + " control { kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] }"
    ),
    "control_kind_twice": controls('name: "A" ' + FLAG, 'name: "B" ' + FLAG),
    "control_valueless": controls('name: "A" control { kind: CONTROL_SEQUENCE_READY }'),
    "control_two_values": controls(
        'name: "A" control { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 0, 1 ] fp32_false_true: [ 0, 1 ] }'
    ),
    "control_two_values_bool": controls(
        'name: "A" control { kind: CONTROL_SEQUENCE_READY bool_false_true: [ false, true ] fp32_false_true: [ 0, 1 ] }'
    ),
    "control_one_int": controls('name: "A" control { kind: CONTROL_SEQUENCE_READY int32_false_true: [ 1 ] }'),
    "control_three_fp": controls('name: "A" control { kind: CONTROL_SEQUENCE_READY fp32_false_true: [ 1, 2, 3 ] }'),
    "control_one_bool": controls('name: "A" control { kind: CONTROL_SEQUENCE_END bool_false_true: [ true ] }'),
    "control_kindless": controls('name: "A"'),
    "control_id_value": controls(
        'name: "A" control { kind: CONTROL_SEQUENCE_CORRID int32_false_true: [ 0, 1 ] data_type: TYPE_UINT64 }'
    ),
    "control_id_typeless": controls('name: "A" control { kind: CONTROL_SEQUENCE_CORRID }'),
    "control_id_type": controls('name: "A" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_FP32 }'),
    "control_unknown_tensor": controls('name: "A" ' + FLAG),
    "control_own_tensor": controls('name: "IN0" ' + FLAG),
    "oldest_zero": BATCHED + "sequence_batching { oldest { preferred_batch_size: 0 } }",
    "oldest_large": BATCHED + "sequence_batching { oldest { preferred_batch_size: 9 } }",
    "oldest_incomplete": "sequence_batching { oldest { preferred_batch_size: 2 } }",
    "direct_negative": BATCHED + "sequence_batching { direct { minimum_slot_utilization: -0.1 } }",
    "direct_large": BATCHED + "sequence_batching { direct { minimum_slot_utilization: 1.5 } }",
    "direct_one": BATCHED + "sequence_batching { direct { minimum_slot_utilization: 1 } }",
    "state_unknown": BATCHED
    + 'sequence_batching { state { input_name: "S" output_name: "T" data_type: TYPE_FP32 dims: 1 } }',
    "scheduler_twice": BATCHED + "sequence_batching { } dynamic_batching { }",
    "ensemble_on_model": BATCHED + "ensemble_scheduling { }",
    "group_cpu_gpus": BATCHED + "instance_group { kind: KIND_CPU gpus: 0 }",
    "group_model_gpus": BATCHED + "instance_group { kind: KIND_MODEL gpus: [ 0, 1 ] }",
    "group_gpu": BATCHED + "instance_group { kind: KIND_GPU }",
    "group_profile": BATCHED + 'instance_group { kind: KIND_CPU profile: "0" }',
    "group_profile_auto": BATCHED + 'instance_group { profile: [ "0", "x" ] }',
    "group_second": BATCHED + 'instance_group { count: 1 } instance_group { name: "g" kind: KIND_CPU gpus: 1 }',
    "group_secondary": BATCHED
    + "instance_group { kind: KIND_CPU secondary_devices { kind: KIND_NVDLA device_id: 1 } }",
    "group_same_names": BATCHED + 'instance_group { name: "g" count: 1 } instance_group { name: "g" count: 1 }',
    "batch_input_sources": BATCHED + "batch_input { kind: BATCH_ELEMENT_COUNT data_type: TYPE_FP32 target_name: "
    '"IN0" }',
    "batch_input_source": BATCHED + "batch_input { kind: BATCH_ELEMENT_COUNT data_type: TYPE_FP32 target_name: "
    '"IN0" source_input: "X" }',
    "batch_input_type": BATCHED + "batch_input { kind: BATCH_ELEMENT_COUNT data_type: TYPE_FP64 target_name: "
    '"IN0" source_input: "IN0" }',
    "batch_output_sources": BATCHED + 'batch_output { target_name: "OUT0" kind: BATCH_SCATTER_WITH_INPUT_SHAPE }',
    "batch_output_source": BATCHED + 'batch_output { target_name: "OUT0" kind: BATCH_SCATTER_WITH_INPUT_SHAPE '
    'source_input: "X" }',
    "batch_output_target": BATCHED + 'batch_output { target_name: "X" kind: BATCH_SCATTER_WITH_INPUT_SHAPE '
    'source_input: "IN0" }',
    "batch_output_twice": BATCHED + 'batch_output { target_name: [ "OUT0", "OUT0" ] kind: '
    'BATCH_SCATTER_WITH_INPUT_SHAPE source_input: "IN0" }',
    "labels_missing": given('name: "OUT0" data_type: TYPE_FP32 dims: 4 label_filename: "none.txt"', "output")
    + "max_batch_size: 8",
    "labels_outside": given('name: "OUT0" data_type: TYPE_FP32 dims: 4 label_filename: "../l.txt"', "output")
    + "max_batch_size: 8",
    "accelerator_cpu": BATCHED + "optimization { execution_accelerators { cpu_execution_accelerator { name: "
    '"mine" } } }',
    "accelerator_gpu": BATCHED + "optimization { execution_accelerators { gpu_execution_accelerator { name: "
    '"mine" } } }',
    "operations": BATCHED + 'model_operations { op_library_filename: "none.so" }',
    "agent": BATCHED + 'model_repository_agents { agents { name: "mine" } }',
    "parameter_threads": BATCHED + 'parameters { key: "intra_op_thread_count" value { string_value: "x" } }',
    "parameter_threads_negative": BATCHED + 'parameters { key: "intra_op_thread_count" value { string_value: "-1" } }',
    "parameter_execution_mode": BATCHED + 'parameters { key: "execution_mode" value { string_value: "x" } }',
    "parameter_execution_mode_two": BATCHED + 'parameters { key: "execution_mode" value { string_value: "2" } }',
    "parameter_arena": BATCHED + 'parameters { key: "enable_mem_arena" value { string_value: "x" } }',
    "parameter_pattern": BATCHED + 'parameters { key: "enable_mem_pattern" value { string_value: "x" } }',
    "parameter_shrinkage": BATCHED
    + 'parameters { key: "memory.enable_memory_arena_shrinkage" value { string_value: "x" } }',
    "parameter_entry": BATCHED + 'parameters { key: "session.disable_prepacking" value { string_value: "x" } }',
    "level_high": BATCHED + "optimization { graph { level: 77 } }",
    "text_unknown_field": "max_batch: 8",
    "text_unknown_enum": given('name: "IN0" data_type: FP32 dims: 4'),
    "text_number": 'max_batch_size: "8"',
    "text_minus": "max_batch_size: -",
    "text_range": "max_batch_size: 12345678901",
    "text_open": "input { ",
    "text_close": "}",
    "text_twice": "max_batch_size: 1 max_batch_size: 2",
    "text_comment": "# a comment\nmax_batch_size: 2 # another",
    "text_commas": 'max_batch_size: 2, backend: "onnxruntime"; ' + given("name: 'IN0', data_type: 11; dims: [4]"),
    "text_bool": BATCHED + "response_cache { enable: 2 }",
    "text_bool_word": BATCHED + "response_cache { enable: yes }",
    "text_bool_letter": BATCHED + "response_cache { enable: t }",
    "text_json": '{ "max_batch_size": 2 }',
}


def step(name: str = "model", inputs: str = "IN0=A", outputs: str = "OUT0=B", more: str = "") -> str:
    """A step of an ensemble. The maps are pairs of a tensor of the model and one of the ensemble."""
    maps = {"input": inputs, "output": outputs}
    pairs = [(side, *pair.split("=")) for side, names in maps.items() for pair in names.split()]
    listed = [f'{side}_map {{ key: "{key}" value: "{value}" }}' for side, key, value in pairs]
    return f'step {{ model_name: "{name}" model_version: -1 {" ".join(listed)} {more} }} '


def flow(*steps: str, inputs: str = "A", outputs: str = "B", more: str = "", dims: str = "4") -> str:
    text = 'platform: "ensemble" max_batch_size: 8 ' + more
    for side, names in (("input", inputs), ("output", outputs)):
        text += "".join(f'{side} {{ name: "{name}" data_type: TYPE_FP32 dims: [ {dims} ] }} ' for name in names.split())
    return text + f"ensemble_scheduling {{ {' '.join(steps)} }}"


ENSEMBLES = {
    "backend": flow(step(), more='backend: "onnxruntime" '),
    "unscheduled": 'platform: "ensemble" ',
    "platformless": flow(step()).replace('platform: "ensemble"', ""),
    "group": flow(step(), more="instance_group { count: 1 } "),
    "optimization": flow(step(), more="optimization { } "),
    "warmup": flow(step(), more="model_warmup { } "),
    "stepless": flow(),
    "nameless": flow(step("")),
    "no_inputs": flow(step(inputs="")),
    "no_outputs": flow(step(outputs="")),
    "second_nameless": flow(step(), step("")),
    "output_twice": flow(step(), step()),
    "input_unused": flow(step(), inputs="A C"),
    "output_unused": flow(step(), outputs="B C"),
    "unwritten": flow(step(inputs="IN0=C")),
    "circle": flow(step(inputs="IN0=B", outputs="OUT0=B")),
    "tensor_unused": flow(step(), step(inputs="IN0=B", outputs="OUT0=C")),
    "input_is_output": flow(step(outputs="OUT0=A"), outputs="A"),
    "unknown_input": flow(step(inputs="IN0=A X=A")),
    "unknown_output": flow(step(outputs="OUT0=B X=C"), outputs="B C"),
    "unmapped": flow(step("two", inputs="IN0=A", outputs="OUT0=B OUT1=C"), outputs="B C"),
    "version": flow(step().replace("-1", "7")),
    "missing": flow(step("none")),
    "broken": flow(step("broken")),
    "broken_config": flow(step("size_negative")),
    "itself": flow(step("ensemble_itself")),
    "dims": flow(step(), dims="5"),
    "variable": flow(step(), dims="-1"),
    "size": flow(step("small")),
    "size_unbatched": flow(step("unbatched_fixed")),
    "cache": flow(step(), more="response_cache { enable: true } "),
    "batcher": flow(step()) + " dynamic_batching { }",
    "type": flow(step()).replace("TYPE_FP32", "TYPE_INT32"),
    "typeless": flow(step()).replace("data_type: TYPE_FP32", ""),
    "nested": flow(step("ensemble_inner")),
    "inner": flow(step()),
    "no_version": flow(step()),
}
OVERRIDES: dict[str, Any] = {
    "text": "max_batch_size: 2",
    "empty": "",
    "object": {},
    "unknown": {"max_batch": 2},
    "type": {"max_batch_size": "x"},
    "string_number": {"max_batch_size": "2"},
    "fraction": {"max_batch_size": 2.5},
    "whole_fraction": {"max_batch_size": 2.0},
    "camel": {"maxBatchSize": 2},
    "enum_number": {"input": [{"name": "IN0", "data_type": 11, "dims": [4]}]},
    "enum_case": {"input": [{"name": "IN0", "data_type": "type_fp32", "dims": ["4"]}]},
    "enum_wrong": {"input": [{"name": "IN0", "data_type": "FP32", "dims": [4]}]},
    "null": {"max_batch_size": None, "input": None},
    "name": {"name": "other"},
    "own_name": {"name": "model"},
    "backend": {"backend": "onnxruntime"},
    "negative": {"max_batch_size": -1},
    "array": [],
    "trailing": '{"max_batch_size": 2} x',
}


def write_models(folder: Path) -> None:
    for name, config in CONFIGS.items():
        write_model(folder, name, ROW, config)
    write_model(folder, "model", ROW, BATCHED)
    write_model(folder, "small", ROW, BOTH + "max_batch_size: 2")
    write_model(folder, "two", graph([["b", 4], ["b", 4]]))
    write_model(folder, "broken", b"no model", BATCHED)
    for name, config in ENSEMBLES.items():
        write_model(folder, f"ensemble_{name}", None, config, "1/x")
    (folder / "ensemble_no_version" / "1").rmdir()


def ask_configs(server: ServerProcess) -> Answers:
    return {name: loaded(server, name) for name in CONFIGS}


def ask_ensembles(server: ServerProcess) -> Answers:
    """Of several problems of an ensemble only the first: Trident names them all."""
    found = {name: loaded(server, f"ensemble_{name}") for name in ENSEMBLES}
    for answer in found.values():
        answer.pop("index", None)
        if "load" in answer:
            answer["load"][1] = answer["load"][1].partition("; in ensemble")[0].rstrip("\n")
            answer["load"][1] = (
                answer["load"][1].replace("error: version 1 is at UNAVAILABLE state: ", "error: ").rstrip(";")
            )
    return found


def ask_overrides(server: ServerProcess) -> Answers:
    answers: Answers = {}
    for name, config in OVERRIDES.items():
        text = config if isinstance(config, str) else json.dumps(config)
        answer = load(server, "model", {"config": text})
        answers[name] = [answer, loaded(server, "model")["config"]] if answer == 200 else answer
    return answers
