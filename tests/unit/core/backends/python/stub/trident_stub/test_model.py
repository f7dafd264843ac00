"""ModelConfig: what may be completed, and the text of every contradiction."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from trident_stub.model import ModelConfig

INPUT = {"name": "X", "data_type": "TYPE_FP32", "dims": [4]}
WHERE = "in auto-complete-config function for model 'M'"


def config(**fields: Any) -> ModelConfig:
    return ModelConfig(json.dumps({"name": "M", **fields}))


def test_an_empty_configuration_is_completed() -> None:
    made = config()
    made.set_max_batch_size(8)
    made.set_dynamic_batching()
    made.add_input({**INPUT, "optional": True})
    made.add_output({"name": "Y", "data_type": "TYPE_STRING", "dims": [-1]})
    made.set_model_transaction_policy({"decoupled": True})
    assert made.as_dict() == {
        "name": "M",
        "max_batch_size": 8,
        "dynamic_batching": {},
        "input": [{**INPUT, "optional": True}],
        "output": [{"name": "Y", "data_type": "TYPE_STRING", "dims": [-1]}],
        "model_transaction_policy": {"decoupled": True},
    }


def test_what_is_configured_stays() -> None:
    made = config(
        max_batch_size=4,
        dynamic_batching={"max_queue_delay_microseconds": 5},
        input=[{"name": "A", "data_type": "TYPE_INT8", "dims": [1]}, {"name": "X", "data_type": "TYPE_INVALID"}],
        output=[dict(INPUT)],
        model_transaction_policy={"decoupled": True},
    )
    made.set_max_batch_size(16)
    made.set_dynamic_batching()
    made.add_input(INPUT)
    made.add_output(INPUT)
    made.set_model_transaction_policy({"decoupled": True})
    found = made.as_dict()
    assert found["max_batch_size"] == 16
    assert found["dynamic_batching"] == {"max_queue_delay_microseconds": 5}
    assert [tensor["name"] for tensor in found["input"]] == ["A", "X"]
    assert found["input"][1] == INPUT
    assert found["output"] == [INPUT]


@pytest.mark.parametrize(
    ("configured", "change", "text"),
    [
        (
            {"max_batch_size": 8},
            lambda made: made.set_max_batch_size(4),
            "configuration specified max_batch_size 8, but in auto-complete-config function for model 'M' specified "
            "max_batch_size 4",
        ),
        (
            {"sequence_batching": {}},
            lambda made: made.set_dynamic_batching(),
            "Configuration specified scheduling_choice as 'sequence_batching', but auto-complete-config function for "
            "model 'M' tries to set scheduling_choice as 'dynamic_batching'",
        ),
        (
            {"ensemble_scheduling": {}},
            lambda made: made.set_dynamic_batching(),
            "Configuration specified scheduling_choice as 'ensemble_scheduling', but auto-complete-config function for "
            "model 'M' tries to set scheduling_choice as 'dynamic_batching'",
        ),
        (
            {},
            lambda made: made.add_input({**INPUT, "reshape": {}}),
            f"input 'X' {WHERE} contains property other than 'name', 'data_type', 'dims' and 'optional'.",
        ),
        (
            {},
            lambda made: made.add_output({**INPUT, "optional": True}),
            f"output 'X' {WHERE} contains property other than 'name', 'data_type' and 'dims'.",
        ),
        (
            {},
            lambda made: made.add_input({"data_type": "TYPE_FP32", "dims": [4]}),
            f"input {WHERE} is missing 'name' property.",
        ),
        (
            {},
            lambda made: made.add_output({"name": "X", "dims": [4]}),
            f"output 'X' {WHERE} is missing 'data_type' property.",
        ),
        (
            {},
            lambda made: made.add_input({"name": "X", "data_type": "TYPE_FP32"}),
            f"input 'X' {WHERE} is missing 'dims' property.",
        ),
        (
            {"input": [INPUT]},
            lambda made: made.add_input({**INPUT, "data_type": "TYPE_INT8"}),
            "unable to load model 'M', configuration expects datatype TYPE_FP32 for input 'X', model provides "
            "TYPE_INT8",
        ),
        (
            {"output": [INPUT]},
            lambda made: made.add_output({**INPUT, "dims": [16]}),
            "model 'M', tensor 'X': the model expects dims [16] but the model configuration specifies dims [4]",
        ),
        (
            {"input": [{**INPUT, "optional": False}]},
            lambda made: made.add_input({**INPUT, "optional": True}),
            "model 'M', tensor 'X': the model expects optional True but the model configuration specifies optional "
            "False",
        ),
        (
            {},
            lambda made: made.set_model_transaction_policy({"decoupled": True, "other": 1}),
            f"model transaction property {WHERE} contains property other than 'decoupled'.",
        ),
        (
            {"model_transaction_policy": {"decoupled": False}},
            lambda made: made.set_model_transaction_policy({"decoupled": True}),
            "trying to change decoupled property in auto-complete-config for model 'M', which is already set to "
            "'False'.",
        ),
    ],
)
def test_contradictions(configured: dict[str, Any], change: Callable[[ModelConfig], None], text: str) -> None:
    with pytest.raises(ValueError, match=re.escape(text)) as caught:
        change(config(**configured))
    assert str(caught.value) == text
