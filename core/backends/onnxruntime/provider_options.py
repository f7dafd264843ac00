"""The options of ONNX Runtime's execution providers, from a model's accelerators and parameters.

Source: docs/spec/onnxruntime-backend.md section 5.2; ONNX Runtime's execution provider options.
"""

from __future__ import annotations

from collections.abc import Mapping

from core.backends.parameter_values import boolean, field_of, integer
from core.errors import ConfigInvalid

ACCELERATORS = "optimization.execution_accelerators"
"""The field of a configuration that the accelerators are."""

# Parameters of the accelerator `tensorrt` that have the same name in ONNX Runtime.
_TENSORRT_SAME_NAME = frozenset(
    f"trt_{name}"
    for name in (
        *("max_partition_iterations", "min_subgraph_size", "dla_enable", "dla_core", "engine_cache_enable"),
        *("engine_cache_path", "engine_cache_prefix", "dump_subgraphs", "force_sequential_engine_build"),
        *("context_memory_sharing_enable", "layer_norm_fp32_fallback", "timing_cache_enable", "timing_cache_path"),
        *("force_timing_cache", "detailed_build_log", "build_heuristics_enable", "sparsity_enable"),
        *("builder_optimization_level", "auxiliary_streams", "tactic_sources", "extra_plugin_lib_paths"),
        *("profile_min_shapes", "profile_max_shapes", "profile_opt_shapes", "cuda_graph_enable"),
        *("dump_ep_context_model", "ep_context_file_path", "ep_context_embed_mode"),
    )
)
_TENSORRT_RENAMED = {
    "max_workspace_size_bytes": "trt_max_workspace_size",
    "int8_calibration_table_name": "trt_int8_calibration_table_name",
    "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
}
_TENSORRT_PRECISIONS = {"FP16": "trt_fp16_enable", "BF16": "trt_bf16_enable", "INT8": "trt_int8_enable"}

_CUDA_BOOLEANS = frozenset({"use_ep_level_unified_stream", "do_copy_in_default_stream"})
_CONV_ALGO_SEARCHES = {0: "EXHAUSTIVE", 1: "HEURISTIC", 2: "DEFAULT"}
_ARENA_STRATEGIES = {0: "kNextPowerOfTwo", 1: "kSameAsRequested"}


def tensorrt_options(parameters: Mapping[str, str]) -> dict[str, str]:
    """The options of the TensorRT provider, from the parameters of the accelerator. Raises ConfigInvalid."""
    options: dict[str, str] = {}
    for name, value in parameters.items():
        if name == "precision_mode":
            if value in _TENSORRT_PRECISIONS:
                options[_TENSORRT_PRECISIONS[value]] = "1"
            elif value != "FP32":
                raise ConfigInvalid(f"unsupported precision mode '{value}' is requested", field=ACCELERATORS)
        elif name in _TENSORRT_RENAMED:
            options[_TENSORRT_RENAMED[name]] = value
        elif name in _TENSORRT_SAME_NAME:
            options[name] = value
        else:
            message = f"unknown parameter '{name}' is provided for TensorRT Execution Accelerator"
            raise ConfigInvalid(message, field=ACCELERATORS)
    return options


def cuda_accelerator_options(parameters: Mapping[str, str]) -> dict[str, str]:
    """The options of the CUDA provider, from the parameters of the accelerator. ONNX Runtime refuses unknown ones."""
    return {
        name: ("1" if boolean(value, ACCELERATORS) else "0") if name in _CUDA_BOOLEANS else value
        for name, value in parameters.items()
    }


def cuda_parameter_options(parameters: Mapping[str, str]) -> dict[str, str]:
    """The options of the CUDA provider from deprecated model parameters. Raises ConfigInvalid.

    Only parameters that the configuration contains count. Triton adds its defaults for all of them as soon as a model
    has any parameter, which overrides the accelerator `cuda`.
    """
    options: dict[str, str] = {}
    if "cudnn_conv_algo_search" in parameters:
        options["cudnn_conv_algo_search"] = _choice(parameters, "cudnn_conv_algo_search", _CONV_ALGO_SEARCHES)
    if "gpu_mem_limit" in parameters:
        options["gpu_mem_limit"] = str(integer(parameters["gpu_mem_limit"], field_of("gpu_mem_limit")))
    if "arena_extend_strategy" in parameters:
        options["arena_extend_strategy"] = _choice(parameters, "arena_extend_strategy", _ARENA_STRATEGIES)
    if "do_copy_in_default_stream" in parameters:
        copies = boolean(parameters["do_copy_in_default_stream"], field_of("do_copy_in_default_stream"))
        options["do_copy_in_default_stream"] = "1" if copies else "0"
    return options


def _choice(parameters: Mapping[str, str], name: str, choices: Mapping[int, str]) -> str:
    number = integer(parameters[name], field_of(name))
    if number not in choices:
        raise ConfigInvalid(f"unsupported {name} value '{number}' is requested", field=field_of(name))
    return choices[number]
