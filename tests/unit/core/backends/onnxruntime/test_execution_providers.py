"""Which execution providers a session asks for, and what is said when it does not get them."""

from __future__ import annotations

import pytest

from core.backends.onnxruntime.execution_providers import (
    CPU,
    CUDA,
    OPENVINO,
    TENSORRT,
    ProviderRequest,
    check_active,
    check_available,
    cuda_accelerator_options,
    cuda_parameter_options,
    requested_providers,
    tensorrt_options,
)
from core.config.placement import DeviceKind, Placement
from core.errors import ConfigInvalid, ModelLoadFailed
from tests.unit.onnx_serving import config_of

GPU = Placement("model_0", DeviceKind.GPU, 1)
ON_CPU = Placement("model_0", DeviceKind.CPU)


def requested(accelerators: str = "", placement: Placement = GPU, more: str = "") -> dict[str, dict[str, str]]:
    config = config_of(f"optimization {{ execution_accelerators {{ {accelerators} }} }} {more}")
    return {request.name: request.options for request in requested_providers(config, placement)}


def test_on_a_cpu_there_is_the_cpu() -> None:
    assert requested(placement=ON_CPU) == {CPU: {}}


def test_accelerators_of_gpus_are_ignored_on_a_cpu() -> None:
    assert requested('gpu_execution_accelerator { name: "tensorrt" }', ON_CPU) == {CPU: {}}


def test_openvino_is_for_cpus_and_for_what_a_gpu_leaves() -> None:
    openvino = 'cpu_execution_accelerator { name: "openvino" }'
    assert requested(openvino, ON_CPU) == {OPENVINO: {"device_type": "CPU"}, CPU: {}}
    assert list(requested(openvino, GPU)) == [CUDA, OPENVINO, CPU]


def test_on_a_gpu_there_is_always_cuda() -> None:
    assert requested() == {CUDA: {"device_id": "1"}, CPU: {}}


def test_tensorrt_goes_before_cuda() -> None:
    text = 'gpu_execution_accelerator { name: "tensorrt" parameters { key: "precision_mode" value: "FP16" } }'
    providers = requested(text)
    assert list(providers) == [TENSORRT, CUDA, CPU]
    assert providers[TENSORRT] == {"device_id": "1", "trt_fp16_enable": "1"}


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


def test_log_lines_are_triton_s() -> None:
    accelerators = 'gpu_execution_accelerator { name: "tensorrt" } cpu_execution_accelerator { name: "openvino" }'
    config = config_of(f"optimization {{ execution_accelerators {{ {accelerators} }} }}")
    assert [request.log_line for request in requested_providers(config, GPU)] == [
        "TensorRT Execution Accelerator is set for 'model' on device 1",
        "CUDA Execution Accelerator is set for 'model' on device 1",
        "OpenVINO Execution Accelerator is set for 'model' on CPU",
        "",
    ]


@pytest.mark.parametrize(
    ("name", "value", "options"),
    [
        ("precision_mode", "FP32", {}),
        ("precision_mode", "BF16", {"trt_bf16_enable": "1"}),
        ("precision_mode", "INT8", {"trt_int8_enable": "1"}),
        ("max_workspace_size_bytes", "5", {"trt_max_workspace_size": "5"}),
        ("int8_calibration_table_name", "t", {"trt_int8_calibration_table_name": "t"}),
        ("int8_use_native_calibration_table", "1", {"trt_int8_use_native_calibration_table": "1"}),
        ("trt_engine_cache_path", "/c", {"trt_engine_cache_path": "/c"}),
        ("trt_profile_opt_shapes", "x:1", {"trt_profile_opt_shapes": "x:1"}),
    ],
)
def test_options_of_tensorrt(name: str, value: str, options: dict[str, str]) -> None:
    assert tensorrt_options({name: value}) == options


def test_what_tensorrt_does_not_know() -> None:
    with pytest.raises(ConfigInvalid, match="unsupported precision mode 'FP8' is requested"):
        tensorrt_options({"precision_mode": "FP8"})
    with pytest.raises(ConfigInvalid, match="unknown parameter 'trt_x' is provided for TensorRT Execution Accelerator"):
        tensorrt_options({"trt_x": "1"})


def test_booleans_of_cuda_are_checked() -> None:
    given = {"do_copy_in_default_stream": "false", "use_ep_level_unified_stream": "on", "enable_cuda_graph": "1"}
    assert cuda_accelerator_options(given) == {
        "do_copy_in_default_stream": "0",
        "use_ep_level_unified_stream": "1",
        "enable_cuda_graph": "1",
    }
    with pytest.raises(ConfigInvalid, match="failed to convert 'maybe' to boolean"):
        cuda_accelerator_options({"do_copy_in_default_stream": "maybe"})


def test_deprecated_parameters() -> None:
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
def test_deprecated_parameters_out_of_range(name: str) -> None:
    with pytest.raises(ConfigInvalid, match=f"unsupported {name} value '9' is requested"):
        cuda_parameter_options({name: "9"})


def test_a_provider_that_is_not_installed_is_named_with_the_cure() -> None:
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
