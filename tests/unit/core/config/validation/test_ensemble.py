"""The problems of an ensemble's own configuration."""

from __future__ import annotations

import pytest
from google.protobuf import text_format

from trident.core.config.schema import ModelConfig
from trident.core.config.validate import ensemble_problems

IO = 'input { name: "IN" } output { name: "OUT" }'


def messages(text: str) -> list[str]:
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
    return messages(f'platform: "ensemble" {io} ensemble_scheduling {{ {" ".join(steps)} }}')


def test_other_models_have_no_steps() -> None:
    assert messages("ensemble_scheduling {}") == [
        "ensemble scheduling cannot be set for model 'm' whose platform is not ensemble"
    ]
    assert messages('backend: "onnxruntime"') == []


def test_settings_that_an_ensemble_cannot_have() -> None:
    assert messages('platform: "ensemble" instance_group {} optimization {} model_warmup {}') == [
        "ensemble scheduling must be set for ensemble m whose platform is ensemble",
        "instance group should not be specified for ensemble 'm'",
        "optimization should not be specified for ensemble 'm'",
        "model_warmup can not be specified for ensemble 'm'",
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
def test_the_flow_of_tensors_is_followed(steps: list[str], expected: list[str]) -> None:
    assert flow(*steps) == expected
