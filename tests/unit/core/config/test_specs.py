"""The spec of a model that a configuration resolves to."""

from __future__ import annotations

import pytest

from tests.unit.core.config.sequence_configs import normalized
from trident.core.config.resolve import backend_spec, own_inputs, own_outputs, resolve_model_spec, resolve_sequence_spec
from trident.core.config.schema import ModelConfig
from trident.core.config.spec import SequenceSpec

CONTROLS = """
control_input { name: "S" control { kind: CONTROL_SEQUENCE_START fp32_false_true: [ -1, 2.5 ] } }
control_input { name: "R" control { kind: CONTROL_SEQUENCE_READY bool_false_true: [ true, false ] } }
control_input { name: "C" control { kind: CONTROL_SEQUENCE_CORRID data_type: TYPE_STRING } }
"""
STATES = """
state { input_name: "A_IN" output_name: "A" data_type: TYPE_FP32 dims: [ -1 ] }
state { input_name: "B_IN" output_name: "B" data_type: TYPE_INT8 dims: [ 2 ] }
"""
SIDES = 'input { name: "X" data_type: TYPE_INT32 dims: [ 1 ] } output { name: "A" data_type: TYPE_FP32 dims: [ -1 ] }'


def sequence_of_spec(config: ModelConfig) -> SequenceSpec:
    spec = resolve_sequence_spec(config)
    assert spec is not None
    return spec


@pytest.mark.parametrize(
    ("strategy", "more", "direct", "slots", "sizes", "delay_us"),
    [
        ("", "max_batch_size: 8", True, 8, (8,), 0),
        ("", "", True, 1, (1,), 0),
        ("direct { max_queue_delay_microseconds: 9 }", "max_batch_size: 8", True, 8, (8,), 0),
        ("direct { minimum_slot_utilization: 0.5 }", "max_batch_size: 8", True, 8, (8,), 0),
        (
            "direct { minimum_slot_utilization: 0.7 max_queue_delay_microseconds: 9 }",
            "max_batch_size: 10",
            True,
            10,
            (7, 8, 9, 10),
            9,
        ),
        ("oldest {}", "max_batch_size: 8", False, 8, (8,), 0),
        (
            "oldest { max_candidate_sequences: 3 preferred_batch_size: [ 4, 2, 4 ] max_queue_delay_microseconds: 7 }",
            "max_batch_size: 8",
            False,
            3,
            (2, 4),
            7,
        ),
    ],
)
def test_sequence_strategy_sets_slots_and_batch_sizes(
    strategy: str, more: str, direct: bool, slots: int, sizes: tuple[int, ...], delay_us: int
) -> None:
    spec = sequence_of_spec(normalized(strategy, more))
    assert (spec.is_direct, spec.slots, spec.preferred_batch_sizes) == (direct, slots, sizes)
    assert (spec.max_queue_delay_ns, spec.max_idle_ns) == (delay_us * 1000, 1_000_000_000)


def test_controls_and_states_are_part_of_the_backends_spec() -> None:
    config = normalized(CONTROLS + STATES, f"max_batch_size: 8 {SIDES}")
    spec = resolve_model_spec(config, 1, {})
    assert (list(spec.inputs), list(spec.outputs)) == (["X"], ["A"])
    seen = backend_spec(spec)
    assert list(seen.inputs) == ["X", "S", "R", "C", "A_IN", "B_IN"]
    assert (list(seen.outputs), seen.outputs["B"].dims) == (["A", "B"], (2,))
    assert (own_inputs(config), own_outputs(config)) == (["S", "R", "C", "A_IN", "B_IN"], ["A", "B"])
