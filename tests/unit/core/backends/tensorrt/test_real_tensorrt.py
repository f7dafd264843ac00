"""The installed TensorRT: the fake one has its names, and on a GPU a plan that it builds is served."""

from __future__ import annotations

from collections.abc import Callable
from importlib import import_module
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from tests.unit.backend_serving import serving_version
from tests.unit.core.backends.tensorrt import fake_tensorrt
from tests.unit.core.backends.tensorrt.plans import ON_GPU, trt_config, write_plan
from trident.core.backends.tensorrt.backend import TensorRtBackend
from trident.core.cuda import gpu_ids

pytestmark = pytest.mark.skipif(find_spec("tensorrt") is None, reason="TensorRT is not installed")

CLASSES = [
    name for name, value in vars(fake_tensorrt).items() if getattr(value, "__module__", "") == fake_tensorrt.__name__
]
CLASSES = [name for name in CLASSES if isinstance(getattr(fake_tensorrt, name), type)]


@pytest.fixture
def real() -> Any:
    return import_module("tensorrt")


@pytest.mark.parametrize("name", sorted({*CLASSES} - {"Dims"}))
def test_fake_has_only_names_of_the_real_tensorrt(real: Any, name: str) -> None:
    made_up = [each for each in vars(getattr(fake_tensorrt, name)) if not each.startswith("_")]
    # What an object only has after it was made cannot be seen on its class.
    missing = [each for each in made_up if not hasattr(getattr(real, name), each)]
    assert missing == []


def test_profile_values_are_looked_up_by_profile_and_name(real: Any) -> None:
    """The keywords have it the other way, see `describe`."""
    signature = real.ICudaEngine.get_tensor_profile_values.__doc__.splitlines()[0]
    assert signature.index("Int" if "SupportsInt" in signature else "int") < signature.index("str")


def build(real: Any, define: Callable[[Any, Any], None], shapes: dict[str, tuple[Any, Any, Any]]) -> bytes:
    """The plan of a network that `define` defines, with one profile."""
    logger = real.Logger(real.Logger.ERROR)
    builder = real.Builder(logger)
    network = builder.create_network(0)
    for name, (_, best, _) in shapes.items():
        network.add_input(name, real.float32, (-1, *best[1:]))
    define(network, {network.get_input(index).name: network.get_input(index) for index in range(network.num_inputs)})
    config, profile = builder.create_builder_config(), builder.create_optimization_profile()
    for name, (least, best, most) in shapes.items():
        profile.set_shape(name, least, best, most)
    config.add_optimization_profile(profile)
    return bytes(builder.build_serialized_network(network, config))


def marked(network: Any, tensor: Any, name: str) -> None:
    tensor.name = name
    network.mark_output(tensor)


@pytest.mark.gpu
@pytest.mark.skipif(not gpu_ids(), reason="no GPU")
def test_plan_of_the_real_builder_is_served(real: Any, tmp_path: Path) -> None:
    def define(network: Any, inputs: dict[str, Any]) -> None:
        operations = {"OUTPUT0": real.ElementWiseOperation.SUM, "OUTPUT1": real.ElementWiseOperation.SUB}
        for name, operation in operations.items():
            layer = network.add_elementwise(inputs["INPUT0"], inputs["INPUT1"], operation)
            marked(network, layer.get_output(0), name)

    limits = ((1, 16), (4, 16), (8, 16))
    version = write_plan(tmp_path / "1", build(real, define, {"INPUT0": limits, "INPUT1": limits}))
    backend, config = TensorRtBackend({}), trt_config()
    backend.complete(version, config)
    assert config.max_batch_size == 8
    with serving_version(backend, version, config, placement=ON_GPU) as served:
        for rows in (1, 8, 3):
            given = np.random.default_rng(rows).normal(size=(rows, 16)).astype(np.float32)
            answer = served.infer({"INPUT0": given, "INPUT1": given * 2})
            np.testing.assert_array_equal(answer["OUTPUT0"], given + given * 2)
            np.testing.assert_array_equal(answer["OUTPUT1"], given - given * 2)


@pytest.mark.gpu
@pytest.mark.skipif(not gpu_ids(), reason="no GPU")
def test_data_dependent_output_shape_is_served_by_real_tensorrt(real: Any, tmp_path: Path) -> None:
    def define(network: Any, inputs: dict[str, Any]) -> None:
        marked(network, network.add_non_zero(inputs["INPUT0"]).get_output(0), "OUTPUT0")

    version = write_plan(tmp_path / "1", build(real, define, {"INPUT0": ((1, 4), (4, 4), (8, 4))}))
    # The places come by dimension, not by item, so that the model does not batch.
    config = trt_config('input { name: "INPUT0" data_type: TYPE_FP32 dims: [ -1, 4 ] }')
    backend = TensorRtBackend({})
    backend.complete(version, config)
    with serving_version(backend, version, config, placement=ON_GPU) as served:
        for seed in (1, 2):
            given = np.random.default_rng(seed).integers(0, 2, size=(3, 4)).astype(np.float32)
            np.testing.assert_array_equal(served.infer({"INPUT0": given})["OUTPUT0"], np.stack(np.nonzero(given)))
