"""Runs on ONNX Runtime's values, with a real session."""

from __future__ import annotations

import gc
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import numpy as np
import onnxruntime
import pytest

from tests.unit import onnx_models
from tests.unit.backend_serving import strings
from trident.core.backends.onnxruntime.runs import ValueRun, strings_work
from trident.core.errors import Unsupported
from trident.core.inference.tensors import BY_NAME, Array

BYTES = BY_NAME["BYTES"]


def bound(datatype: str, *, works: bool = True) -> ValueRun:
    model = onnx_models.identity(datatype).SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    row = BY_NAME[datatype]
    return ValueRun(session, onnxruntime.OrtValue, {"INPUT0": row}, {"OUTPUT0": row}, works)


def run(values: ValueRun, array: Array) -> Array:
    return values(["OUTPUT0"], {"INPUT0": array}, None)[0]


@pytest.mark.parametrize("datatype", [name for name in onnx_models.ELEMENT_TYPES if name != "BYTES"])
def test_every_datatype_passes_as_a_value(datatype: str) -> None:
    values = bound(datatype)
    dtype = BY_NAME[datatype].dtype
    for shape in ((1, 3), (4, 2), (1, 0)):
        array = np.arange(np.prod(shape)).astype(dtype).reshape(shape)
        result = run(values, array)
        assert result.tolist() == array.tolist()
        assert (result.dtype, result.shape) == (dtype, shape)


def test_results_outlive_the_next_run_and_the_session() -> None:
    values = bound("FP32")
    kept = [run(values, np.full((2, 1000), n, np.float32)) for n in range(5)]
    del values
    gc.collect()
    assert [(float(array.min()), float(array.max())) for array in kept] == [(n, n) for n in range(5)]


def test_concurrent_runs_share_no_result() -> None:
    model = onnx_models.identity("FP32").SerializeToString()
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    rows = dict.fromkeys(("INPUT0", "OUTPUT0"), BY_NAME["FP32"])

    def run_some(worker: int) -> list[tuple[float, Array]]:
        values = ValueRun(session, onnxruntime.OrtValue, rows, rows, True)
        marks = [float(100 * worker + n) for n in range(50)]
        # Results are kept until all threads are done: memory reused too early would hold the values of another run.
        return [(mark, run(values, np.full((1, 30_000), mark, np.float32))) for mark in marks]

    with ThreadPoolExecutor(4) as threads:
        kept = [pair for pairs in threads.map(run_some, range(4)) for pair in pairs]
    assert len(kept) == 200
    assert all((array == mark).all() for mark, array in kept)


def test_the_costly_public_run_is_not_used() -> None:
    class Refusing(onnxruntime.InferenceSession):  # type: ignore[misc]
        def run_with_iobinding(self, iobinding: Any, run_options: Any = None) -> None:
            raise AssertionError("the public method was called")

    session = Refusing(onnx_models.identity("FP32").SerializeToString(), providers=["CPUExecutionProvider"])
    rows = dict.fromkeys(("INPUT0", "OUTPUT0"), BY_NAME["FP32"])
    assert run(ValueRun(session, onnxruntime.OrtValue, rows, rows, True), np.ones((1, 3), np.float32)).tolist() == [
        [1] * 3
    ]


def test_a_failed_run_leaves_nothing_bound() -> None:
    model = onnx_models.picky().SerializeToString()
    options = onnxruntime.RunOptions()
    options.log_severity_level = 4
    session = onnxruntime.InferenceSession(model, providers=["CPUExecutionProvider"])
    inputs, outputs = {"INDEX": BY_NAME["INT64"]}, {"VALUE": BY_NAME["FP32"]}
    values = ValueRun(session, onnxruntime.OrtValue, inputs, outputs, True)
    with pytest.raises(Exception, match="out of data bounds"):
        values(["VALUE"], {"INDEX": np.array([[99]])}, options)
    assert values(["VALUE"], {"INDEX": np.array([[2]])}, options)[0].tolist() == [[20]]


def test_strings_of_any_bytes_pass_as_values() -> None:
    values = bound("BYTES")
    elements = [b"", b"\xff\0", b"a longer string than fits in place \xfe"]
    assert run(values, strings(*elements)).tolist() == [elements]


def test_onnx_runtime_reads_string_objects() -> None:
    assert strings_work(onnxruntime.OrtValue)


def test_another_string_layout_is_detected() -> None:
    class Elsewhere:
        """An OrtValue of a C++ library with another string layout."""

        @staticmethod
        def ortvalue_from_numpy_with_onnx_type(array: Array, number: int) -> Any:
            raise RuntimeError("item size 24")

    assert not strings_work(Elsewhere)


def test_strings_are_refused_if_the_layout_differs() -> None:
    with pytest.raises(Unsupported, match="not UTF-8 text cannot be passed to ONNX Runtime on this platform"):
        run(bound("BYTES", works=False), strings(b"\xff"))
