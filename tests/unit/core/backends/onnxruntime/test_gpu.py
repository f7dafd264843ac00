"""Sessions on a GPU, simulated by the CPU: providers and their options, and executions before a session serves."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import onnx
import onnxruntime
import pytest
from onnx import TensorProto, helper

from tests.unit import onnx_models
from tests.unit.backend_serving import config_of, spec_of
from tests.unit.core.backends.onnxruntime.cpu_as_gpu import LOST, Gpu, install
from tests.unit.onnx_serving import add_sub_config, identity_config, serving
from trident.core.backends.backend import LoadContext
from trident.core.backends.onnxruntime import batch_trial, session
from trident.core.backends.onnxruntime.backend import OnnxRuntimeBackend, device_support
from trident.core.backends.onnxruntime.providers import (
    CPU,
    CUDA,
    ProviderRequest,
    check_available,
    cuda_accelerator_options,
    cuda_parameter_options,
    limited,
    missing_library,
    requested_providers,
    tensorrt_options,
)
from trident.core.config.placement import DeviceKind, Placement, placements
from trident.core.config.problem import ModelSignature
from trident.core.errors import ConfigInvalid, DeviceLost, ModelLoadFailed
from trident.core.observability.hardware import DriverReading

GPU = Placement("model_0", DeviceKind.GPU, 1)


def requested(accelerators: str = "", placement: Placement = GPU, more: str = "") -> dict[str, dict[str, str]]:
    config = config_of(f"optimization {{ execution_accelerators {{ {accelerators} }} }} {more}")
    return {request.name: request.options for request in requested_providers(config, placement)}


def test_options_of_the_cuda_accelerator_are_forwarded() -> None:
    text = 'gpu_execution_accelerator { name: "cuda" parameters { key: "gpu_mem_limit" value: "1000" } }'
    assert requested(text)[CUDA] == {"device_id": "1", "gpu_mem_limit": "1000"}
    more = 'parameters { key: "gpu_mem_limit" value { string_value: "2000" } }'
    assert requested(text, more=more)[CUDA]["gpu_mem_limit"] == "2000"
    assert requested(text, more=more.replace("gpu_mem_limit", "other"))[CUDA]["gpu_mem_limit"] == "1000"


@pytest.mark.parametrize("where", ["gpu", "cpu"])
def test_unknown_accelerator_is_refused(where: str) -> None:
    with pytest.raises(ConfigInvalid) as caught:
        requested(f'{where}_execution_accelerator {{ name: "abacus" }}')
    assert caught.value.message == "unknown Execution Accelerator 'abacus' is requested"


def test_provider_that_is_not_installed_is_named_with_a_hint() -> None:
    requests = [ProviderRequest(CUDA, {}), ProviderRequest(CPU, {})]
    check_available(requests, [CUDA, CPU], "m")
    with pytest.raises(ModelLoadFailed) as caught:
        check_available(requests, ["AzureExecutionProvider", CPU], "m")
    assert caught.value.message == (
        "unable to load model 'm', it needs CUDAExecutionProvider, which the installed ONNX Runtime does not have "
        "(it has AzureExecutionProvider, CPUExecutionProvider)"
    )
    assert caught.value.hint == "install the extra 'gpu' instead of 'cpu'"


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


def test_cuda_booleans_are_checked() -> None:
    given = {"do_copy_in_default_stream": "false", "use_ep_level_unified_stream": "on", "enable_cuda_graph": "0"}
    assert cuda_accelerator_options(given) == {
        "do_copy_in_default_stream": "0",
        "use_ep_level_unified_stream": "1",
        "enable_cuda_graph": "0",
    }


@pytest.mark.parametrize(
    ("options_of", "name", "value", "text"),
    [
        (cuda_accelerator_options, "enable_cuda_graph", "1", "is not supported: a CUDA graph reads and writes the buf"),
        (tensorrt_options, "trt_cuda_graph_enable", "1", "is not supported: a CUDA graph reads and writes the buffers"),
        (tensorrt_options, "precision_mode", "FP8", "unsupported precision mode 'FP8' is requested"),
        (tensorrt_options, "trt_x", "1", "unknown parameter 'trt_x' is provided for TensorRT Execution Accelerator"),
        (cuda_accelerator_options, "do_copy_in_default_stream", "maybe", "failed to convert 'maybe' to boolean"),
        (cuda_parameter_options, "cudnn_conv_algo_search", "9", "unsupported cudnn_conv_algo_search value '9' is req"),
        (cuda_parameter_options, "arena_extend_strategy", "9", "unsupported arena_extend_strategy value '9' is reques"),
    ],
)
def test_invalid_options_are_refused(options_of: Callable[..., object], name: str, value: str, text: str) -> None:
    with pytest.raises(ConfigInvalid, match=text):
        options_of({name: value})


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


# --- libraries


def test_library_that_a_provider_lacks_is_named(tmp_path: Path) -> None:
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
def test_doctor_reports_a_driver_that_is_too_old() -> None:
    state = device_support({}).providers[0]
    assert (state.name, state.installed) == (CUDA, True)
    assert "580.65.06 or later is needed" in state.problem


def test_arena_on_a_gpu_has_the_limit_that_the_model_does_not_set() -> None:
    gpu = Placement("m_0", DeviceKind.GPU, 1)
    written = 'parameters { key: "gpu_mem_limit" value { string_value: "5" } }'
    for text, limit, found in (("", 0, None), ("", 1000, "1000"), (written, 1000, "5")):
        cuda, cpu = limited(requested_providers(config_of(text), gpu), limit)
        assert cuda.options.get("gpu_mem_limit") == found
        assert cuda.options["device_id"] == "1"
        assert cpu.options == {}


# --- sessions


ON_GPU = Placement("model_0", DeviceKind.GPU, 0)
GROUP = "instance_group { kind: KIND_GPU count: %d gpus: 0 }\n"
ACCELERATED = 'optimization { execution_accelerators { gpu_execution_accelerator { name: "tensorrt" } } }\n'


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Gpu:
    gpu = Gpu()
    install(gpu, monkeypatch.setattr)
    monkeypatch.setattr(batch_trial, "_clock", gpu.clock)
    return gpu


def copying(*shape: str | int) -> onnx.ModelProto:
    """INPUT0 of `shape` is OUTPUT0."""
    x, y = (helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("INPUT0", "OUTPUT0"))
    graph = helper.make_graph([helper.make_node("Identity", ["INPUT0"], ["OUTPUT0"])], "graph", [x], [y])
    return helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)


ROWS = copying("n", 3)


def cuda_only() -> onnx.ModelProto:
    """A model with an operator for which ONNX Runtime has a kernel on GPUs alone, beside one that is folded."""
    x = helper.make_tensor_value_info("x", TensorProto.FLOAT16, ["n", 8, 8, 4])
    y = helper.make_tensor_value_info("y", TensorProto.FLOAT16, ["n", 8, 8, 4])
    weights = [helper.make_tensor(name, TensorProto.FLOAT, [4], [1.0] * 4) for name in ("gamma", "beta")]
    node = helper.make_node(
        "GroupNorm", ["x", "gamma", "beta"], ["y"], domain="com.microsoft", groups=2, channels_last=1, activation=0
    )
    opsets = [helper.make_opsetid("", 17), helper.make_opsetid("com.microsoft", 1)]
    graph = helper.make_graph([node], "graph", [x], [y], weights)
    return helper.make_model(graph, opset_imports=opsets, ir_version=8)


@pytest.mark.parametrize(
    ("text", "has_cuda", "is_inspected"),
    [
        ("", False, False),
        (GROUP % 1, False, True),
        (GROUP % 1, True, False),  # with CUDA its own failure counts
        (GROUP % 1 + ACCELERATED, True, True),
    ],
)
def test_graph_for_another_device_declares_itself(
    tmp_path: Path, request: pytest.FixtureRequest, text: str, has_cuda: bool, is_inspected: bool
) -> None:
    if has_cuda:
        request.getfixturevalue("gpu")
    version = onnx_models.write_version(cuda_only(), tmp_path, "model")
    with nullcontext() if is_inspected else pytest.raises(ModelLoadFailed, match="Failed to find kernel"):
        signature = OnnxRuntimeBackend().inspect(version, config_of(text + "max_batch_size: 4"))
        for (tensor,) in (signature.inputs, signature.outputs):
            assert (tensor.name, tensor.datatype, tensor.shape) == (tensor.name, "FP16", (-1, 8, 8, 4))


def test_inspection_uses_the_requested_gpu_without_building_engines(gpu: Gpu, tmp_path: Path) -> None:
    version = onnx_models.write_version(onnx_models.add_sub(), tmp_path, "model")
    OnnxRuntimeBackend().inspect(version, config_of(GROUP % 1 + ACCELERATED))
    assert gpu.sessions == [["CUDAExecutionProvider", "CPUExecutionProvider"]]


@pytest.mark.parametrize(("text", "sessions"), [("", 1), (ACCELERATED, 3)])
def test_instances_share_a_session_except_with_tensorrt(gpu: Gpu, tmp_path: Path, text: str, sessions: int) -> None:
    config = config_of(add_sub_config() + GROUP % 3 + text)
    version = onnx_models.write_version(onnx_models.add_sub(), tmp_path, "model")
    context = LoadContext(path=version, config=config, spec=spec_of(config), placements=placements(config))
    model = OnnxRuntimeBackend().load(context)
    instances = [model.instance(placement) for placement in context.placements]
    assert len(gpu.sessions) == sessions
    # The first one leaves its session to the next.
    instances[0].close()
    instances[0] = model.instance(context.placements[0])
    assert len(gpu.sessions) == sessions
    for instance in instances:
        instance.close()
    model.close()


@pytest.mark.parametrize(("change_s", "runs"), [(0.02, [8, 8, 8, 8]), (0.0, [3, 1, 7, 8])])
def test_batch_size_is_constant_for_a_session_that_is_slow_to_change_it(
    gpu: Gpu, tmp_path: Path, change_s: float, runs: list[int]
) -> None:
    gpu.change_s = change_s
    config = identity_config("FP32", [3]) + GROUP % 1 + "dynamic_batching { }\n"
    with serving(ROWS, config, tmp_path, placement=ON_GPU) as model:
        values = [np.full((1, 3), number, np.float32) for number in range(8)]
        while gpu.runs[-1][0] != 8:
            model.execute([model.request({"INPUT0": value}) for value in values])
        for count in (3, 1, 7, 8):
            answers = model.execute([model.request({"INPUT0": value}) for value in values[:count]])
            assert [answer["OUTPUT0"].tolist() for answer in answers] == [[[n] * 3] for n in range(count)]
        assert [shape[0] for shape in gpu.runs[-4:]] == runs


BUCKETS = 'parameters { key: "BATCH_BUCKETS" value { string_value: "2,8" } }\n'


@pytest.mark.parametrize(
    ("model", "text", "rows"),
    [
        (ROWS, identity_config("FP32", [3]), [8, 1]),
        (ROWS, identity_config("FP32", [3], 1), [1]),
        (ROWS, identity_config("FP32", [3]) + "dynamic_batching { preferred_batch_size: [ 4, 2, 8 ] }", [8, 4, 2, 1]),
        (ROWS, identity_config("FP32", [3]) + BUCKETS, []),  # each instance runs them
        (copying(2, 3), identity_config("FP32", [2, 3], 0), [2]),
        (copying("n", "m"), identity_config("FP32", [-1]), []),
    ],
)
def test_expected_batch_sizes_run_before_a_gpu_model_is_ready(
    gpu: Gpu, tmp_path: Path, model: onnx.ModelProto, text: str, rows: list[int]
) -> None:
    backend, config = OnnxRuntimeBackend(), config_of(text)
    version, spec = onnx_models.write_version(model, tmp_path, "model"), spec_of(config)
    for placement, expected in ((Placement("model_0", DeviceKind.CPU), []), (ON_GPU, rows)):
        # An inspected model is not tried in batches again.
        context = LoadContext(
            path=version, config=config, spec=spec, placements=(placement,), signature=ModelSignature((), ())
        )
        backend.load(context).close()
        # How long a change of size takes is measured afterwards.
        assert [shape[0] for shape in gpu.runs][: len(expected) or None] == expected


def test_graph_that_refuses_generated_inputs_serves(gpu: Gpu, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    gpu.at_run, gpu.from_rows = "[ONNXRuntimeError] : 2 : INVALID_ARGUMENT : no such index", 8
    with serving(ROWS, identity_config("FP32", [3]), tmp_path, placement=ON_GPU) as model:
        assert gpu.runs[0] == (8, 3)
        assert gpu.runs.count((1, 3)) < 4  # those of the trial
        assert model.infer({"INPUT0": np.ones((1, 3), np.float32)})["OUTPUT0"].tolist() == [[1, 1, 1]]
    assert "model 'model' does not take made-up inputs: onnx runtime error 2: no such index" in caplog.text


@pytest.mark.parametrize("when", ["at_session", "at_run"])
def test_gpu_lost_during_a_load_is_reported(gpu: Gpu, tmp_path: Path, when: str) -> None:
    setattr(gpu, when, LOST)
    with (
        pytest.raises(DeviceLost, match="CUDA failure 700") as caught,
        serving(ROWS, identity_config("FP32", [3]), tmp_path, placement=ON_GPU),
    ):
        pass
    assert caught.value.device == "gpu:0"
