"""Runs on tensors at addresses, with a real session: on the device `cpu`, and on a GPU where there is one."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np
import onnxruntime
import pytest

from tests.unit import onnx_models
from tests.unit.backend_serving import config_of, spec_of, tensor_text
from tests.unit.onnx_serving import usable_gpus
from trident.core.backends.in_process import BoundInput
from trident.core.backends.onnxruntime.runs import DeviceRun
from trident.core.cuda.driver import CudaDriver, DeviceMemory
from trident.core.inference.response import DevicePlace
from trident.core.inference.tensors import BY_NAME, Array

NUMERIC = [name for name in onnx_models.ELEMENT_TYPES if name != "BYTES"]


def run_of(datatype: str, dims: int, device: str, provider: str) -> DeviceRun:
    text = "max_batch_size: 8\n" + tensor_text("input", "INPUT0", datatype, [-1])
    spec = spec_of(config_of(text + tensor_text("output", "OUTPUT0", datatype, [dims])))
    session = onnxruntime.InferenceSession(onnx_models.identity(datatype).SerializeToString(), providers=[provider])
    return DeviceRun(session, onnxruntime.OrtValue, spec, False, device, 0)


@pytest.mark.parametrize("datatype", NUMERIC)
def test_every_datatype_is_read_and_written_where_it_lies(datatype: str) -> None:
    run = run_of(datatype, 3, "cpu", "CPUExecutionProvider")
    given = np.arange(6).astype(BY_NAME[datatype].dtype).reshape(2, 3)
    written = np.zeros_like(given)
    inputs = {"INPUT0": BoundInput(given.ctypes.data, (2, 3))}
    outputs = {"OUTPUT0": DevicePlace(0, written.ctypes.data, written.nbytes)}
    assert run.bound(["OUTPUT0"], {}, None, inputs, outputs, 2) == [(2, 3)]
    assert written.tolist() == given.tolist()
    # The next run is bound to nothing of this one.
    written[...] = 0
    (array,) = run.bound(["OUTPUT0"], {"INPUT0": given}, None, {}, {}, 2)
    assert isinstance(array, np.ndarray)
    assert array.tolist() == given.tolist()
    assert not written.any()


@pytest.mark.parametrize(("dims", "room"), [(-1, 24), (3, 23)])
def test_an_output_of_unknown_shape_or_without_room_is_an_array(dims: int, room: int) -> None:
    run = run_of("FP32", dims, "cpu", "CPUExecutionProvider")
    given, written = np.ones((2, 3), np.float32), np.zeros((2, 3), np.float32)
    outputs = {"OUTPUT0": DevicePlace(0, written.ctypes.data, room)}
    (array,) = run.bound(["OUTPUT0"], {"INPUT0": given}, None, {}, outputs, 2)
    assert isinstance(array, np.ndarray)
    assert array.tolist() == given.tolist()
    assert not written.any()


@contextmanager
def on_gpu(driver: CudaDriver, content: Array) -> Iterator[int]:
    """The address of a copy of `content` on GPU 0."""
    memory = DeviceMemory(driver)
    with driver.on(0):
        address = memory.address(content.nbytes)
    driver.copy_to_device(0, address, content.ctypes.data, content.nbytes)
    yield address
    with driver.on(0):
        memory.close()


@pytest.mark.gpu
def test_tensors_on_a_gpu_stay_there() -> None:
    driver = CudaDriver.open()
    if not usable_gpus() or driver is None:
        pytest.skip("no GPU, or an ONNX Runtime without CUDA")
    run = run_of("FP32", 3, "cuda", "CUDAExecutionProvider")
    given, read = np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros((2, 3), np.float32)
    with on_gpu(driver, given) as source, on_gpu(driver, read) as target:
        inputs = {"INPUT0": BoundInput(source, (2, 3))}
        outputs = {"OUTPUT0": DevicePlace(0, target, given.nbytes)}
        assert run.bound(["OUTPUT0"], {}, None, inputs, outputs, 2) == [(2, 3)]
        driver.copy_to_host(0, target, read.ctypes.data, read.nbytes)
    assert read.tolist() == given.tolist()
