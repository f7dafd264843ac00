"""Runs of a real session: on values, texts and strings, and with tensors where they lie; batches on real models."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
import pytest
from onnx import TensorProto, helper
from onnxruntime.capi import onnxruntime_pybind11_state as capi

from tests.unit import onnx_models
from tests.unit.backend_serving import config_of, spec_of, strings, tensor_text
from tests.unit.onnx_serving import add_sub_config, identity_config, serving, session_of, usable_gpus
from trident.core.backends.in_process import BoundTensor
from trident.core.backends.onnxruntime.runs import ValueRun, pinned_memory
from trident.core.cuda import CudaDriver, DeviceBlock
from trident.core.errors import BackendFailed, InvalidRequest, OutOfMemory
from trident.core.inference.response import DevicePlace
from trident.core.inference.tensors import BY_NAME, Array

PICKY = (
    "max_batch_size: 8\n" + tensor_text("input", "INDEX", "INT64", [1]) + tensor_text("output", "VALUE", "FP32", [1])
)


def test_scalar_gets_the_configured_dims(tmp_path: Path) -> None:
    for dims in ([1], [1, 1]):
        with serving(onnx_models.scalar(), identity_config("FP32", dims, 0), tmp_path / str(len(dims))) as model:
            answer = model.infer({"INPUT0": np.full(dims, 2.5, np.float32)})["OUTPUT0"]
            assert answer.shape == tuple(dims)
            assert float(answer.max()) == 2.5


def test_input_with_a_default_is_optional(tmp_path: Path) -> None:
    text = tensor_text("input", "INPUT0", "FP32", [4]) + tensor_text("input", "OFFSET", "FP32", [4], "optional: true")
    with serving(onnx_models.with_default(), text + tensor_text("output", "OUTPUT0", "FP32", [4]), tmp_path) as model:
        ones = np.ones(4, np.float32)
        assert model.infer({"INPUT0": ones})["OUTPUT0"].tolist() == [11, 21, 31, 41]
        assert model.infer({"INPUT0": ones, "OFFSET": ones})["OUTPUT0"].tolist() == [2, 2, 2, 2]


def test_strings_are_passed_whole(tmp_path: Path) -> None:
    given = [b"", b"a\0b", b"\0", "\u00e9\U0001f600".encode(), b"long " * 100, b"b'x'"]
    with serving(onnx_models.strings(), identity_config("BYTES", [-1]), tmp_path) as model:
        for shape in ((1, 6), (2, 3), (1, 0)):
            answer = model.infer({"INPUT0": strings(*given[: shape[0] * shape[1]], shape=shape)})["OUTPUT0"]
            assert (answer.shape, answer.dtype) == (shape, object)
            assert answer.reshape(-1).tolist() == given[: shape[0] * shape[1]]


def test_strings_that_are_not_text_are_refused_by_name(tmp_path: Path) -> None:
    with serving(onnx_models.strings(), identity_config("BYTES", [-1]), tmp_path / "input") as model:
        # The binding would pass it on as the text "b'\\xff'".
        with pytest.raises(InvalidRequest, match="input 'INPUT0' of model 'model' has strings that are not UTF-8"):
            model.infer({"INPUT0": strings(b"text", b"\xff")})
        assert model.infer({"INPUT0": strings(b"text")})["OUTPUT0"].tolist() == [[b"text"]]
    text = tensor_text("input", "INPUT0", "BYTES", [-1]) + tensor_text("output", "OUTPUT0", "BYTES", [-1])
    text += tensor_text("output", "ANSWER", "BYTES", [1])
    with (
        serving(onnx_models.answering(b"\xff\0!"), text, tmp_path / "output") as model,
        pytest.raises(BackendFailed, match="an output of model 'model' has strings that are not UTF-8"),
    ):
        model.infer({"INPUT0": strings(b"text", shape=(1,))})


def test_string_input_may_have_a_numeric_output(tmp_path: Path) -> None:
    text = "max_batch_size: 8\n" + tensor_text("input", "INPUT0", "BYTES", [-1])
    text += tensor_text("output", "OUTPUT0", "FP32", [-1])
    with serving(onnx_models.string_to_number(), text, tmp_path) as model:
        assert model.infer({"INPUT0": strings(b"1.5", b"-2")})["OUTPUT0"].tolist() == [[1.5, -2]]
        with pytest.raises(BackendFailed):
            model.infer({"INPUT0": strings(b"many", b"few")})
        assert model.infer({"INPUT0": strings(b"7")})["OUTPUT0"].tolist() == [[7]]


def test_strings_and_bfloat16_share_a_run_if_the_binding_allows_it(tmp_path: Path) -> None:
    graph = helper.make_graph(
        [helper.make_node("Identity", ["B"], ["C"]), helper.make_node("Cast", ["B"], ["T"], to=TensorProto.STRING)],
        "graph",
        [helper.make_tensor_value_info("B", TensorProto.BFLOAT16, [2])],
        [
            helper.make_tensor_value_info("C", TensorProto.BFLOAT16, [2]),
            helper.make_tensor_value_info("T", TensorProto.STRING, [2]),
        ],
    )
    model_proto = helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8)
    text = tensor_text("input", "B", "BF16", [2])
    text += tensor_text("output", "C", "BF16", [2]) + tensor_text("output", "T", "BYTES", [2])
    try:
        session_of(model_proto)
    except Exception:
        pytest.skip("no such cast")
    with serving(model_proto, text, tmp_path) as model:
        answer = model.infer({"B": np.array([0x3F80, 0x4000], np.uint16)})
        assert answer["C"].tolist() == [0x3F80, 0x4000]
        assert answer["T"].tolist() == [b"1", b"2"]


def test_failed_run_has_tritons_text(tmp_path: Path) -> None:
    with serving(onnx_models.picky(), PICKY, tmp_path) as model:
        with pytest.raises(BackendFailed) as caught:
            model.infer({"INDEX": np.array([[9]])})
        assert caught.value.message.startswith("onnx runtime error 2: Non-zero status code returned while running Gat")
        assert caught.value.reason.startswith("Internal: ")
        assert caught.value.__cause__ is not None
        assert not model.instance.poisoned
        assert model.infer({"INDEX": np.array([[3]])})["VALUE"].tolist() == [[30]]


def test_out_of_memory_has_its_own_error(tmp_path: Path) -> None:
    text = tensor_text("input", "SIZE", "INT64", [1]) + tensor_text("output", "ZEROS", "FP32", [-1])
    with serving(onnx_models.allocating(), text, tmp_path) as model:
        assert model.infer({"SIZE": np.array([3])})["ZEROS"].tolist() == [0, 0, 0]
        with pytest.raises(OutOfMemory, match="Failed to allocate memory for requested buffer"):
            model.infer({"SIZE": np.array([1 << 46])})
        assert model.infer({"SIZE": np.array([1])})["ZEROS"].tolist() == [0]


def test_instance_releases_the_tensors_of_a_batch(tmp_path: Path) -> None:
    for datatype in ("FP32", "BF16", "BYTES"):
        config = identity_config(datatype, [-1])
        with serving(onnx_models.identity(datatype), config, tmp_path / datatype) as model:
            value = strings(b"y", b"x") if datatype == "BYTES" else np.ones((1, 2), BY_NAME[datatype].dtype)
            requests = [model.request({"INPUT0": value}) for _ in range(2)]
            arrays = [weakref.ref(tensor.array) for request in requests for tensor in request.inputs]
            model.execute(requests)
            model.execute(requests[:1])
            del requests, value
            gc.collect()
            assert [array() for array in arrays] == [None, None]


# --- values


def test_concurrent_runs_share_no_result() -> None:
    session = session_of(onnx_models.identity("FP32"))
    spec = spec_of(config_of(identity_config("FP32", [-1])))

    def run_some(worker: int) -> list[tuple[float, Array]]:
        values = ValueRun(session, spec)
        marks = [float(100 * worker + n) for n in range(50)]
        # Results are kept until all threads are done: memory reused too early would hold the values of another run.
        return [
            (mark, values(["OUTPUT0"], {"INPUT0": np.full((1, 30_000), mark, np.float32)}, None)[0]) for mark in marks
        ]

    with ThreadPoolExecutor(4) as threads:
        kept = [pair for pairs in threads.map(run_some, range(4)) for pair in pairs]
    assert len(kept) == 200
    assert all((array == mark).all() for mark, array in kept)


def test_failed_run_unbinds_its_tensors() -> None:
    options = onnxruntime.RunOptions()
    options.log_severity_level = 4
    session = session_of(onnx_models.picky())
    values = ValueRun(session, spec_of(config_of(PICKY)))
    with pytest.raises(Exception, match="out of data bounds"):
        values(["VALUE"], {"INDEX": np.array([[99]])}, options)
    assert values(["VALUE"], {"INDEX": np.array([[2]])}, options)[0].tolist() == [[20]]


# --- tensors at addresses: on the device `cpu`, and on a GPU where there is one


NUMERIC = [name for name in onnx_models.ELEMENT_TYPES if name != "BYTES"]


def device_run(datatype: str, dims: int, device: str, provider: str, memory: object = None) -> ValueRun:
    text = "max_batch_size: 8\n" + tensor_text("input", "INPUT0", datatype, [-1])
    spec = spec_of(config_of(text + tensor_text("output", "OUTPUT0", datatype, [dims])))
    session = onnxruntime.InferenceSession(onnx_models.identity(datatype).SerializeToString(), providers=[provider])
    return ValueRun(session, spec, device, 0, memory)


@pytest.mark.parametrize("datatype", NUMERIC)
def test_every_datatype_is_read_and_written_in_place(datatype: str) -> None:
    run = device_run(datatype, 3, "cpu", "CPUExecutionProvider")
    given = np.arange(6).astype(BY_NAME[datatype].dtype).reshape(2, 3)
    written = np.zeros_like(given)
    inputs = {"INPUT0": BoundTensor(given.ctypes.data, (2, 3))}
    outputs = {"OUTPUT0": DevicePlace(0, written.ctypes.data, written.nbytes)}
    assert run.bound(["OUTPUT0"], {}, None, inputs, outputs, 2) == [(2, 3)]
    assert written.tolist() == given.tolist()
    # The next run is bound to nothing of this one.
    written[...] = 0
    (array,) = run.bound(["OUTPUT0"], {"INPUT0": given}, None, {}, {}, 2)
    assert isinstance(array, np.ndarray)
    assert array.tolist() == given.tolist()
    assert not written.any()


def test_unrequested_output_is_not_overwritten() -> None:
    spec = spec_of(config_of(add_sub_config("FP32")))
    run = ValueRun(session_of(onnx_models.add_sub("FP32")), spec, "cpu", 0)
    feed = {name: np.ones((1, 16), np.float32) for name in ("INPUT0", "INPUT1")}
    written = np.zeros((1, 16), np.float32)
    place = {"OUTPUT0": DevicePlace(0, written.ctypes.data, written.nbytes)}
    assert run.bound(["OUTPUT0"], feed, None, {}, place, 1) == [(1, 16)]
    assert (written == 2).all()
    written[...] = 0
    (array,) = run.bound(["OUTPUT1"], feed, None, {}, {}, 1)
    assert isinstance(array, np.ndarray)
    assert not array.any()
    assert not written.any()


CPU_MEMORY = capi.OrtDevice(capi.OrtDevice.cpu(), capi.OrtDevice.default_memory(), 0)


@pytest.mark.parametrize("datatype", NUMERIC)
@pytest.mark.parametrize("shape", [(2, 3), (0, 3)])
def test_outputs_are_written_to_the_given_memory(datatype: str, shape: tuple[int, int]) -> None:
    """Memory of the CPU stands for a GPU's pinned memory: ONNX Runtime allocates both itself."""
    run = device_run(datatype, -1, "cpu", "CPUExecutionProvider", CPU_MEMORY)
    given = np.arange(np.prod(shape)).astype(BY_NAME[datatype].dtype).reshape(shape)
    kept = [run(["OUTPUT0"], {"INPUT0": each}, None)[0] for each in (given, given[::-1].copy())]
    gc.collect()
    # Neither a later run nor the end of ONNX Runtime's own objects changes what was answered.
    run(["OUTPUT0"], {"INPUT0": np.zeros_like(given)}, None)
    assert [each.tolist() for each in kept] == [given.tolist(), given[::-1].tolist()]
    assert {(each.dtype, each.flags.c_contiguous) for each in kept} == {(given.dtype, True)}


class Refusing:
    """A session whose next runs on bindings fail, as many as `failures` says."""

    def __init__(self, session: Any) -> None:
        self.io_binding = session.io_binding
        self.failures = 0
        self._inner = session

    def run_with_iobinding(self, binding: Any, options: Any) -> None:
        if self.failures:
            self.failures -= 1
            raise RuntimeError("Failed to find allocator for device")
        self._inner.run_with_iobinding(binding, options)


def test_outputs_use_ordinary_memory_without_pinned_memory(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level("INFO")
    spec = spec_of(config_of(identity_config("FP32", [3])))
    session = Refusing(session_of(onnx_models.identity("FP32")))
    run = ValueRun(session, spec, "cpu", 0, CPU_MEMORY)
    feed = {"INPUT0": np.ones((2, 3), np.float32)}
    session.failures = 2  # for another reason than the memory
    with pytest.raises(RuntimeError):
        run(["OUTPUT0"], feed, None)
    assert not caplog.records
    session.failures = 1
    assert run(["OUTPUT0"], feed, None)[0].tolist() == feed["INPUT0"].tolist()
    assert caplog.messages == ["the outputs of 'model' are not in pinned memory: Failed to find allocator for device"]
    session.failures = 1  # no second chance from now on
    with pytest.raises(RuntimeError):
        run(["OUTPUT0"], feed, None)


@contextmanager
def on_gpu(driver: CudaDriver, content: Array) -> Iterator[int]:
    """The address of a copy of `content` on GPU 0."""
    memory = DeviceBlock(driver)
    with driver.on(0):
        address = memory.address(content.nbytes)
    driver.copy_to_device(0, address, content.ctypes.data, content.nbytes)
    yield address
    with driver.on(0):
        memory.close()


@pytest.mark.gpu
def test_outputs_of_a_gpu_are_in_pinned_memory(caplog: pytest.LogCaptureFixture) -> None:
    if not usable_gpus():
        pytest.skip("no GPU, or an ONNX Runtime without CUDA")
    caplog.set_level("INFO")
    run = device_run("FP32", -1, "cuda", "CUDAExecutionProvider", pinned_memory(0))
    for number in range(20):
        given = np.full((64, 4096), number, np.float32)
        assert run(["OUTPUT0"], {"INPUT0": given}, None)[0].tolist() == given.tolist()
    assert not caplog.records


@pytest.mark.gpu
def test_tensors_on_a_gpu_are_not_copied_to_the_host() -> None:
    driver = CudaDriver.open()
    if not usable_gpus() or driver is None:
        pytest.skip("no GPU, or an ONNX Runtime without CUDA")
    run = device_run("FP32", 3, "cuda", "CUDAExecutionProvider")
    given, read = np.arange(6, dtype=np.float32).reshape(2, 3), np.zeros((2, 3), np.float32)
    with on_gpu(driver, given) as source, on_gpu(driver, read) as target:
        inputs = {"INPUT0": BoundTensor(source, (2, 3))}
        outputs = {"OUTPUT0": DevicePlace(0, target, given.nbytes)}
        assert run.bound(["OUTPUT0"], {}, None, inputs, outputs, 2) == [(2, 3)]
        driver.copy_to_host(0, target, read.ctypes.data, read.nbytes)
    assert read.tolist() == given.tolist()
