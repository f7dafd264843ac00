"""Platform, backend and file name, each filled from the others."""

from __future__ import annotations

import pytest

from trident.core.config.platforms import fill_platform, pads_batches, platform_problems
from trident.core.config.schema import ModelConfig


@pytest.mark.parametrize(
    ("given", "files", "filled"),
    [
        ({"backend": "onnxruntime"}, [], ("onnxruntime_onnx", "onnxruntime", "model.onnx")),
        ({"platform": "onnxruntime_onnx"}, [], ("onnxruntime_onnx", "onnxruntime", "model.onnx")),
        ({"default_model_filename": "model.onnx"}, [], ("onnxruntime_onnx", "onnxruntime", "model.onnx")),
        ({}, ["model.onnx"], ("onnxruntime_onnx", "onnxruntime", "model.onnx")),
        ({}, ["model.plan", "other"], ("tensorrt_plan", "tensorrt", "model.plan")),
        ({}, ["model.py"], ("", "python", "model.py")),
        ({"backend": "python"}, ["model.onnx"], ("", "python", "model.py")),
        ({"backend": "pytorch"}, ["model.pt2"], ("torch_aoti", "pytorch", "model.pt2")),
        ({"backend": "pytorch"}, [], ("pytorch_libtorch", "pytorch", "model.pt")),
        ({"backend": "tensorflow"}, [], ("", "tensorflow", "")),
        (
            {"backend": "onnxruntime", "default_model_filename": "best.onnx"},
            ["model.py"],
            ("onnxruntime_onnx", "onnxruntime", "best.onnx"),
        ),
        ({"backend": "mine"}, [], ("", "mine", "model.mine")),
        ({"name": "x.mine"}, [], ("", "mine", "model.mine")),
        ({"name": "x.onnxruntime"}, [], ("onnxruntime_onnx", "onnxruntime", "model.onnx")),
        ({"platform": "ensemble"}, ["model.onnx"], ("ensemble", "", "")),
        ({"name": "plain"}, ["weights.bin"], ("", "", "")),
    ],
)
def test_missing_fields_are_filled_from_the_others(
    given: dict[str, str], files: list[str], filled: tuple[str, str, str]
) -> None:
    config = ModelConfig(**given)
    fill_platform(config, files)
    assert (config.platform, config.backend, config.default_model_filename) == filled


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"platform": "caffe"}, "unexpected platform type 'caffe' for m"),
        (
            {"platform": "onnxruntime_onnx", "backend": "python"},
            "unexpected 'platform' and 'backend' pair, got:onnxruntime_onnx, python",
        ),
        (
            {"platform": "ensemble", "backend": "python"},
            "Ensemble model 'm' must have platform type 'ensemble' and empty backend type",
        ),
        (
            {},
            "Invalid model name: Could not determine backend for model 'm' with no backend in model configuration. "
            "Expected model name of the form 'model.<backend_name>'.",
        ),
        ({"default_model_filename": "foo.onnx"}, "must specify 'platform' or 'backend' for 'm'"),
    ],
)
def test_contradiction_is_a_problem(given: dict[str, str], message: str) -> None:
    config = ModelConfig(name="m", **given)
    fill_platform(config, [])
    assert [problem.message for problem in platform_problems(config, "m")] == [message]


@pytest.mark.parametrize(
    "given", [{"backend": "onnxruntime"}, {"backend": "mine"}, {"backend": "mine", "platform": "any"}]
)
def test_valid_pair_has_no_problem(given: dict[str, str]) -> None:
    config = ModelConfig(name="m", **given)
    fill_platform(config, [])
    assert platform_problems(config, "m") == []


@pytest.mark.parametrize(
    ("given", "pads"),
    [
        ({"platform": "onnxruntime_onnx"}, True),
        ({"backend": "openvino"}, True),
        ({"platform": "tensorrt_plan"}, True),
        ({"backend": "pytorch"}, True),
        ({"backend": "pytorch", "runtime": "model.py"}, False),
        ({"platform": "torch_aoti"}, False),
        ({"backend": "python"}, False),
        ({"backend": "mine"}, False),
    ],
)
def test_batches_are_padded_where_the_server_gathers_them(given: dict[str, str], pads: bool) -> None:
    config = ModelConfig(**given)
    fill_platform(config, [])
    assert pads_batches(config) is pads
