"""A loaded ONNX model: its sessions, one for each device, and its instances."""

from __future__ import annotations

import weakref
from pathlib import Path

import numpy as np
import pytest

from tests.unit import onnx_models
from tests.unit.backend_serving import ON_CPU, Serving, config_of, spec_of, tensor_text
from tests.unit.onnx_serving import add_sub_config, serving, usable_gpus
from trident.core.backends.backend import LoadContext
from trident.core.backends.in_process import InProcessModel
from trident.core.backends.onnxruntime.backend import OnnxRuntimeBackend
from trident.core.backends.onnxruntime.providers import CPU
from trident.core.config.placement import DeviceKind, Placement
from trident.core.errors import ConfigInvalid, ModelLoadFailed


def test_describe_names_device_provider_and_threads(tmp_path: Path) -> None:
    with serving(onnx_models.add_sub(), add_sub_config(), tmp_path, threads=2) as model:
        assert model.model.describe() == {
            "device": "cpu",
            "execution provider": CPU,
            "threads": "2 intra-op, default inter-op",
        }


def test_instances_on_one_device_share_a_session(tmp_path: Path) -> None:
    version = onnx_models.write_version(onnx_models.slow(), tmp_path, "model")
    config = config_of(
        "max_batch_size: 8\n"
        + tensor_text("input", "INPUT0", "FP32", [256])
        + tensor_text("output", "OUTPUT0", "FP32", [256])
    )
    placements = (Placement("model_0", DeviceKind.CPU), Placement("model_1", DeviceKind.CPU))
    context = LoadContext(path=version, config=config, spec=spec_of(config), placements=placements)
    model = OnnxRuntimeBackend().load(context)
    assert isinstance(model, InProcessModel)
    assert len(model.loaded) == 1
    instances = [model.instance(placement) for placement in placements]
    assert [instance.placement.name for instance in instances] == ["model_0", "model_1"]
    for instance in instances:
        instance.close()
    model.close()


def test_a_device_gets_a_session_with_its_first_instance(tmp_path: Path) -> None:
    with serving(onnx_models.add_sub(), add_sub_config(), tmp_path) as model:
        described = model.model.describe()
        model.model.retain(["cpu", "gpu:7"])
        assert model.model.describe() == described
        model.model.retain([])
        assert model.model.describe() == {**described, "device": "", "execution provider": ""}
        ones = np.ones((1, 16), np.int32)
        assert (model.infer({"INPUT0": ones, "INPUT1": ones})["OUTPUT0"] == 2).all()  # still in use
        again = Serving(model.spec, model.model, model.model.instance(Placement("another_0", DeviceKind.CPU)))
        assert (again.infer({"INPUT0": ones, "INPUT1": ones})["OUTPUT0"] == 2).all()
        assert model.model.describe() == described
        again.instance.close()


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
