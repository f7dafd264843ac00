"""Decides which execution providers a model's sessions request, and checks that they got them. Makes no session.

Source: docs/spec/onnxruntime-backend.md section 5.2; ONNX Runtime's execution provider options.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from core.backends.onnxruntime.provider_options import (
    ACCELERATORS,
    cuda_accelerator_options,
    cuda_parameter_options,
    tensorrt_options,
)
from core.backends.parameter_values import parameters_of
from core.config.placement import DeviceKind, Placement
from core.config.schema import ModelConfig
from core.errors import ConfigInvalid, ModelLoadFailed

CPU = "CPUExecutionProvider"
CUDA = "CUDAExecutionProvider"
OPENVINO = "OpenVINOExecutionProvider"
TENSORRT = "TensorrtExecutionProvider"

# Hints for a provider that the installed ONNX Runtime was built without.
CURES = {
    CUDA: "install trident-inference[gpu] instead of [cpu]",
    TENSORRT: "install trident-inference[gpu] and TensorRT, or remove the accelerator 'tensorrt'",
    OPENVINO: "install onnxruntime-openvino, or remove the accelerator 'openvino'",
}


@dataclass(frozen=True, slots=True)
class ProviderRequest:
    """One execution provider with ONNX Runtime's options for it, and the line that is logged when it is active."""

    name: str
    options: dict[str, str]
    log_line: str = ""


def requested_providers(config: ModelConfig, placement: Placement) -> list[ProviderRequest]:
    """The providers for a session at `placement`, the preferred one first. The CPU provider is always the last.

    Raises ConfigInvalid for unknown accelerators and parameters.
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
    """Raises ModelLoadFailed for a requested provider that the installed ONNX Runtime was built without."""
    for request in requests:
        if request.name not in available:
            raise ModelLoadFailed(
                f"unable to load model '{model_name}', it needs {request.name}, which the installed ONNX Runtime "
                f"does not have (it has {', '.join(available)})",
                hint=CURES.get(request.name),
                model=model_name,
                # CUDA is what instances on a GPU run on; the others are asked for by name.
                field="instance_group" if request.name == CUDA else ACCELERATORS,
            )


def check_active(
    requests: Sequence[ProviderRequest], active: Sequence[str], missing_library: str, model_name: str
) -> None:
    """Raises ModelLoadFailed if a session lacks a requested provider. ONNX Runtime itself only warns.

    `active` are the session's providers. `missing_library` is the linker's message about the provider's library, or "".
    """
    lacking = [request.name for request in requests if request.name not in active]
    if lacking:
        cause = missing_library or "its libraries, or the driver, are missing or of another version"
        raise ModelLoadFailed(
            f"unable to load model '{model_name}', ONNX Runtime could not start {', '.join(lacking)}: {cause}",
            hint=CURES.get(lacking[0]),
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


def _unknown(name: str) -> ConfigInvalid:
    return ConfigInvalid(
        f"unknown Execution Accelerator '{name}' is requested",
        hint="on GPUs 'tensorrt' and 'cuda', on CPUs 'openvino'",
        field=ACCELERATORS,
    )
