"""Which execution providers a model's sessions ask for, and whether they got them. Decisions only: no session here.

Source: docs/spec/onnxruntime-backend.md section 5.2; ONNX Runtime's execution provider options.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from core.backends.onnxruntime.session_options import parameters_of
from core.backends.parameter_values import boolean, integer
from core.config.placement import DeviceKind, Placement
from core.config.schema import ModelConfig
from core.errors import ConfigInvalid, ModelLoadFailed

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"

# What to install for a provider that this ONNX Runtime was built without.
_CURES = {
    CUDA: "install trident-inference[gpu] instead of [cpu]",
    TENSORRT: "install trident-inference[gpu] and TensorRT, or remove the accelerator 'tensorrt'",
    OPENVINO: "install onnxruntime-openvino, or remove the accelerator 'openvino'",
}

# Options of TensorRT that bear the same name in ONNX Runtime.
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


@dataclass(frozen=True, slots=True)
class ProviderRequest:
    """One execution provider with its options, as ONNX Runtime takes them, and the line that the log shows of it."""

    name: str
    options: dict[str, str]
    log_line: str = ""


def requested_providers(config: ModelConfig, placement: Placement) -> list[ProviderRequest]:
    """The providers for a session at `placement`, most wanted first; the CPU provider is always the last.

    Raises ConfigInvalid for accelerators and parameters that do not exist.
    """
    accelerators = config.optimization.execution_accelerators
    requests: list[ProviderRequest] = []
    if placement.kind is DeviceKind.GPU:
        requests += _gpu_providers(config, placement.device_id)
    for accelerator in accelerators.cpu_execution_accelerator:
        if accelerator.name != "openvino":
            raise _unknown(accelerator.name)
        line = f"OpenVINO Execution Accelerator is set for '{config.name}' on CPU"
        requests.append(ProviderRequest(OPENVINO, {"device_type": "CPU"}, line))
    return [*requests, ProviderRequest(CPU, {})]


def check_available(requests: Sequence[ProviderRequest], available: Sequence[str], model_name: str) -> None:
    """Raises ModelLoadFailed for a requested provider that this ONNX Runtime was built without."""
    for request in requests:
        if request.name not in available:
            raise ModelLoadFailed(
                f"unable to load model '{model_name}', it needs {request.name}, which the installed ONNX Runtime "
                f"does not have (it has {', '.join(available)})",
                hint=_CURES.get(request.name),
                model=model_name,
            )


def check_active(
    requests: Sequence[ProviderRequest], active: Sequence[str], missing_library: str, model_name: str
) -> None:
    """Raises ModelLoadFailed where a session has fewer providers than it was made with: ONNX Runtime only warns of it.

    `active` are those of the session; `missing_library` is what the provider's own library could not load, "" if that
    is not known.
    """
    lacking = [request.name for request in requests if request.name not in active]
    if lacking:
        cause = missing_library or "its libraries, or the driver, are missing or of another version"
        raise ModelLoadFailed(
            f"unable to load model '{model_name}', ONNX Runtime could not start {', '.join(lacking)}: {cause}",
            hint=_CURES.get(lacking[0]),
            model=model_name,
        )


def _gpu_providers(config: ModelConfig, device_id: int) -> list[ProviderRequest]:
    device = {"device_id": str(device_id)}
    requests: list[ProviderRequest] = []
    cuda_options: dict[str, str] = {}
    for accelerator in config.optimization.execution_accelerators.gpu_execution_accelerator:
        if accelerator.name == "tensorrt":
            options = {**device, **tensorrt_options(accelerator.parameters)}
            line = f"TensorRT Execution Accelerator is set for '{config.name}' on device {device_id}"
            requests.append(ProviderRequest(TENSORRT, options, line))
        elif accelerator.name == "cuda":
            cuda_options.update(cuda_accelerator_options(accelerator.parameters))
        else:
            raise _unknown(accelerator.name)
    line = f"CUDA Execution Accelerator is set for '{config.name}' on device {device_id}"
    cuda_options = {**device, **cuda_options, **cuda_parameter_options(parameters_of(config))}
    return [*requests, ProviderRequest(CUDA, cuda_options, line)]


def tensorrt_options(parameters: Mapping[str, str]) -> dict[str, str]:
    """ONNX Runtime's options of the TensorRT provider from an accelerator's. Raises ConfigInvalid."""
    options: dict[str, str] = {}
    for name, value in parameters.items():
        if name == "precision_mode":
            if value in _TENSORRT_PRECISIONS:
                options[_TENSORRT_PRECISIONS[value]] = "1"
            elif value != "FP32":
                raise ConfigInvalid(f"unsupported precision mode '{value}' is requested")
        elif name in _TENSORRT_RENAMED:
            options[_TENSORRT_RENAMED[name]] = value
        elif name in _TENSORRT_SAME_NAME:
            options[name] = value
        else:
            raise ConfigInvalid(f"unknown parameter '{name}' is provided for TensorRT Execution Accelerator")
    return options


def cuda_accelerator_options(parameters: Mapping[str, str]) -> dict[str, str]:
    """The options of the CUDA accelerator; any is passed on, and ONNX Runtime refuses what it does not know."""
    return {
        name: ("1" if boolean(value) else "0") if name in _CUDA_BOOLEANS else value
        for name, value in parameters.items()
    }


def cuda_parameter_options(parameters: Mapping[str, str]) -> dict[str, str]:
    """CUDA options from the deprecated model parameters. Raises ConfigInvalid.

    Triton adds its defaults for all of them as soon as a model has any parameter at all, and so undoes what the
    accelerator `cuda` says; here only those that are written count.
    """
    options: dict[str, str] = {}
    if "cudnn_conv_algo_search" in parameters:
        options["cudnn_conv_algo_search"] = _choice(parameters, "cudnn_conv_algo_search", _CONV_ALGO_SEARCHES)
    if "gpu_mem_limit" in parameters:
        options["gpu_mem_limit"] = str(integer(parameters["gpu_mem_limit"]))
    if "arena_extend_strategy" in parameters:
        options["arena_extend_strategy"] = _choice(parameters, "arena_extend_strategy", _ARENA_STRATEGIES)
    if "do_copy_in_default_stream" in parameters:
        options["do_copy_in_default_stream"] = "1" if boolean(parameters["do_copy_in_default_stream"]) else "0"
    return options


def _choice(parameters: Mapping[str, str], name: str, choices: Mapping[int, str]) -> str:
    number = integer(parameters[name])
    if number not in choices:
        raise ConfigInvalid(f"unsupported {name} value '{number}' is requested")
    return choices[number]


def _unknown(name: str) -> ConfigInvalid:
    return ConfigInvalid(
        f"unknown Execution Accelerator '{name}' is requested",
        hint="on GPUs 'tensorrt' and 'cuda', on CPUs 'openvino'",
    )
