"""Decides which execution providers a model's sessions request, and checks that they got them. Makes no session.

Source: docs/spec/onnxruntime-backend.md section 5.2; ONNX Runtime's execution provider options.
"""

from __future__ import annotations

import contextlib
import ctypes
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from types import MappingProxyType
from typing import Any

from trident.core.backends.model_files import boolean, field_of, integer, parameters_of
from trident.core.backends.registry import ProviderState
from trident.core.config.placement import DeviceKind, Placement
from trident.core.config.schema import ModelConfig
from trident.core.errors import ConfigInvalid, ModelLoadFailed

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"

# Hints for a provider that the installed ONNX Runtime was built without.
CURES = {
    CUDA: "install the extra 'gpu' instead of 'cpu'",
    TENSORRT: "install the extra 'gpu' and TensorRT, or remove the accelerator 'tensorrt'",
    OPENVINO: "install onnxruntime-openvino, or remove the accelerator 'openvino'",
}


@dataclass(frozen=True, slots=True)
class ProviderRequest:
    """One execution provider with ONNX Runtime's options for it, and the line that is logged when it is active.

    `device` is that of ONNX Runtime on which a plugin's provider runs.
    """

    name: str
    options: dict[str, str]
    log_line: str = ""
    device: Any = None


def requested_providers(
    config: ModelConfig, placement: Placement, plugins: Mapping[str, Sequence[Any]] = MappingProxyType({})
) -> list[ProviderRequest]:
    """The providers for a session at `placement`, the preferred one first. The CPU provider is always the last.

    `plugins` are the devices of the plugins that are loaded, by name. Raises ConfigInvalid for unknown accelerators and
    parameters, and ModelLoadFailed for a plugin without a device.
    """
    if is_plugged(config, placement):
        return [_plugin_provider(config, placement, plugins), ProviderRequest(CPU, {})]
    requests: list[ProviderRequest] = []
    if placement.kind is DeviceKind.GPU:
        requests += _gpu_providers(config, placement.device_id)
    for accelerator in config.optimization.execution_accelerators.cpu_execution_accelerator:
        if accelerator.name.startswith(PLUGIN):
            continue  # for the instances on the CPU
        if accelerator.name != "openvino":
            raise _unknown(accelerator.name)
        line = f"OpenVINO Execution Accelerator is set for '{config.name}' on CPU"
        requests.append(ProviderRequest(OPENVINO, {"device_type": "CPU"}, line))
    return [*requests, ProviderRequest(CPU, {})]


def check_available(requests: Sequence[ProviderRequest], available: Sequence[str], model_name: str) -> None:
    for request in requests:
        if request.device is None and request.name not in available:
            raise ModelLoadFailed(
                f"unable to load model '{model_name}', it needs {request.name}, which the installed ONNX Runtime "
                f"does not have (it has {', '.join(available)})",
                hint=CURES.get(request.name),
                model=model_name,
                # CUDA is what instances on a GPU run on; the others are asked for by name.
                field="instance_group" if request.name == CUDA else ACCELERATORS,
            )


def check_active(requests: Sequence[ProviderRequest], active: Sequence[str], folder: Path, model_name: str) -> None:
    """Raises ModelLoadFailed if a session lacks a requested provider. ONNX Runtime itself only warns.

    `active` are the session's providers; `folder` has ONNX Runtime's libraries.
    """
    lacking = [request.name for request in requests if request.name not in active]
    if lacking:
        cause = missing_library(lacking[0], folder) or "its libraries, or the driver, are missing or of another version"
        raise ModelLoadFailed(
            f"unable to load model '{model_name}', ONNX Runtime could not start {', '.join(lacking)}: {cause}",
            hint=CURES.get(lacking[0]),
            model=model_name,
        )


def limited(requests: Sequence[ProviderRequest], limit: int) -> list[ProviderRequest]:
    """`requests` with `limit` bytes for the arena of a GPU, if that is not 0 and the model sets no other limit."""
    option = {"gpu_mem_limit": str(limit)} if limit else {}
    return [replace(each, options={**option, **each.options}) if each.name == CUDA else each for each in requests]


def _gpu_providers(config: ModelConfig, device_id: int) -> list[ProviderRequest]:
    device = {"device_id": str(device_id)}
    requests: list[ProviderRequest] = []
    cuda_options: dict[str, str] = {}
    for accelerator in accelerators_on_gpu(config):
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


PLUGIN = "plugin:"
"""The start of the name of an accelerator that is a plugin."""

NO_DEVICE_CURE = "the plugin's documentation says what it needs: a driver, libraries, variables"


def is_plugged(config: ModelConfig, placement: Placement) -> bool:
    return any(each.name.startswith(PLUGIN) for each in _accelerators(config, placement))


def _accelerators(config: ModelConfig, placement: Placement) -> Sequence[Any]:
    found = config.optimization.execution_accelerators
    accelerators: Sequence[Any] = found.cpu_execution_accelerator
    return accelerators if placement.kind is DeviceKind.CPU else accelerators_on_gpu(config)


def _plugin_provider(
    config: ModelConfig, placement: Placement, plugins: Mapping[str, Sequence[Any]]
) -> ProviderRequest:
    """The provider of a plugin: for an instance on the CPU its device of that kind, or else its first; for one on a GPU
    that with its number.
    """
    accelerators = _accelerators(config, placement)
    if len(accelerators) > 1:
        names = ", ".join(f"'{each.name}'" for each in accelerators)
        raise ConfigInvalid(f"a plugin stands alone, and these are requested: {names}", field=ACCELERATORS)
    name = accelerators[0].name.removeprefix(PLUGIN)
    if name not in plugins:
        loaded = f"; it has {', '.join(plugins)}" if plugins else ""
        raise ConfigInvalid(
            f"the server has no plugin '{name}'{loaded}",
            hint=f"start it with --backend-config=onnxruntime,plugin={name}=PATH",
            field=ACCELERATORS,
        )
    of_kind = [each for each in plugins[name] if each.device.type.name == placement.kind.name]
    if placement.kind is DeviceKind.CPU:
        devices = of_kind[:1] or plugins[name][:1]
    else:
        devices = of_kind[placement.device_id :][:1]
    if not devices:
        raise ModelLoadFailed(
            f"unable to load model '{config.name}', the plugin '{name}' has no device for {placement.device}: "
            f"{described(plugins[name])}",
            hint=NO_DEVICE_CURE,
            model=config.name,
            field=ACCELERATORS,
        )
    line = f"plugin '{name}' is set for '{config.name}': {described(devices)}"
    return ProviderRequest(devices[0].ep_name, dict(accelerators[0].parameters), line, devices[0])


def described(devices: Sequence[Any]) -> str:
    """The providers of a plugin and their devices, as a person reads them."""
    texts = [
        f"{each.ep_name} {each.ep_metadata.get('version', '')} on {each.device.type.name} ({each.device.vendor})"
        for each in devices
    ]
    return ", ".join(texts) or "no device on this machine"


def accelerators_on_gpu(config: ModelConfig) -> Sequence[Any]:
    accelerators: Sequence[Any] = config.optimization.execution_accelerators.gpu_execution_accelerator
    return accelerators


def _unknown(name: str) -> ConfigInvalid:
    return ConfigInvalid(
        f"unknown Execution Accelerator '{name}' is requested",
        hint="on GPUs 'tensorrt' and 'cuda', on CPUs 'openvino', on both 'plugin:NAME'",
        field=ACCELERATORS,
    )


ACCELERATORS = "optimization.execution_accelerators"
"""The field of a configuration that the accelerators are."""

# Options of the TensorRT provider. Most parameters of the accelerator `tensorrt` have the option's name.
_TENSORRT_BOOLEANS = frozenset(
    f"trt_{name}"
    for name in (
        *("dla_enable", "engine_cache_enable", "dump_subgraphs", "force_sequential_engine_build"),
        *("context_memory_sharing_enable", "layer_norm_fp32_fallback", "timing_cache_enable", "force_timing_cache"),
        *("detailed_build_log", "build_heuristics_enable", "sparsity_enable"),
        *("dump_ep_context_model", "int8_use_native_calibration_table"),
    )
)
_TENSORRT_VALUES = frozenset(
    f"trt_{name}"
    for name in (
        *("max_partition_iterations", "min_subgraph_size", "dla_core", "engine_cache_path", "engine_cache_prefix"),
        *("timing_cache_path", "builder_optimization_level", "auxiliary_streams", "tactic_sources"),
        *("extra_plugin_lib_paths", "profile_min_shapes", "profile_max_shapes", "profile_opt_shapes"),
        *("ep_context_file_path", "ep_context_embed_mode"),
    )
)
_TENSORRT_RENAMED = {
    "max_workspace_size_bytes": "trt_max_workspace_size",
    "int8_calibration_table_name": "trt_int8_calibration_table_name",
    "int8_use_native_calibration_table": "trt_int8_use_native_calibration_table",
}
_TENSORRT_PRECISIONS = {"FP16": "trt_fp16_enable", "BF16": "trt_bf16_enable", "INT8": "trt_int8_enable"}

_CUDA_GRAPHS = frozenset({"enable_cuda_graph", "trt_cuda_graph_enable"})
_CUDA_BOOLEANS = frozenset({"use_ep_level_unified_stream", "do_copy_in_default_stream"})
# Parameters of the model that are options of the CUDA provider, and what their numbers mean.
_CUDA_CHOICES = {
    "cudnn_conv_algo_search": {0: "EXHAUSTIVE", 1: "HEURISTIC", 2: "DEFAULT"},
    "arena_extend_strategy": {0: "kNextPowerOfTwo", 1: "kSameAsRequested"},
}


def tensorrt_options(parameters: Mapping[str, str]) -> dict[str, str]:
    """The options of the TensorRT provider, from the parameters of the accelerator. Raises ConfigInvalid.

    Of booleans ONNX Runtime's Python binding takes "True" and "False" only; its C interface, which Triton calls, takes
    "1" and "0" as well.
    """
    options: dict[str, str] = {}
    for name, value in parameters.items():
        option = _TENSORRT_RENAMED.get(name, name)
        if name == "precision_mode":
            if value in _TENSORRT_PRECISIONS:
                options[_TENSORRT_PRECISIONS[value]] = "True"
            elif value != "FP32":
                raise ConfigInvalid(f"unsupported precision mode '{value}' is requested", field=ACCELERATORS)
        elif name in _CUDA_GRAPHS:
            _refuse_cuda_graphs(name, value)
        elif option in _TENSORRT_BOOLEANS:
            options[option] = str(boolean(value, ACCELERATORS))
        elif option in _TENSORRT_VALUES or option != name:
            options[option] = value
        else:
            message = f"unknown parameter '{name}' is provided for TensorRT Execution Accelerator"
            raise ConfigInvalid(message, field=ACCELERATORS)
    return options


def cuda_accelerator_options(parameters: Mapping[str, str]) -> dict[str, str]:
    """The options of the CUDA provider, from the parameters of the accelerator. ONNX Runtime refuses unknown ones.

    Raises ConfigInvalid.
    """
    for name in _CUDA_GRAPHS & parameters.keys():
        _refuse_cuda_graphs(name, parameters[name])
    return {
        name: ("1" if boolean(value, ACCELERATORS) else "0") if name in _CUDA_BOOLEANS else value
        for name, value in parameters.items()
    }


def _refuse_cuda_graphs(name: str, value: str) -> None:
    """Raise ConfigInvalid where CUDA graphs are asked for.

    A graph is replayed on the buffers of its capture, but every run here binds buffers of its own, and instances share
    a session: later requests would get the outputs of the captured one.
    """
    if boolean(value, ACCELERATORS):
        raise ConfigInvalid(
            f"'{name}' is not supported: a CUDA graph reads and writes the buffers of the run that it was captured in, "
            "and each run of this server has its own",
            hint=f"remove '{name}'",
            field=ACCELERATORS,
        )


def cuda_parameter_options(parameters: Mapping[str, str]) -> dict[str, str]:
    """The options of the CUDA provider from deprecated model parameters. Raises ConfigInvalid.

    Only parameters that the configuration contains count. Triton adds its defaults for all of them as soon as a model
    has any parameter, which overrides the accelerator `cuda`.
    """
    options: dict[str, str] = {}
    for name, choices in _CUDA_CHOICES.items():
        if name in parameters:
            number = integer(parameters[name], field_of(name))
            if number not in choices:
                raise ConfigInvalid(f"unsupported {name} value '{number}' is requested", field=field_of(name))
            options[name] = choices[number]
    if "gpu_mem_limit" in parameters:
        options["gpu_mem_limit"] = str(integer(parameters["gpu_mem_limit"], field_of("gpu_mem_limit")))
    if "do_copy_in_default_stream" in parameters:
        copies = boolean(parameters["do_copy_in_default_stream"], field_of("do_copy_in_default_stream"))
        options["do_copy_in_default_stream"] = str(int(copies))
    return options


_LIBRARIES = {
    CUDA: "libonnxruntime_providers_cuda.so",
    TENSORRT: "libonnxruntime_providers_tensorrt.so",
    OPENVINO: "libonnxruntime_providers_openvino.so",
}


@cache
def preload_tensorrt() -> None:
    """Load the libraries that TensorRT's provider links, because pip installs them outside the linker's paths."""
    package = find_spec("tensorrt_libs")
    for folder in (package and package.submodule_search_locations) or ():
        for name in ("libnvinfer.so.*", "libnvonnxparser.so.*"):
            for library in Path(folder).glob(name):
                # The linker's message about a library that does not load is that about the provider.
                with contextlib.suppress(OSError):
                    ctypes.CDLL(str(library))


def missing_library(provider: str, folder: Path) -> str:
    """The linker's message about the library of `provider` in `folder`, ONNX Runtime's; "" if it can be linked."""
    name = _LIBRARIES.get(provider)
    if name is None:
        return ""
    try:
        ctypes.CDLL(str(folder / name))
    except OSError as error:
        # The symbols of ONNX Runtime itself exist only when ONNX Runtime loads the library.
        return "" if "undefined symbol" in str(error) else str(error)
    return ""


def provider_states(available: Sequence[str], folder: Path) -> list[ProviderState]:
    """The state of each provider that a configuration can ask for; `folder` has ONNX Runtime's libraries."""
    return [
        ProviderState(name, name in available, missing_library(name, folder) if name in available else "", cure)
        for name, cure in CURES.items()
    ]
