"""The settings of a configuration that have no effect."""

from __future__ import annotations

import pytest
from google.protobuf import text_format

from tests.project import ROOT
from trident.core.config.schema import ModelConfig
from trident.core.config.validate import settings_without_effect

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
    ],
)
def test_setting_without_effect_is_named_by_its_path(text: str, path: str) -> None:
    assert paths(text) == [path]


@pytest.mark.parametrize(
    "text",
    [
        "",
        "optimization { graph { level: 1 } input_pinned_memory { enable: true } }",
        'optimization { execution_accelerators { gpu_execution_accelerator { name: "cuda" } } }',
        "instance_group { kind: KIND_CPU } instance_group { kind: KIND_GPU } "
        'cc_model_filenames { key: "7.5" value: "t4.onnx" }',
        "dynamic_batching { preserve_ordering: true } response_cache { enable: false }",
        'backend: "tensorrt" optimization { priority: PRIORITY_MAX cuda { busy_wait_events: true } }',
        'metric_tags { key: "a" value: "b" } model_transaction_policy { decoupled: true }',
    ],
)
def test_setting_with_an_effect_is_not_named(text: str) -> None:
    assert paths(text) == []


def test_shipped_models_use_every_setting_that_they_have() -> None:
    files = list((ROOT / "deploy" / "models").glob("*/config.pbtxt"))
    assert files
    assert [paths(file.read_text()) for file in files] == [[]] * len(files)
