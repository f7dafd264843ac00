"""Validation of model configurations, and their settings without effect."""

from __future__ import annotations

import json
import subprocess
import sys

import pytest
from google.protobuf import text_format

from tests.project import ROOT
from tests.unit.core.config.sequence_configs import sequence_config
from tests.unit.onnx_models import identity, write_version
from trident.core.config.autocomplete import fill_identity, normalize
from trident.core.config.ensemble import ensemble_problems
from trident.core.config.problem import Problem
from trident.core.config.resolve import histogram_buckets
from trident.core.config.schema import ModelConfig, copy_of
from trident.core.config.validate import (
    batch_tensor_problems,
    count_problems,
    scheduling_problems,
    sequence_problems,
    settings_without_effect,
    tensor_problems,
    validate_model_config,
)
from trident.core.options import DEFAULT_BUCKETS, FIRST_RESPONSE, QUEUE

GOOD = (
    'backend: "onnxruntime" max_batch_size: 8 input { name: "A" data_type: TYPE_FP32 dims: [ 4 ] } '
    'output { name: "Z" data_type: TYPE_FP32 dims: [ 4 ] } '
)


def problems(text: str, *, completed: bool = True) -> list[Problem]:
    config = text_format.Parse(text, ModelConfig())
    fill_identity(config, "m", [])
    normalize(config, ())
    return validate_model_config(config, "m", completed=completed)


def messages(text: str) -> list[str]:
    return [problem.message for problem in problems(text)]


def cases(text: str) -> list[tuple[str, str]]:
    """Configurations, each with what is said of it on the indented lines below; "" where that is `no problem`."""
    found = [("", "")]
    for line in text.strip().splitlines():
        written, said = found[-1]
        if line.startswith(" "):
            found[-1] = (written, f"{said} {line.strip()}".lstrip())
        elif said:
            found.append((line, ""))
        else:
            found[-1] = (f"{written} {line}".lstrip(), "")
    return [(written, said.removeprefix("no problem")) for written, said in found]


@pytest.mark.parametrize(
    ("text", "expected"),
    cases(
        """
name: "n"
    unexpected directory name 'm' for model 'n', directory name must equal model name
default_model_filename: "../../x.onnx"
    model file name '../../x.onnx' must stay within the version directory for m
cc_model_filenames { key: "8.0" value: "/x.onnx" }
    model file name '/x.onnx' must stay within the version directory for m
batch_input { data_type: TYPE_INT32 source_input: "A" }
    batch input kind 'BATCH_ELEMENT_COUNT' expects a target name, got none for m
model_metrics { metric_control {} }
    metric control must specify 'metric_identifier'
model_metrics { metric_control { metric_identifier {} histogram_options { buckets: [ 1 ] } } }
    metric identifier must specify non-empty 'family'
model_metrics { metric_control { metric_identifier { family: "nv_inference_first_response_histogram_ms" }
histogram_options {} } }
    histogram options must specify non-empty 'buckets'
model_metrics { metric_control { metric_identifier { family: "nv_inference_first_response_histogram_ms" } } }
    metric control must specify 'histogram_options'
model_repository_agents { agents { name: "checksum" parameters { key: "1/model.onnx" value: "0" } } }
    failed to parse key: 1/model.onnx
model_repository_agents { agents { name: "checksum" parameters { key: "SHA1:1/model.onnx" value: "0" } } }
    Unsupported checksum algorithm: SHA1
"""
    ),
)
def test_top_level_problem_has_its_text(text: str, expected: str) -> None:
    assert messages(GOOD.replace("max_batch_size: 8", "") + text)[0] == expected


def test_metric_family_without_custom_buckets_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    family = 'metric_identifier { family: "nv_x" } histogram_options { buckets: [ 1 ] }'
    assert messages(f"{GOOD} model_metrics {{ metric_control {{ {family} }} }}") == []
    assert caplog.messages == [
        "Metric family 'nv_x' in 'metric_identifier' is not a customizable metric in Triton core."
    ]


def test_unnormalised_configuration_lacks_its_defaults() -> None:
    assert [problem.message for problem in validate_model_config(ModelConfig(backend="python"), "m")] == [
        "model configuration must specify 'name'",
        "must specify 'version policy' for m",
    ]


GOOD_IN = 'input { name: "A" data_type: TYPE_FP32 dims: [ 4 ] }'
GOOD_OUT = 'output { name: "Z" data_type: TYPE_FP32 dims: [ 4 ] }'


def config_of(text: str) -> ModelConfig:
    return text_format.Parse(text, ModelConfig(name="m", platform="onnxruntime_onnx"))


def messages_tensors(text: str) -> list[str]:
    return [problem.message for problem in tensor_problems(config_of(text), "m")]


@pytest.mark.parametrize(
    ("fields", "text"),
    cases(
        """
name: "X" data_type: 77 dims: [ 1 ]
    model {side} 'X' must specify 'data_type' for m
name: "X" data_type: TYPE_FP32 dims: [ 4294967296, -1, 2147483648 ]
    element count for tensor 'X' exceeds maximum size of 9223372036854775807 for m
name: "X" data_type: TYPE_FP32 dims: [ -1, 4 ] reshape { shape: [ 4, -1 ] }
    model {side} 'X' has different size for dims and reshape for m
"""
    ),
)
@pytest.mark.parametrize("side", ["input", "output"])
def test_tensor_problem_has_its_text(side: str, fields: str, text: str) -> None:
    assert messages_tensors(f"{side} {{ {fields} }}") == [text.format(side=side)]


@pytest.mark.parametrize("side", ["input", "output"])
def test_non_linear_formats_need_three_dimensions(side: str) -> None:
    text = f'{side} {{ name: "X" data_type: TYPE_FP32 is_non_linear_format_io: true dims: [ 3, 2'
    plan = ModelConfig(name="m", platform="tensorrt_plan")
    found = tensor_problems(text_format.Parse(f"{text} ] }}", copy_of(plan)), "m")
    assert [problem.message for problem in found] == [f"Non-linear IO format {side} requires 3 dims for m"]
    assert list(tensor_problems(text_format.Parse(f"{text}, 2 ] }}", copy_of(plan)), "m")) == []


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
    cases(
        """
batch_input { data_type: TYPE_INT32 source_input: "A" }
    batch input kind 'BATCH_ELEMENT_COUNT' expects a target name, got none for m
batch_input { target_name: "T" data_type: TYPE_INT32 source_input: "A" } batch_output { target_name: "Z"
source_input: "A" }
    no problem
batch_input { kind: 9 target_name: "T" data_type: TYPE_INT32 source_input: "A" }
    unknown batch input kind '9' for m
output { name: "W" data_type: TYPE_FP32 dims: [ 4, -1 ] } batch_output { target_name: "W" source_input: "A" }
    batch output 'W' has a variable dimension at position 2 or later, where its source input 'A' has no
    dimension, for m
"""
    ),
)
def test_batch_tensor_problem_has_its_text(text: str, expected: str) -> None:
    config = config_of(f"{GOOD_IN} {GOOD_OUT} {text}")
    assert [problem.message for problem in batch_tensor_problems(config, "m")] == ([expected] if expected else [])


def target(value: str) -> str:
    return f'parameters {{ key: "TARGET_P99_MS" value {{ string_value: "{value}" }} }}'


def refused(text: str, *, completed: bool = True) -> list[str]:
    config = text_format.Parse(text, ModelConfig(name="m"))
    return [problem.message for problem in scheduling_problems(config, "m", completed=completed)]


START, ID = "CONTROL_SEQUENCE_START", "CONTROL_SEQUENCE_CORRID"


def messages_sequence(sequence_batching: str, more: str = "max_batch_size: 8") -> list[str]:
    return [problem.message for problem in sequence_problems(sequence_config(sequence_batching, more), "m")]


def control(fields: str, kind: str = START, name: str = "C") -> str:
    return f'control_input {{ name: "{name}" control {{ kind: {kind} {fields} }} }} '


def state(fields: str = "", initial: str = "") -> str:
    made = f"initial_state {{ {initial} }}" if initial else ""
    return f'state {{ input_name: "I" output_name: "O" data_type: TYPE_FP32 dims: [ 2, -1 ] {fields} {made} }} '


BATCHED = "max_batch_size: 8 dynamic_batching"
SEQUENCES = "max_batch_size: 8 sequence_batching"
FLAG, ONE_ID = "int32_false_true: [ 0, 1 ]", "data_type: TYPE_UINT64"


@pytest.mark.parametrize(
    ("text", "paths"),
    [
        (f"{BATCHED} {{ preferred_batch_size: 9 }}", ["dynamic_batching.preferred_batch_size"]),
        (f"{BATCHED} {{ preferred_batch_size: [ 0, 9 ] }}", ["dynamic_batching.preferred_batch_size"] * 2),
        ("dynamic_batching { preferred_batch_size: 1 }", ["dynamic_batching.preferred_batch_size"]),
        *(
            (f"{BATCHED} {{ {accepted} }}", [])
            for accepted in (
                "preferred_batch_size: [ 2, 8 ]",
                "default_queue_policy { timeout_action: DELAY default_timeout_microseconds: 1 }",
                "preserve_ordering: true priority_levels: 1 default_priority_level: 1",
                "priority_levels: 2 default_priority_level: 2 priority_queue_policy { key: 2 value {} }",
                "priority_levels: 2 default_priority_level: 2 priority_queue_policy { key: 1 value {} }",
            )
        ),
        (f"{BATCHED} {{ priority_levels: 2 }}", ["dynamic_batching.default_priority_level"]),
        (
            f"{BATCHED} {{ priority_levels: 1 default_priority_level: 1 "
            "priority_queue_policy { key: 2 value {} } }",
            ["dynamic_batching.priority_queue_policy"],
        ),
        (
            f"{BATCHED} {{ preserve_ordering: true priority_queue_policy {{ key: 1 value {{ "
            "timeout_action: DELAY default_timeout_microseconds: 1 } } }",
            ["dynamic_batching.priority_queue_policy[1].timeout_action"],
        ),
        (f"{SEQUENCES} {{ direct {{ minimum_slot_utilization: 0 }} }}", []),
        (f"{SEQUENCES} {{ direct {{ minimum_slot_utilization: 1 }} }}", []),
        *(
            (
                f"{SEQUENCES} {{ direct {{ minimum_slot_utilization: {part} }} }}",
                ["sequence_batching.direct.minimum_slot_utilization"],
            )
            for part in ("-0.5", "nan")
        ),
        (f"{SEQUENCES} {{ oldest {{ preferred_batch_size: [ 1, 8 ] }} }}", []),
        (
            f"{SEQUENCES} {{ oldest {{ preferred_batch_size: 9 }} }}",
            ["sequence_batching.oldest.preferred_batch_size"],
        ),
        *(
            (f"{SEQUENCES} {{ {controls} }}", [f"sequence_batching.control_input{path}" for path in paths])
            for controls, paths in (
                (control(FLAG) + control(FLAG, "CONTROL_SEQUENCE_END", "D") + control(ONE_ID, ID, "E"), []),
                (control(FLAG, name="") + control(FLAG, "CONTROL_SEQUENCE_END", "D"), ["[0].name"]),
                (control(FLAG) + control(FLAG, "CONTROL_SEQUENCE_END"), ["[1]"]),
                (control(FLAG) + control(FLAG, name="D"), ["[1]"]),
                (
                    f'control_input {{ name: "C" control {{ kind: {START} {FLAG} }} '
                    f"control {{ kind: {ID} {ONE_ID} }} }}",
                    ["[0]"],
                ),
                (control(""), ["[0].control[0]"]),
                (control(f"{FLAG} fp32_false_true: [ 0, 1 ]"), ["[0].control[0]"]),
                (control("int32_false_true: 0"), ["[0].control[0].int32_false_true"]),
                (control("fp32_false_true: [ 0, 1, 2 ]"), ["[0].control[0].fp32_false_true"]),
                (control("bool_false_true: [ false, true ]"), []),
                (control(f"{ONE_ID} {FLAG}", ID), ["[0].control[0]"]),
                *((control(f"data_type: TYPE_{name}", ID), []) for name in ("UINT32", "INT32", "INT64", "STRING")),
                *((control(text, ID), ["[0].control[0].data_type"]) for text in ("", "data_type: TYPE_INT16")),
            )
        ),
        *(
            (f"{SEQUENCES} {{ {states} }}", [f"sequence_batching.state{path}" for path in paths])
            for states, paths in (
                (state() + state().replace('"I"', '"J"').replace('"O"', '"P"'), []),
                (state() + state().replace('"I"', '"J"'), ["[1].output_name"]),
                (state() + state().replace('"O"', '"P"'), ["[1].input_name"]),
                (state().replace('"I"', '""'), ["[0]"]),
                (state().replace('"O"', '""'), ["[0]"]),
                (state().replace("TYPE_FP32", "TYPE_INVALID"), ["[0].data_type"]),
                (state().replace("[ 2, -1 ]", "[ 1, 0 ]"), ["[0].dims"]),
                (state().replace("[ 2, -1 ]", "[ -2 ]"), ["[0].dims"]),
                (state("use_growable_memory: true"), ["[0].use_growable_memory"]),
                *(
                    (
                        state(initial=f'name: "n" data_type: TYPE_FP32 dims: [ {dims} ] zero_data: true'),
                        [f"[0].initial_state.{field}"] if field else [],
                    )
                    for dims, field in (
                        ("2, 0", ""),
                        ("2, 9", ""),
                        ("2, -1", "dims"),
                        ("-1, 9", "dims"),
                        ("3, 9", "dims"),
                        ("2", "dims"),
                        ("2, 9, 1", "dims"),
                    )
                ),
                (
                    state(initial="data_type: TYPE_INT8 dims: [ 2, 9 ]"),
                    ["[0].initial_state.data_type", "[0].initial_state.name", "[0].initial_state"],
                ),
            )
        ),
        (
            f'{SEQUENCES} {{ {control(FLAG, name="I")} {state()} }} input {{ name: "Q" }} input {{ name: "I" }}',
            ["input[1].name", "input[1].name", "sequence_batching.state"],
        ),
    ],
)
def test_a_problem_of_a_scheduler_is_at_its_field(text: str, paths: list[str]) -> None:
    found = scheduling_problems(text_format.Parse(text, ModelConfig(name="m")), "m")
    assert [problem.path for problem in found] == paths


def test_fields_that_auto_complete_may_fill_are_accepted() -> None:
    scalar = config_of('input { name: "X" data_type: TYPE_FP32 dims: [ 1 ] reshape {} }')
    assert [list(tensor_problems(scalar, "m", completed=False)), len(list(tensor_problems(scalar, "m")))] == [[], 1]


@pytest.mark.parametrize("value", ["", "fast", "0", "-1", "nan", "inf", "3600001", "20 ms"])
def test_invalid_latency_target_is_refused(value: str) -> None:
    assert refused(f"max_batch_size: 8 dynamic_batching {{}} {target(value)}") == [
        f"TARGET_P99_MS must be milliseconds from above 0 to 3600000, got '{value}' for m"
    ]


@pytest.mark.parametrize(
    ("text", "problem"),
    cases(
        """
max_batch_size: 8
    TARGET_P99_MS needs dynamic_batching for m
max_batch_size: 1 dynamic_batching {}
    TARGET_P99_MS needs a max_batch_size of at least 2 for m
max_batch_size: 8 dynamic_batching { max_queue_delay_microseconds: 1 }
    TARGET_P99_MS sets what max_queue_delay_microseconds sets for m
max_batch_size: 8 dynamic_batching { preferred_batch_size: 4 }
    TARGET_P99_MS sets what preferred_batch_size sets for m
max_batch_size: 8 dynamic_batching {} model_transaction_policy { decoupled: true }
    TARGET_P99_MS is not for the decoupled model m
"""
    ),
)
def test_conflicting_latency_target_is_a_problem_with_a_hint(text: str, problem: str) -> None:
    config = text_format.Parse(f"{text} {target('20')}", ModelConfig(name="m"))
    (found,) = scheduling_problems(config, "m")
    assert found.message == problem
    assert found.hint


def test_batch_trial_parameter_is_checked_for_backends_with_a_trial() -> None:
    text = 'max_batch_size: 8 parameters { key: "BATCH_DESPITE_TRIAL" value { string_value: "yes" } }'
    assert refused(f'backend: "onnxruntime" {text}') == ["BATCH_DESPITE_TRIAL must be true or false, got 'yes' for m"]
    assert refused(f'backend: "python" {text}') == []


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        (state() + state(), "State input name 'I' specified more than once."),
        (
            state("use_growable_memory: true"),
            "In order to 'use_growable_memory', you must also enable 'use_single_buffer' for state input name 'I'.",
        ),
        (
            state(initial='name: "n" data_type: TYPE_FP32 dims: [ 2 ] zero_data: true'),
            "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state input 'I'. "
            "1 != 2",
        ),
    ],
)
def test_problem_has_tritons_text(fields: str, problem: str) -> None:
    found = messages_sequence(fields)
    assert len([text for text in found if problem in text]) >= 1, found


def test_growable_memory_is_for_gpus() -> None:
    growable = state("use_growable_memory: true use_same_buffer_for_input_output: true")
    assert messages_sequence(growable, "instance_group { kind: KIND_GPU }") == []
    (found,) = messages_sequence(growable, "instance_group { kind: KIND_CPU }")
    assert found.startswith("'use_growable_memory' can only work with KIND_GPU model instances right now.")


def test_controls_and_states_are_not_inputs_of_clients() -> None:
    inputs = (
        'input { name: "C" data_type: TYPE_INT32 dims: [ 1 ] } input { name: "I" data_type: TYPE_FP32 dims: [ 1 ] }'
    )
    assert messages_sequence(control("int32_false_true: [ 0, 1 ]") + state(), inputs) == [
        "sequence batching control tensor 'C' must not be a model input for m",
        "sequence batching state tensor 'I' must not be a model input for m",
    ]


IO = 'input { name: "IN" } output { name: "OUT" }'


def messages_ensemble(text: str) -> list[str]:
    config = text_format.Parse(text, ModelConfig(name="m"))
    return [problem.message for problem in ensemble_problems(config, "m")]


def step(inputs: str, outputs: str, model: str = "a") -> str:
    """A step; `inputs` and `outputs` are pairs such as `X:T Y:U`."""
    maps = [
        f'{field} {{ key: "{pair.split(":")[0]}" value: "{pair.split(":")[1]}" }}'
        for field, pairs in (("input_map", inputs), ("output_map", outputs))
        for pair in pairs.split()
    ]
    return f'step {{ model_name: "{model}" model_version: -1 {" ".join(maps)} }}'


def flow(*steps: str, io: str = IO) -> list[str]:
    return messages_ensemble(f'platform: "ensemble" {io} ensemble_scheduling {{ {" ".join(steps)} }}')


def test_unsupported_settings_of_an_ensemble_are_refused() -> None:
    order = 'parameters { key: "PRESERVE_RESPONSE_ORDER" value { string_value: "no" } }'
    assert messages_ensemble(
        f'platform: "ensemble" instance_group {{}} optimization {{}} model_warmup {{}} {order}'
    ) == [
        "ensemble scheduling must be set for ensemble m whose platform is ensemble",
        "instance group should not be specified for ensemble 'm'",
        "optimization should not be specified for ensemble 'm'",
        "model_warmup can not be specified for ensemble 'm'",
        "PRESERVE_RESPONSE_ORDER must be true or false, got 'no' for m",
    ]


def test_every_unfinished_step_is_named() -> None:
    assert flow() == ["must specify 'step' for ensemble 'm'"]
    assert flow(step("", "X:OUT"), step("X:IN", "", model="")) == [
        "must specify 'input_map' in step 0 of ensemble 'm'",
        "must specify 'model_name' in step 1 of ensemble 'm'",
        "must specify 'output_map' in step 1 of ensemble 'm'",
    ]


@pytest.mark.parametrize(
    ("steps", "expected"),
    [
        ([step("X:IN", "Y:OUT")], []),
        ([step("X:IN", "Y:T"), step("X:T", "Y:OUT")], []),
        ([step("X:T", "Y:OUT"), step("X:IN", "Y:T")], []),
        (
            [step("X:IN", "Y:OUT"), step("X:IN", "Y:OUT")],
            ["ensemble tensor 'OUT' can appear in an output map only once for ensemble 'm' step 1"],
        ),
        (
            [step("X:IN", "Y:OUT Z:IN")],
            ["ensemble tensor 'IN' is an input of ensemble 'm', so step 0 cannot write it"],
        ),
        (
            [step("X:ALIEN", "Y:OUT")],
            [
                "ensemble input 'IN' for ensemble m' is not used",
                "output 'OUT' for ensemble 'm' is not written: at least one of its depending tensors, 'ALIEN', is not "
                "connected",
                "ensemble tensor 'ALIEN' is unused in ensemble 'm'",
            ],
        ),
        (
            [step("X:IN", "Y:T")],
            [
                "ensemble output 'OUT' for ensemble m' is not used",
                "ensemble tensor 'T' is unused in ensemble 'm'",
            ],
        ),
        ([step("X:IN", "Y:OUT Z:T")], ["ensemble tensor 'T' is unused in ensemble 'm'"]),
        (
            [step("X:IN A:U", "Y:T"), step("X:T", "Y:U Z:OUT")],
            [
                "output 'OUT' for ensemble 'm' is not written",
                "ensemble tensor 'T' is unused in ensemble 'm'",
                "ensemble tensor 'U' is unused in ensemble 'm'",
            ],
        ),
    ],
)
def test_ensemble_tensor_flow_is_checked(steps: list[str], expected: list[str]) -> None:
    assert flow(*steps) == expected


LIMIT_S = 300
MEMORY = 6 << 30
M31, M32, M64, I64 = 2**31 - 1, 2**32 - 1, 2**64 - 1, 2**63 - 1
ONE = "instance_group { kind: KIND_CPU count: 1 }"


def config(text: str, batch: int = 64) -> str:
    return f"""
backend: "onnxruntime"
max_batch_size: {batch}
input {{ name: "INPUT0" data_type: TYPE_FP32 dims: [ -1 ] }}
output {{ name: "OUTPUT0" data_type: TYPE_FP32 dims: [ -1 ] }}
{text}
"""


def parameter(key: str, value: object) -> str:
    return f'{ONE} parameters {{ key: "{key}" value {{ string_value: "{value}" }} }}'


def warmup(batch: int = 1, count: int = 1, dims: str = "4", content: str = "zero_data") -> str:
    given = f'{{ key: "INPUT0" value {{ data_type: TYPE_FP32 dims: [ {dims} ] {content}: true }} }}'
    return f'{ONE} model_warmup {{ name: "w" batch_size: {batch} count: {count} inputs {given} }}'


def state_of(dims: str) -> str:
    state_of = f'{{ input_name: "S" output_name: "T" data_type: TYPE_FP32 dims: [ {dims} ] }}'
    return f"{ONE} sequence_batching {{ state {state_of} }}"


READY: dict[str, str] = {
    "priorities": config(
        f"{ONE} dynamic_batching {{ priority_levels: {M64} default_priority_level: {M64} priority_queue_policy {{ "
        f"key: {M64} value {{ max_queue_size: {M32} default_timeout_microseconds: {M64} }} }} }}"
    ),
    "batch": config(f"{ONE} dynamic_batching {{ max_queue_delay_microseconds: {M64} }}", M31),
    "target": config(f"{parameter('TARGET_P99_MS', 20)} dynamic_batching {{ }}", M31),
    "sequences": config(
        f"{ONE} sequence_batching {{ max_sequence_idle_microseconds: {M64} oldest {{ "
        f"max_candidate_sequences: {M31} max_queue_delay_microseconds: {M64} }} }}",
        M31,
    ),
    "slots": config(f"{ONE} sequence_batching {{ direct {{ }} }}", M31),
    "resources": config(
        "instance_group { kind: KIND_CPU count: 2 rate_limiter { "
        f'priority: {M32} resources {{ name: "R" count: {M32} }} }} }}'
    ),
    "versions": config(f"{ONE} version_policy {{ latest {{ num_versions: {M32} }} }}"),
    "specific": config(f"{ONE} version_policy {{ specific {{ versions: [ 1, {I64} ] }} }}"),
    "buffers": config(f"{ONE} optimization {{ gather_kernel_buffer_threshold: {M31} graph {{ level: {M31} }} }}"),
}
# And the field that the error names.
REFUSED: dict[str, tuple[str, str]] = {
    "instances": (config(f"instance_group {{ kind: KIND_CPU count: {M31} }}"), "instance_group[0].count"),
    "groups": (config("instance_group { kind: KIND_CPU count: 400 } " * 3), "instance_group[2].count"),
    "warm_zeros": (config(warmup(dims=f"{I64}")), "model_warmup[0].inputs"),
    "warm_random": (config(warmup(dims="100000, 1000000", content="random_data")), "model_warmup[0].inputs"),
    "state": (config(state_of("10000000000")), "sequence_batching.state[0].dims"),
    "warm_count": (config(warmup(count=4_000_000_000)), "model_warmup[0].count"),
    "warm_counts": (config(warmup() + warmup(count=10_000).removeprefix(ONE)), "model_warmup[1].count"),
    "warm_batch": (config(warmup(batch=M31), M31), "model_warmup[0].batch_size"),
    "threads": (config(parameter("intra_op_thread_count", "1_000_000")), "parameters[intra_op_thread_count]"),
    "state_overflow": (config(state_of(f"{I64}, {I64}")), "sequence_batching.state[0].dims"),
}
LOAD = """
import json, os, resource, sys
os.sched_setaffinity(0, list(os.sched_getaffinity(0))[:2])  # stacks of threads count as memory
resource.setrlimit(resource.RLIMIT_AS, (int(sys.argv[2]),) * 2)
from trident.core.engine.in_process import make_engine
from trident.core.lifecycle.options import EngineOptions
engine = make_engine(EngineOptions(repositories=(sys.argv[1],), gpu_metrics=False))
engine.start()
engine.wait_loaded(3600)
index = engine.repository_index(False)
print(json.dumps({entry.name: [entry.state.value, entry.reason] for entry in index}))
sys.stdout.flush()
os._exit(0)  # threads of the models still wait
"""


@pytest.fixture(scope="module")
def index(tmp_path_factory: pytest.TempPathFactory) -> dict[str, list[str]]:
    """State and reason of each model after the load."""
    repository = tmp_path_factory.mktemp("counts")
    for name, text in [*READY.items(), *((name, text) for name, (text, _) in REFUSED.items())]:
        write_version(identity(), repository, name, text)
    command = [sys.executable, "-c", LOAD, str(repository), str(MEMORY)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT_S, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    found: dict[str, list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found


@pytest.mark.parametrize("name", READY)
def test_large_count_without_allocations_is_accepted(index: dict[str, list[str]], name: str) -> None:
    assert index[name] == ["READY", ""]


@pytest.mark.parametrize("name", REFUSED)
def test_excessive_count_is_refused(index: dict[str, list[str]], name: str) -> None:
    state_of, reason = index[name]
    assert state_of == "UNAVAILABLE"
    assert reason.startswith(f"Invalid argument: '{REFUSED[name][1]}' of model '{name}' means ")
    assert ", more than the maximum of " in reason


GPUS = "instance_group { kind: KIND_GPU gpus: [ 0, 1 ] count: %d }"
ITEM = 'model_warmup { batch_size: %d count: %d inputs { key: "I" value { data_type: TYPE_%s dims: [ %s ] } } }'


@pytest.mark.parametrize(
    ("text", "amount"),
    [
        ("instance_group { count: 1024 }", 0),
        ("instance_group { count: 1025 }", 1025),
        ("instance_group { count: 1024 } instance_group { count: 1 }", 1025),
        ("instance_group { count: 1024 } instance_group { count: 9 passive: true }", 0),
        (GPUS % 512, 0),
        (GPUS % 513, 1026),
        (ITEM % (1, 10_000, "FP32", "1"), 0),
        (ITEM % (1, 10_001, "FP32", "1"), 10_001),
        (ITEM % (0, 10_001, "FP32", "1"), 0),
        (ITEM % (100, 10_000, "FP32", "1"), 0),
        (ITEM % (101, 10_000, "FP32", "1"), 1_010_000),
        (ITEM % (1_000_001, 0, "FP32", "1"), 1_000_001),
        (ITEM % (1, 1, "FP32", f"{1 << 30}"), 0),
        (ITEM % (1, 1, "FP32", f"{(1 << 30) + 1}"), (4 << 30) + 4),
        (ITEM % (1, 1, "STRING", f"-1, {(1 << 29) + 1}"), (4 << 30) + 8),
        (ITEM % (1, 1, "INVALID", f"{1 << 40}"), 0),
        (
            "sequence_batching { state { data_type: TYPE_INT8 dims: [ -1 ] initial_state { dims: [ 4294967297 ] } } }",
            (4 << 30) + 1,
        ),
        ('backend: "onnxruntime" parameters { key: "intra_op_thread_count" value { string_value: "1024" } }', 0),
        ('backend: "onnxruntime" parameters { key: "intra_op_thread_count" value { string_value: "1025" } }', 1025),
        ('backend: "onnxruntime" parameters { key: "intra_op_thread_count" value { string_value: "x" } }', 0),
    ],
)
def test_the_largest_amount_is_allowed_and_the_next_is_not(text: str, amount: int) -> None:
    found = [problem.message for problem in count_problems(text_format.Parse(text, ModelConfig(name="m")))]
    assert [f" means {amount} " in message for message in found] == ([True] if amount else [])


def buckets(*controls: tuple[str, str]) -> dict[str, tuple[float, ...]]:
    text = " ".join(
        f'metric_control {{ metric_identifier {{ family: "{family}" }} histogram_options {{ buckets: [ {bounds} ] }} }}'
        for family, bounds in controls
    )
    return histogram_buckets(text_format.Parse(f"model_metrics {{ {text} }}", ModelConfig()))


def test_a_model_chooses_the_buckets_of_one_histogram() -> None:
    assert buckets((FIRST_RESPONSE, "1, 10, 0.5")) == {**DEFAULT_BUCKETS, FIRST_RESPONSE: (0.5, 1, 10)}
    assert buckets((QUEUE, "0.1"), (FIRST_RESPONSE, "7")) == {**DEFAULT_BUCKETS, QUEUE: (0.1,), FIRST_RESPONSE: (7,)}
    assert buckets((QUEUE, "2, inf, 1, nan, 2"))[QUEUE] == (1, 2)
    assert buckets((QUEUE, "inf"), ("nv_x", "1")) == DEFAULT_BUCKETS


ON_CPU = "instance_group { kind: KIND_CPU } "


def paths(text: str) -> list[str]:
    return [each.path for each in settings_without_effect(text_format.Parse(text, ModelConfig()))]


@pytest.mark.parametrize(
    ("text", "path"),
    [
        ("optimization { priority: PRIORITY_MIN }", "optimization.priority"),
        ("optimization { cuda { graphs: true } }", "optimization.cuda"),
        ('platform: "tensorrt_plan" optimization { cuda { graphs: true } }', "optimization.cuda"),
        ("optimization { input_pinned_memory { enable: false } }", "optimization.input_pinned_memory"),
        ("optimization { output_pinned_memory { enable: false } }", "optimization.output_pinned_memory"),
        ("optimization { gather_kernel_buffer_threshold: 1 }", "optimization.gather_kernel_buffer_threshold"),
        ("optimization { eager_batching: true }", "optimization.eager_batching"),
        (
            ON_CPU + 'optimization { execution_accelerators { gpu_execution_accelerator { name: "cuda" } } }',
            "optimization.execution_accelerators.gpu_execution_accelerator",
        ),
        ('instance_group {} instance_group { host_policy: "numa0" }', "instance_group[1].host_policy"),
        ("instance_group { secondary_devices { device_id: 1 } }", "instance_group[0].secondary_devices"),
        ("instance_group { passive: true }", "instance_group[0].passive"),
        (ON_CPU + 'cc_model_filenames { key: "7.5" value: "t4.onnx" }', "cc_model_filenames"),
        (
            'parameters { key: "TRITON_BATCH_STRATEGY_PATH" value { string_value: "x.so" } }',
            "parameters[TRITON_BATCH_STRATEGY_PATH]",
        ),
        ("model_warmup { batch_size: 1 } model_warmup {}", "model_warmup[1].batch_size"),
        # With a group on a GPU, or without any, the devices are the server's choice.
        *(
            (f"{groups} {setting}", "")
            for groups in ("", ON_CPU + "instance_group { kind: KIND_GPU }")
            for setting in (
                'cc_model_filenames { key: "7.5" value: "t4.onnx" }',
                'optimization { execution_accelerators { gpu_execution_accelerator { name: "cuda" } } }',
            )
        ),
        ('platform: "tensorrt_plan" optimization { priority: PRIORITY_MIN cuda { busy_wait_events: true } }', ""),
        ("optimization { input_pinned_memory { enable: true } output_pinned_memory { enable: true } }", ""),
    ],
)
def test_setting_without_effect_is_named_by_its_path(text: str, path: str) -> None:
    assert paths(text) == ([path] if path else [])


def test_shipped_models_use_every_setting_that_they_have() -> None:
    files = list((ROOT / "deploy" / "models").glob("*/config.pbtxt"))
    assert files
    assert [paths(file.read_text()) for file in files] == [[]] * len(files)
