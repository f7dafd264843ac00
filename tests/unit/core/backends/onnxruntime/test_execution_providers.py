"""The execution providers that a session requests, and the errors if it does not get them."""

from __future__ import annotations

import pytest

from tests.unit.backend_serving import config_of
from trident.core.backends.onnxruntime.providers import (
    CPU,
    CUDA,
    OPENVINO,
    TENSORRT,
    ProviderRequest,
    check_active,
    check_available,
    requested_providers,
)
from trident.core.config.placement import DeviceKind, Placement
from trident.core.errors import ConfigInvalid, ModelLoadFailed

GPU = Placement("model_0", DeviceKind.GPU, 1)
ON_CPU = Placement("model_0", DeviceKind.CPU)


def requested(accelerators: str = "", placement: Placement = GPU, more: str = "") -> dict[str, dict[str, str]]:
    config = config_of(f"optimization {{ execution_accelerators {{ {accelerators} }} }} {more}")
    return {request.name: request.options for request in requested_providers(config, placement)}


def test_a_cpu_session_requests_the_cpu_provider() -> None:
    assert requested(placement=ON_CPU) == {CPU: {}}


def test_gpu_accelerators_are_ignored_on_a_cpu() -> None:
    assert requested('gpu_execution_accelerator { name: "tensorrt" }', ON_CPU) == {CPU: {}}


def test_openvino_follows_the_gpu_providers() -> None:
    openvino = 'cpu_execution_accelerator { name: "openvino" }'
    assert requested(openvino, ON_CPU) == {OPENVINO: {"device_type": "CPU"}, CPU: {}}
    assert list(requested(openvino, GPU)) == [CUDA, OPENVINO, CPU]


def test_a_gpu_session_always_requests_cuda() -> None:
    assert requested() == {CUDA: {"device_id": "1"}, CPU: {}}


def test_tensorrt_is_preferred_to_cuda() -> None:
    text = 'gpu_execution_accelerator { name: "tensorrt" parameters { key: "precision_mode" value: "FP16" } }'
    providers = requested(text)
    assert list(providers) == [TENSORRT, CUDA, CPU]
    assert providers[TENSORRT] == {"device_id": "1", "trt_fp16_enable": "True"}


def test_options_of_the_cuda_accelerator_are_passed_on() -> None:
    text = 'gpu_execution_accelerator { name: "cuda" parameters { key: "gpu_mem_limit" value: "1000" } }'
    assert requested(text)[CUDA] == {"device_id": "1", "gpu_mem_limit": "1000"}
    more = 'parameters { key: "gpu_mem_limit" value { string_value: "2000" } }'
    assert requested(text, more=more)[CUDA]["gpu_mem_limit"] == "2000"
    assert requested(text, more=more.replace("gpu_mem_limit", "other"))[CUDA]["gpu_mem_limit"] == "1000"


@pytest.mark.parametrize("where", ["gpu", "cpu"])
def test_an_unknown_accelerator_is_refused(where: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        requested(f'{where}_execution_accelerator {{ name: "abacus" }}')
    assert caught.value.message == "unknown Execution Accelerator 'abacus' is requested"


def test_log_lines_are_tritons() -> None:
    accelerators = 'gpu_execution_accelerator { name: "tensorrt" } cpu_execution_accelerator { name: "openvino" }'
    config = config_of(f"optimization {{ execution_accelerators {{ {accelerators} }} }}")
    assert [request.log_line for request in requested_providers(config, GPU)] == [
        "TensorRT Execution Accelerator is set for 'model' on device 1",
        "CUDA Execution Accelerator is set for 'model' on device 1",
        "OpenVINO Execution Accelerator is set for 'model' on CPU",
        "",
    ]


def test_a_provider_that_is_not_installed_is_named_with_a_hint() -> None:
    requests = [ProviderRequest(CUDA, {}), ProviderRequest(CPU, {})]
    check_available(requests, [CUDA, CPU], "m")
    with pytest.raises(ModelLoadFailed) as caught:
        check_available(requests, ["AzureExecutionProvider", CPU], "m")
    assert caught.value.message == (
        "unable to load model 'm', it needs CUDAExecutionProvider, which the installed ONNX Runtime does not have "
        "(it has AzureExecutionProvider, CPUExecutionProvider)"
    )
    assert caught.value.hint == "install trident-inference[gpu] instead of [cpu]"


def test_a_provider_that_did_not_start_is_named_with_its_library() -> None:
    requests = [ProviderRequest(TENSORRT, {}), ProviderRequest(CUDA, {}), ProviderRequest(CPU, {})]
    check_active(requests, [TENSORRT, CUDA, CPU], "", "m")
    with pytest.raises(ModelLoadFailed) as caught:
        check_active(requests, [CPU], "libnvinfer.so.10: cannot open shared object file", "m")
    assert caught.value.message == (
        "unable to load model 'm', ONNX Runtime could not start TensorrtExecutionProvider, CUDAExecutionProvider: "
        "libnvinfer.so.10: cannot open shared object file"
    )
    with pytest.raises(ModelLoadFailed, match="could not start CUDAExecutionProvider: its libraries, or the driver"):
        check_active(requests, [TENSORRT, CPU], "", "m")
