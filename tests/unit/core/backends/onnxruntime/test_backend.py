"""The ONNX Runtime backend on real models: it inspects, loads and refuses them, and shares their sessions."""

from __future__ import annotations

import weakref
from contextlib import nullcontext
from pathlib import Path

import numpy as np
import onnx
import pytest

from tests.unit import onnx_models
from tests.unit.backend_serving import ON_CPU, Serving, config_of, parameter, spec_of, tensor_text
from tests.unit.onnx_serving import add_sub_config, identity_config, serving, usable_gpus
from trident.core.backends.backend import LoadContext
from trident.core.backends.in_process import InProcessModel
from trident.core.backends.onnxruntime.backend import OnnxRuntimeBackend
from trident.core.backends.onnxruntime.providers import CPU
from trident.core.config.placement import DeviceKind, Placement
from trident.core.config.problem import TensorSignature
from trident.core.errors import (
    ConfigInvalid,
    ModelLoadFailed,
    ServerError,
)

EMPTY = config_of("")


def load(folder: Path, config_text: str, placement: Placement = ON_CPU, settings: dict[str, str] | None = None) -> None:
    config = config_of(config_text)
    context = LoadContext(path=folder, config=config, spec=spec_of(config), placements=(placement,))
    OnnxRuntimeBackend(settings or {}).load(context).close()


INPUTS = (TensorSignature("INPUT0", "INT32", (-1, 16)), TensorSignature("INPUT1", "INT32", (-1, 16)))


@pytest.mark.parametrize(
    ("model", "inputs", "optional_inputs"),
    [
        (onnx_models.add_sub(), INPUTS, ()),
        (onnx_models.with_default(), (TensorSignature("INPUT0", "FP32", (4,)),), ("OFFSET",)),
        (onnx_models.scalar(), (TensorSignature("INPUT0", "FP32", ()),), ()),
        # The protocol has no such type.
        (onnx_models.float8_input(), (TensorSignature("INPUT0", "", (-1,)),), ()),
    ],
    ids=["add_sub", "default", "scalar", "float8"],
)
def test_inspect_reads_the_graph(
    tmp_path: Path, model: onnx.ModelProto, inputs: tuple[TensorSignature, ...], optional_inputs: tuple[str, ...]
) -> None:
    signature = OnnxRuntimeBackend().inspect(onnx_models.write_version(model, tmp_path, "model"), EMPTY)
    assert signature.inputs == inputs
    assert tuple(tensor.name for tensor in signature.optional_inputs) == optional_inputs


def test_a_configuration_that_contradicts_the_graph_is_refused(tmp_path: Path) -> None:
    version = onnx_models.write_version(onnx_models.add_sub(), tmp_path, "model")
    text = "max_batch_size: 8 " + tensor_text("input", "WRONG", "INT32", [16])
    text += tensor_text("input", "INPUT1", "INT32", [16]) + tensor_text("output", "OUTPUT0", "INT32", [16])
    with pytest.raises(ConfigInvalid) as caught:
        load(version, text)
    assert caught.value.message == "unexpected inference input 'WRONG', allowed inputs are: INPUT0, INPUT1"


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


def test_a_wrong_library_fails_the_load(tmp_path: Path) -> None:
    version = onnx_models.write_version(onnx_models.add_sub(), tmp_path, "model")
    with pytest.raises(ModelLoadFailed, match=r"error 1: Failed to load library none\.so"):
        load(version, add_sub_config() + 'model_operations { op_library_filename: "none.so" }')


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


def test_a_closed_instance_does_not_run_and_can_be_closed_again(tmp_path: Path) -> None:
    with serving(onnx_models.identity(), identity_config("FP32", [-1]), tmp_path) as model:
        request = model.request({"INPUT0": np.ones((1, 2), np.float32)})
        model.instance.close()
        with pytest.raises(ServerError, match="the instance is closed"):
            model.run([request])


# --- sessions and instances


def test_a_released_session_is_freed_with_its_last_instance(tmp_path: Path) -> None:
    with serving(onnx_models.add_sub(), add_sub_config(), tmp_path) as model:
        assert isinstance(model.model, InProcessModel)
        session = weakref.ref(model.model.loaded["cpu"])
        inner = weakref.ref(model.model.loaded["cpu"]._sess)
        model.model.retain([])
        assert (session(), inner() is None) == (None, False)
        model.instance.close()
        assert inner() is None


def test_a_later_session_is_checked_like_the_first(tmp_path: Path) -> None:
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


def test_a_closed_model_makes_no_session(tmp_path: Path) -> None:
    with serving(onnx_models.add_sub(), add_sub_config(), tmp_path) as model:
        model.model.close()
        with pytest.raises(RuntimeError, match="the model is closed"):
            model.model.instance(ON_CPU)


@pytest.mark.gpu
def test_a_gpu_is_added_and_released_while_the_cpu_serves(tmp_path: Path) -> None:
    if not usable_gpus():
        pytest.skip("no GPU, or an ONNX Runtime without CUDA")
    with serving(onnx_models.add_sub("FP32"), add_sub_config("FP32"), tmp_path) as model:
        on_gpu = Serving(model.spec, model.model, model.model.instance(Placement("model_1", DeviceKind.GPU, 0)))
        assert model.model.describe()["device"] == "cpu, gpu:0"
        ones = np.ones((1, 16), np.float32)
        assert (on_gpu.infer({"INPUT0": ones, "INPUT1": ones})["OUTPUT0"] == 2).all()
        on_gpu.instance.close()
        model.model.retain(["cpu"])
        assert model.model.describe()["device"] == "cpu"
        assert (model.infer({"INPUT0": ones, "INPUT1": ones})["OUTPUT0"] == 2).all()
