"""The execution providers that a session requests, their options, and the errors if it does not get them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path

import onnxruntime
import pytest

from tests.unit.backend_serving import config_of
from trident.core.backends.onnxruntime import session
from trident.core.backends.onnxruntime.backend import device_support
from trident.core.backends.onnxruntime.providers import (
    CPU,
    CUDA,
    OPENVINO,
    TENSORRT,
    ProviderRequest,
    check_available,
    cuda_accelerator_options,
    cuda_parameter_options,
    limited,
    missing_library,
    requested_providers,
    tensorrt_options,
)
from trident.core.config.placement import DeviceKind, Placement
from trident.core.errors import ConfigInvalid, ModelLoadFailed
from trident.core.observability.hardware import DriverReading

GPU = Placement("model_0", DeviceKind.GPU, 1)
ON_CPU = Placement("model_0", DeviceKind.CPU)


def requested(accelerators: str = "", placement: Placement = GPU, more: str = "") -> dict[str, dict[str, str]]:
    config = config_of(f"optimization {{ execution_accelerators {{ {accelerators} }} }} {more}")
    return {request.name: request.options for request in requested_providers(config, placement)}


def test_openvino_follows_the_gpu_providers() -> None:
    openvino = 'cpu_execution_accelerator { name: "openvino" }'
    assert requested(openvino, ON_CPU) == {OPENVINO: {"device_type": "CPU"}, CPU: {}}
    assert list(requested(openvino, GPU)) == [CUDA, OPENVINO, CPU]


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


# --- options


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


# --- libraries


def test_the_library_that_a_provider_lacks_is_named(tmp_path: Path) -> None:
    assert "libonnxruntime_providers_cuda.so" in missing_library("CUDAExecutionProvider", tmp_path)
    assert missing_library("CPUExecutionProvider", tmp_path) == ""


@pytest.fixture
def old_driver(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """ONNX Runtime as it is built for CUDA 13, on a machine with a driver of CUDA 12."""
    monkeypatch.setattr(session, "CUDA_VERSION", "13.0")
    monkeypatch.setattr(session, "read_driver", lambda: DriverReading("535.183.01", "12.2", ()))
    monkeypatch.setattr(onnxruntime, "get_available_providers", lambda: [CUDA, "CPUExecutionProvider"])
    monkeypatch.setattr(onnxruntime, "preload_dlls", lambda: None, raising=False)
    session.driver_problem.cache_clear()
    yield
    session.driver_problem.cache_clear()


@pytest.mark.usefixtures("old_driver")
def test_doctor_is_told_of_a_driver_that_is_too_old() -> None:
    state = device_support().providers[0]
    assert (state.name, state.installed) == (CUDA, True)
    assert "580.65.06 or later is needed" in state.problem


def test_the_arena_on_a_gpu_has_the_limit_that_the_model_does_not_set() -> None:
    gpu = Placement("m_0", DeviceKind.GPU, 1)
    written = 'parameters { key: "gpu_mem_limit" value { string_value: "5" } }'
    for text, limit, found in (("", 0, None), ("", 1000, "1000"), (written, 1000, "5")):
        cuda, cpu = limited(requested_providers(config_of(text), gpu), limit)
        assert cuda.options.get("gpu_mem_limit") == found
        assert cuda.options["device_id"] == "1"
        assert cpu.options == {}
