from __future__ import annotations

import pytest

from tests.unit.core.config.sequence.sequence_configs import config_of
from trident.core.config.validate import sequence_problems

ANY = "'int32_false_true', 'fp32_false_true' {} 'bool_false_true'"
START, ID = "CONTROL_SEQUENCE_START", "CONTROL_SEQUENCE_CORRID"


def messages(sequence_batching: str, more: str = "max_batch_size: 8") -> list[str]:
    return [problem.message for problem in sequence_problems(config_of(sequence_batching, more), "m")]


def control(fields: str, kind: str = START, name: str = "C") -> str:
    return f'control_input {{ name: "{name}" control {{ kind: {kind} {fields} }} }} '


def state(fields: str = "", initial: str = "") -> str:
    made = f"initial_state {{ {initial} }}" if initial else ""
    return f'state {{ input_name: "I" output_name: "O" data_type: TYPE_FP32 dims: [ 2, -1 ] {fields} {made} }} '


def test_a_model_without_sequences_has_no_problems() -> None:
    assert messages("") == []
    assert messages(control("int32_false_true: [ 0, 1 ]") + state()) == []


@pytest.mark.parametrize(
    ("fields", "problem"),
    [
        ("direct { minimum_slot_utilization: 1.5 }", "minimum slot utilization must be in range (0.0, 1.0] for m"),
        ("direct { minimum_slot_utilization: nan }", "minimum slot utilization must be in range (0.0, 1.0] for m"),
        ("oldest { preferred_batch_size: [ 0 ] }", "preferred batch size must be positive for m"),
        ("oldest { preferred_batch_size: [ 9 ] }", "preferred batch size must be <= max batch size for m"),
        (
            "control_input { control { kind: CONTROL_SEQUENCE_END int32_false_true: [ 0, 1 ] } }",
            "control tensor must have a name for m",
        ),
        (
            control("int32_false_true: [ 0, 1 ]") + control("int32_false_true: [ 0, 1 ]", "CONTROL_SEQUENCE_END"),
            "control tensor 'C' is specified for multiple control kinds for m",
        ),
        (
            control("int32_false_true: [ 0, 1 ]") + control("int32_false_true: [ 0, 1 ]", name="D"),
            f"sequence batching specifies multiple {START} tensors for m",
        ),
        (control(""), f"must specify either {ANY.format('or')} for {START} for m"),
        (
            control("int32_false_true: [ 0, 1 ] fp32_false_true: [ 0, 1 ]"),
            f"specifies more than one from {ANY.format('and')} for {START} for m",
        ),
        (
            control("int32_false_true: [ 0 ]"),
            f"control 'int32_false_true' must have exactly 2 entries for {START} for m",
        ),
        (
            control("data_type: TYPE_UINT64 int32_false_true: [ 0, 1 ]", ID),
            f"must not specify either {ANY.format('or')} for {ID} for m",
        ),
        (
            control("data_type: TYPE_FP32", ID),
            f"unexpected data type for control {ID} for m. Allowed data types are TYPE_UINT64, TYPE_INT64, "
            "TYPE_UINT32, TYPE_INT32 and TYPE_STRING",
        ),
        (state() + state(), "State input name 'I' specified more than once."),
        (
            state("use_growable_memory: true"),
            "In order to 'use_growable_memory', you must also enable 'use_single_buffer' for state input name 'I'.",
        ),
        (
            state(initial='name: "n" data_type: TYPE_FP32 dims: [ 2, 1 ] zero_data: true }  initial_state { '),
            "initial_state field for state input 'I' must contain exactly one or zero element. Found '2' elements.",
        ),
        (
            state(initial='name: "n" data_type: TYPE_INT32 dims: [ 2, 1 ] zero_data: true'),
            "The data type used for 'initial_state' field of state 'I' does not match the state data type.",
        ),
        (
            state(initial="data_type: TYPE_FP32 dims: [ 2, 1 ] zero_data: true"),
            "Field 'name' must be set when using initial_state for state input 'I'.",
        ),
        (
            state(initial='name: "n" data_type: TYPE_FP32 dims: [ 2 ] zero_data: true'),
            "Number of dimensions in 'initial_state' doesn't match the size of 'state' dimensions for state input 'I'. "
            "1 != 2",
        ),
        (
            state(initial='name: "n" data_type: TYPE_FP32 dims: [ 2, -1 ] zero_data: true'),
            "'initial_state' field for state input name 'I' contains variable dimensions.",
        ),
        (
            state(initial='name: "n" data_type: TYPE_FP32 dims: [ 3, 1 ] zero_data: true'),
            "'initial_state' dim for input name 'I' doesn't match 'state' dim description. 3 != 2",
        ),
        (
            state(initial='name: "n" data_type: TYPE_FP32 dims: [ 2, 1 ]'),
            "initial_state setting expects state'I' to have state_data set",
        ),
    ],
)
def test_a_problem_has_tritons_text(fields: str, problem: str) -> None:
    found = messages(fields)
    assert len([text for text in found if problem in text]) >= 1, found


def test_growable_memory_is_for_gpus() -> None:
    growable = state("use_growable_memory: true use_same_buffer_for_input_output: true")
    assert messages(growable, "instance_group { kind: KIND_GPU }") == []
    (found,) = messages(growable, "instance_group { kind: KIND_CPU }")
    assert found.startswith("'use_growable_memory' can only work with KIND_GPU model instances right now.")


def test_a_client_sends_neither_controls_nor_states() -> None:
    inputs = (
        'input { name: "C" data_type: TYPE_INT32 dims: [ 1 ] } input { name: "I" data_type: TYPE_FP32 dims: [ 1 ] }'
    )
    assert messages(control("int32_false_true: [ 0, 1 ]") + state(), inputs) == [
        "sequence batching control tensor 'C' must not be a model input for m",
        "sequence batching state tensor 'I' must not be a model input for m",
    ]


def test_the_batch_size_may_be_completed_later() -> None:
    config = config_of("oldest { preferred_batch_size: [ 9 ] }", "")
    assert sequence_problems(config, "m", completed=False) == []
