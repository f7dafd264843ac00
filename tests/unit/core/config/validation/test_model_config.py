"""Validation of a whole configuration: the top-level texts, and every problem at once."""

from __future__ import annotations

import pytest
from google.protobuf import text_format

from trident.core.config.autocomplete import fill_identity, normalize
from trident.core.config.problem import InvalidModelConfig, Problem
from trident.core.config.schema import ModelConfig
from trident.core.config.validate import validate_model_config
from trident.core.errors import ConfigInvalid, ErrorCode

GOOD = (
    'backend: "onnxruntime" max_batch_size: 8 input { name: "A" data_type: TYPE_FP32 dims: [ 4 ] } '
    'output { name: "Z" data_type: TYPE_FP32 dims: [ 4 ] } '
)
CHECKSUM = 'model_repository_agents { agents { name: "checksum" parameters { key: "%s" value: "0" } } }'


def problems(text: str, *, completed: bool = True) -> list[Problem]:
    config = text_format.Parse(text, ModelConfig())
    fill_identity(config, "m", [])
    normalize(config, ())
    return validate_model_config(config, "m", completed=completed)


def messages(text: str) -> list[str]:
    return [problem.message for problem in problems(text)]


def test_valid_configuration_has_no_problem() -> None:
    assert messages(GOOD) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ('name: "n"', "unexpected directory name 'm' for model 'n', directory name must equal model name"),
        ("max_batch_size: -1", "'max_batch_size' must be non-negative value for m"),
        (
            'default_model_filename: "../../x.onnx"',
            "model file name '../../x.onnx' must stay within the version directory for m",
        ),
        (
            'cc_model_filenames { key: "8.0" value: "/x.onnx" }',
            "model file name '/x.onnx' must stay within the version directory for m",
        ),
        ("model_metrics { metric_control {} }", "metric control must specify 'metric_identifier'"),
        (
            "model_metrics { metric_control { metric_identifier {} histogram_options { buckets: [ 1 ] } } }",
            "metric identifier must specify non-empty 'family'",
        ),
        (
            'model_metrics { metric_control { metric_identifier { family: "nv_inference_first_response_histogram_ms" } '
            "histogram_options {} } }",
            "histogram options must specify non-empty 'buckets'",
        ),
        (
            "model_metrics { metric_control { metric_identifier "
            '{ family: "nv_inference_first_response_histogram_ms" } } }',
            "metric control must specify 'histogram_options'",
        ),
        (
            'model_repository_agents { agents { name: "checksum" } agents { name: "decrypt" } }',
            "unable to find repo agent 'decrypt': only 'checksum' is built in",
        ),
        (CHECKSUM % "1/model.onnx", "failed to parse key: 1/model.onnx"),
        (CHECKSUM % "SHA1:1/model.onnx", "Unsupported checksum algorithm: SHA1"),
    ],
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
    assert [problem.message for problem in validate_model_config(ModelConfig(backend="onnxruntime"), "m")] == [
        "model configuration must specify 'name'",
        "must specify 'version policy' for m",
        "must specify one or more 'instance group's for m",
    ]


def test_every_problem_is_reported_at_once() -> None:
    found = problems(
        'name: "n" backend: "onnxruntime" max_batch_size: -1 input { name: "A" } '
        "sequence_batching { control_input {} }"
        "instance_group { kind: KIND_GPU } "
    )
    assert [problem.path for problem in found] == [
        "name",
        "max_batch_size",
        "input[0].data_type",
        "input[0].dims",
        "sequence_batching.control_input[0].name",
        "instance_group[0].kind",
    ]


def test_validation_before_auto_complete_skips_inputs_and_outputs() -> None:
    text = 'backend: "onnxruntime" batch_input { target_name: "T" data_type: TYPE_INT32 source_input: "A" } '
    assert problems(text + "input { dims: 0 } output {}", completed=False) == []
    assert [problem.message for problem in problems(text)] == ["unknown source input name 'A' for m"]


def test_error_has_the_first_message_and_all_problems() -> None:
    error = InvalidModelConfig([Problem("name", "first", "do this"), Problem("input", "second")], model="m")
    assert isinstance(error, ConfigInvalid)
    assert error.code is ErrorCode.INVALID_ARG
    assert (error.message, error.hint, error.model) == ("first", "do this", "m")
    assert [problem.message for problem in error.problems] == ["first", "second"]
