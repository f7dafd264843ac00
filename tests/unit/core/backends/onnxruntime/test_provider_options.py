from __future__ import annotations

from collections.abc import Callable

import pytest

from trident.core.backends.onnxruntime.providers import (
    cuda_accelerator_options,
    cuda_parameter_options,
    tensorrt_options,
)
from trident.core.errors import ConfigInvalid


@pytest.mark.parametrize(
    ("name", "value", "options"),
    [
        ("precision_mode", "FP32", {}),
        ("precision_mode", "BF16", {"trt_bf16_enable": "True"}),
        ("precision_mode", "INT8", {"trt_int8_enable": "True"}),
        ("max_workspace_size_bytes", "5", {"trt_max_workspace_size": "5"}),
        ("int8_calibration_table_name", "t", {"trt_int8_calibration_table_name": "t"}),
        ("int8_use_native_calibration_table", "1", {"trt_int8_use_native_calibration_table": "True"}),
        ("trt_engine_cache_path", "/c", {"trt_engine_cache_path": "/c"}),
        ("trt_profile_opt_shapes", "x:1", {"trt_profile_opt_shapes": "x:1"}),
    ],
)
def test_tensorrt_parameters_become_provider_options(name: str, value: str, options: dict[str, str]) -> None:
    assert tensorrt_options({name: value}) == options


@pytest.mark.parametrize(
    ("options_of", "name"),
    [(cuda_accelerator_options, "enable_cuda_graph"), (tensorrt_options, "trt_cuda_graph_enable")],
)
def test_cuda_graphs_are_refused(options_of: Callable[[dict[str, str]], dict[str, str]], name: str) -> None:
    with pytest.raises(ConfigInvalid, match=f"'{name}' is not supported: a CUDA graph reads and writes the buffers"):
        options_of({name: "1"})


def test_unknown_tensorrt_parameters_are_refused() -> None:
    with pytest.raises(ConfigInvalid, match="unsupported precision mode 'FP8' is requested"):
        tensorrt_options({"precision_mode": "FP8"})
    with pytest.raises(ConfigInvalid, match="unknown parameter 'trt_x' is provided for TensorRT Execution Accelerator"):
        tensorrt_options({"trt_x": "1"})


def test_cuda_booleans_are_checked() -> None:
    given = {"do_copy_in_default_stream": "false", "use_ep_level_unified_stream": "on", "enable_cuda_graph": "0"}
    assert cuda_accelerator_options(given) == {
        "do_copy_in_default_stream": "0",
        "use_ep_level_unified_stream": "1",
        "enable_cuda_graph": "0",
    }
    with pytest.raises(ConfigInvalid, match="failed to convert 'maybe' to boolean"):
        cuda_accelerator_options({"do_copy_in_default_stream": "maybe"})


def test_deprecated_parameters_become_cuda_options() -> None:
    given = {
        "cudnn_conv_algo_search": "1",
        "gpu_mem_limit": "77",
        "arena_extend_strategy": "1",
        "do_copy_in_default_stream": "0",
    }
    assert cuda_parameter_options(given) == {
        "cudnn_conv_algo_search": "HEURISTIC",
        "gpu_mem_limit": "77",
        "arena_extend_strategy": "kSameAsRequested",
        "do_copy_in_default_stream": "0",
    }
    assert cuda_parameter_options({"anything": "1"}) == {}


@pytest.mark.parametrize("name", ["cudnn_conv_algo_search", "arena_extend_strategy"])
def test_deprecated_parameters_out_of_range_are_refused(name: str) -> None:
    with pytest.raises(ConfigInvalid, match=f"unsupported {name} value '9' is requested"):
        cuda_parameter_options({name: "9"})
