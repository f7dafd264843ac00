"""The ONNX Runtime backend: it inspects and loads real models; sessions, their options and errors; cures for files."""

from __future__ import annotations

import weakref
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.unit import onnx_models
from tests.unit.backend_serving import ON_CPU, config_of, parameter, spec_of, tensor_text
from tests.unit.onnx_serving import add_sub_config, identity_config, serving, usable_gpus
from trident.core.backends.backend import LoadContext
from trident.core.backends.in_process import InProcessModel
from trident.core.backends.onnxruntime.backend import OnnxRuntimeBackend
from trident.core.backends.onnxruntime.providers import CPU
from trident.core.backends.onnxruntime.session import (
    SessionSettings,
    failure_of,
    is_poison,
    load_hint,
    session_settings,
    settings_on,
)
from trident.core.config.autocomplete import Preparation
from trident.core.config.placement import DeviceKind, Placement, placements
from trident.core.errors import BackendFailed, ConfigInvalid, ModelLoadFailed, OutOfMemory, ServerError


def test_check_finds_missing_providers_without_a_session() -> None:
    backend, on_cpu = OnnxRuntimeBackend(), "instance_group { kind: KIND_CPU count: 1 } "
    backend.check(config_of(on_cpu))
    accelerated = on_cpu + 'optimization { execution_accelerators { %s_execution_accelerator { name: "%s" } } }'
    backend.check(config_of(accelerated % ("gpu", "abacus")))  # no instance is on a GPU
    for name, error in (("openvino", ModelLoadFailed), ("abacus", ConfigInvalid)):
        with pytest.raises(error):
            backend.check(config_of(accelerated % ("cpu", name)))


@pytest.mark.parametrize("model", [onnx_models.add_sub(), onnx_models.strings(), onnx_models.identity("BF16")])
@pytest.mark.parametrize(
    ("value", "arena", "problem"),
    [
        ("cpu:0", True, ""),
        ("gpu:0", True, "Did not find an arena based allocator registered for device-id combination"),
        ("cpu:0", False, "Did not find an arena based allocator registered for device-id combination"),
        ("memory", True, "Unsupported device specified in the memory arena shrink list: memory"),
    ],
)
def test_run_options_are_tried_at_load(
    model: onnx.ModelProto, value: str, arena: bool, problem: str, tmp_path: Path
) -> None:
    version = onnx_models.write_version(model, tmp_path, "model")
    text = parameter("memory.enable_memory_arena_shrinkage", value) + parameter("enable_mem_arena", arena)
    with pytest.raises(ConfigInvalid, match=problem) if problem else nullcontext() as caught:
        OnnxRuntimeBackend().inspect(version, config_of(text))
    if caught is not None:
        assert caught.value.field == "parameters[memory.enable_memory_arena_shrinkage]"
        assert "such as cpu:0" in (caught.value.hint or "")
    OnnxRuntimeBackend().inspect(version, config_of(text + "instance_group { kind: KIND_GPU count: 1 gpus: 0 }"))


def test_onnx_runtime_accepts_every_option(tmp_path: Path) -> None:
    parameters = {
        "execution_mode": "1",
        "intra_op_thread_count": "2",
        "inter_op_thread_count": "2",
        "enable_mem_arena": "off",
        "enable_mem_pattern": "FALSE",
        "session.use_device_allocator_for_initializers": "1",
        "unknown": "1",
    }
    text = add_sub_config() + "optimization { graph { level: 1 } }\n"
    text += "".join(parameter(*each) for each in parameters.items())
    with serving(onnx_models.add_sub(), text, tmp_path) as model:
        ones = np.ones((1, 16), np.int32)
        assert (model.infer({"INPUT0": ones, "INPUT1": ones})["OUTPUT0"] == 2).all()
        assert model.model.describe() == {
            "device": "cpu",
            "execution provider": CPU,
            "threads": "2 intra-op, 2 inter-op",
        }


def test_outputs_are_answered_in_the_order_of_their_names(tmp_path: Path) -> None:
    """Whatever the configuration's order is, as Triton's backend does."""
    tensors = [tensor_text("input", f"INPUT{n}", "INT32", [16]) for n in range(2)]
    tensors += [tensor_text("output", f"OUTPUT{n}", "INT32", [16]) for n in (1, 0)]
    with serving(onnx_models.add_sub(), "max_batch_size: 8\n" + "".join(tensors), tmp_path) as model:
        row = np.ones((1, 16), np.int32)
        answers = model.execute([model.request({"INPUT0": row, "INPUT1": row}) for _ in range(2)])
    for answer in answers:
        assert [(name, array[0, 0]) for name, array in answer.items()] == [("OUTPUT0", 2), ("OUTPUT1", 0)]


def test_closed_instance_does_not_run_and_can_be_closed_again(tmp_path: Path) -> None:
    with serving(onnx_models.identity(), identity_config("FP32", [-1]), tmp_path) as model:
        request = model.request({"INPUT0": np.ones((1, 2), np.float32)})
        model.instance.close()
        with pytest.raises(ServerError, match="the instance is closed"):
            model.run([request])


# --- sessions and instances


@pytest.mark.parametrize(("threads", "is_served"), [(1, True), (2, False)])
def test_session_of_an_inspection_is_reused_by_an_equal_load(threads: int, is_served: bool, tmp_path: Path) -> None:
    version = onnx_models.write_version(onnx_models.add_sub(), tmp_path, "model")
    config = config_of(add_sub_config() + "instance_group { kind: KIND_CPU count: 2 }")
    backend, preparation = OnnxRuntimeBackend(), Preparation(threads=1)
    signature = backend.prepare(version, config, preparation)
    session = weakref.ref(preparation.made.made.session)
    placed = tuple(placements(config))
    model = backend.load(
        LoadContext(
            version,
            config,
            spec_of(config),
            placed,
            threads=threads,
            signature=signature,
            prepared=preparation.take,
        )
    )
    assert isinstance(model, InProcessModel)
    assert (model.loaded["cpu"] is session()) == is_served
    model.close()
    assert session() is None


def test_released_session_is_freed_with_its_last_instance(tmp_path: Path) -> None:
    with serving(onnx_models.add_sub(), add_sub_config(), tmp_path) as model:
        assert isinstance(model.model, InProcessModel)
        session = weakref.ref(model.model.loaded["cpu"])
        model.model.retain([])
        assert session() is not None
        model.instance.close()
        assert session() is None


def test_later_session_is_checked_like_the_first(tmp_path: Path) -> None:
    with serving(onnx_models.add_sub(), add_sub_config(), tmp_path) as model:
        described = model.model.describe()
        if not usable_gpus():
            with pytest.raises(ModelLoadFailed, match="CUDAExecutionProvider"):
                model.model.instance(Placement("model_0", DeviceKind.GPU, 0))
            assert model.model.describe() == described
        model.model.retain([])
        onnx_models.write_version(onnx_models.identity(), tmp_path, "model")
        with pytest.raises(ConfigInvalid, match="configuration expects 2 inputs, model provides 1"):
            model.model.instance(ON_CPU)
        assert model.model.describe()["device"] == ""


def test_closed_model_makes_no_session(tmp_path: Path) -> None:
    with serving(onnx_models.add_sub(), add_sub_config(), tmp_path) as model:
        model.model.close()
        with pytest.raises(RuntimeError, match="the model is closed"):
            model.model.instance(ON_CPU)


# --- options of sessions


def settings(*parameters: tuple[str, str], threads: int = 0, **backend: str) -> SessionSettings:
    text = "".join(parameter(*each) for each in parameters)
    return session_settings(config_of(text), {k.replace("_", "-"): v for k, v in backend.items()}, threads=threads)


GLOBAL = {"enable-global-threadpool": "1"}


@pytest.mark.parametrize(
    ("parameters", "planned", "backend", "intra_op", "inter_op", "described"),
    [
        ({}, 0, {}, 0, 0, "default intra-op, default inter-op"),
        ({}, 3, {}, 3, 0, "3 intra-op, default inter-op"),
        ({"intra_op_thread_count": "0"}, 3, {}, 3, 0, "3 intra-op, default inter-op"),
        ({"intra_op_thread_count": "-1"}, 3, {}, 3, 0, "3 intra-op, default inter-op"),
        ({"intra_op_thread_count": "2", "inter_op_thread_count": "4"}, 3, {}, 2, 4, "2 intra-op, 4 inter-op"),
        ({"intra_op_thread_count": "2"}, 3, GLOBAL, 0, 0, "the global pool"),
    ],
)
def test_threads_are_planned_unless_the_model_sets_them(
    parameters: dict[str, str], planned: int, backend: dict[str, str], intra_op: int, inter_op: int, described: str
) -> None:
    made = settings(*parameters.items(), threads=planned, **backend)
    assert (made.intra_op_threads, made.inter_op_threads, made.thread_plan) == (intra_op, inter_op, described)
    assert made.global_thread_pool is bool(backend)


def test_memory_parameters_are_read() -> None:
    assert (settings().enable_mem_arena, settings().enable_mem_pattern) == (None, None)
    made = settings(("enable_mem_arena", "off"), ("enable_mem_pattern", "true"))
    assert (made.enable_mem_arena, made.enable_mem_pattern) == (False, True)


# --- exceptions, with texts that ONNX Runtime really produces


PREFIX = "[ONNXRuntimeError] : 1 : FAIL : Non-zero status code returned while running Conv node. Status Message: "
DEVICE = " ; GPU=0 ; hostname=box ; file=/x/cuda_call.cc ; line=129 ; expr=cudaStreamSynchronize(s); "


# Collected with `strings` from the libraries of onnxruntime-gpu 1.31.1 and 1.26.0 (the core, the providers for CUDA and
# TensorRT), cuBLAS 13.10, CUDA runtime 13.5 and cuDNN 9.28, and from the status numbers in their headers. The provider
# for CUDA writes "LIBRARY failure NUMBER: TEXT ; GPU=...", with its own text for some libraries.
OUT_OF_MEMORY = [
    # the core: arenas, allocators, kernels
    "bfc_arena.cc:360 Failed to allocate memory for requested buffer of size 281474976710656",
    "Available memory of 1048576 is smaller than requested bytes of 4000000",
    "allocator.h:351 ValidateAllocation p != nullptr || size == 0 was false. Memory allocation failed. Size=4096",
    "OneHot: failed to allocate output tensor. Output shape may be too large.",
    "Failed to allocate external initializer buffer",
    # the provider for CUDA
    "CudaMempoolArena::Alloc: cudaMallocFromPoolAsync failed: out of memory",
    "CudaMempoolArena::AllocOnStream: cudaMallocFromPoolAsync failed on stream=0x7f: out of memory",
    "Memcpy: Failed to allocate output tensor sequence.",
    "Memcpy: Failed to allocate output sparse tensor.",
    "IdentityOp cuda: failed to allocate output tensor.",
    "Failed to allocate pinned host memory for MoE expert counting.",
    "Failed to allocate workspace for MoE GEMM profiling",
    "std::bad_alloc: cudaErrorMemoryAllocation: out of memory",
    # the libraries of CUDA, as that provider reports them
    f"CUDA failure 2: out of memory{DEVICE}",
    f"CUBLAS failure 3: CUBLAS_STATUS_ALLOC_FAILED{DEVICE}",
    f"CUBLAS failure 3: the resource allocation failed{DEVICE}",
    f"CUBLAS failure 1: CUBLAS_STATUS_NOT_INITIALIZED{DEVICE}",
    f"CUDNN failure 1001: CUDNN_STATUS_NOT_INITIALIZED{DEVICE}",
    f"CUDNN failure 4003: CUDNN_STATUS_INTERNAL_ERROR_HOST_ALLOCATION_FAILED{DEVICE}",
    f"CUDNN failure 4004: CUDNN_STATUS_INTERNAL_ERROR_DEVICE_ALLOCATION_FAILED{DEVICE}",
    f"CUFFT failure 2: CUFFT_ALLOC_FAILED{DEVICE}",
    f"CURAND failure 102: (see curand.h & look for curandStatus or CURAND_STATUS_xxx){DEVICE}",
]


@pytest.mark.parametrize(
    "exc",
    [
        *(RuntimeError(f"{PREFIX}{text}") for text in OUT_OF_MEMORY),
        RuntimeError("std::bad_alloc"),
        MemoryError("Unable to allocate 4.00 TiB"),
    ],
)
@pytest.mark.parametrize("failed", [BackendFailed, ModelLoadFailed])
def test_out_of_memory_is_recognized(exc: Exception, failed: type[BackendFailed]) -> None:
    assert type(failure_of(exc, "m", failed)) is OutOfMemory


@pytest.mark.parametrize(
    "text",
    [
        "CUDA failure 700: an illegal memory access was encountered",
        "CUDA error 719: unspecified launch failure",
        "CUDA failure 710: device-side assert triggered",
        "CUDNN failure 8: CUDNN_STATUS_EXECUTION_FAILED",
        "CUDNN_FE failure 5000: CUDNN_STATUS_EXECUTION_FAILED",
        "CUBLAS failure 13: CUBLAS_STATUS_EXECUTION_FAILED",
    ],
)
def test_lost_context_is_recognized(text: str) -> None:
    assert is_poison(RuntimeError(PREFIX + text + DEVICE))


@pytest.mark.parametrize(
    ("written", "gpus", "of_each"),
    [
        ("gpu:0;gpu:1", "0, 1", ["gpu:0", "gpu:1"]),
        ("cpu:0;gpu:1", "0, 1", ["cpu:0", "cpu:0;gpu:1"]),
        ("gpu:1", "0, 1", [None, "gpu:1"]),
        ("gpu:9", "0, 1", ["gpu:9", "gpu:9"]),  # a mistake, which ONNX Runtime is to refuse
        ("memory;gpu:1", "1", ["memory;gpu:1"]),
    ],
)
def test_session_shrinks_no_arena_of_another_gpu(written: str, gpus: str, of_each: list[str | None]) -> None:
    key = "memory.enable_memory_arena_shrinkage"
    placed = placements(config_of(f"instance_group {{ kind: KIND_GPU count: 1 gpus: [{gpus}] }}"))
    own = [settings_on(settings((key, written)), placement, placed) for placement in placed]
    assert [each.run_entries.get(key) for each in own] == of_each


# --- model files that do not load


def too_new(part: str) -> onnx.ModelProto:
    model = onnx_models.add_sub()
    if part == "IR":
        model.ir_version = 99
    else:
        model.opset_import[0].version = 99
    return model


@pytest.mark.parametrize(
    ("content", "hint"),
    [
        (onnx_models.slow().SerializeToString()[:50_000], "the file (50000 bytes) is not an ONNX model, or incomplete"),
        (too_new("IR").SerializeToString(), "the model has IR version 99, and ONNX Runtime "),
        (too_new("opset").SerializeToString(), "the model has opset 99 of ai.onnx, and ONNX Runtime "),
    ],
    ids=["incomplete", "IR version", "opset"],
)
def test_unloadable_file_has_a_hint(content: bytes, hint: str, tmp_path: Path) -> None:
    (tmp_path / "model.onnx").write_bytes(content)
    with pytest.raises(ModelLoadFailed) as caught:
        OnnxRuntimeBackend().inspect(tmp_path, config_of(""))
    assert hint in (caught.value.hint or "")


def test_forbidden_file_is_named() -> None:
    text = "[ONNXRuntimeError] : 1 : FAIL : Load model from /m/1/model.onnx failed:system error number 13"
    assert "chmod -R a+rX /m/1" in (load_hint(text, Path("/m/1/model.onnx")) or "")
