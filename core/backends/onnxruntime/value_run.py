"""Runs a session on ONNX Runtime's own values, where numpy arrays do not suffice.

Three cases need it: BF16, which numpy does not have; BYTES that are not UTF-8; and GPUs, where the results are bound
to host memory that ONNX Runtime allocates. All other runs use arrays, which is faster.
"""

from __future__ import annotations

import ctypes
from collections.abc import Mapping
from typing import Any

import numpy as np

from core.backends.onnxruntime.strings import StringObjects, read_strings
from core.errors import Unsupported
from core.inference.tensors import BY_NAME, BYTES, Array, Datatype, Shape, bytes_array, element_count

BF16 = BY_NAME["BF16"]


class ValueRun:
    """Runs `session` on values, through a binding that belongs to one instance. One thread at a time.

    `inputs` and `outputs` map names to datatypes; other inputs have the datatype of their array. `strings_work` tells
    whether BYTES may be passed as C++ objects: the result of the function of that name.
    """

    def __init__(
        self,
        session: Any,
        ort_value: Any,
        inputs: Mapping[str, Datatype],
        outputs: Mapping[str, Datatype],
        strings_work: bool,
    ) -> None:
        self._ort_value = ort_value
        self._inputs = inputs
        self._outputs = outputs
        self._strings_work = strings_work
        self._binding = session.io_binding()
        # This is the inner method that the session's public one calls. The public one first asks the run options for a
        # WebGPU graph, and the answer "none" is a C++ exception: 94 µs for a run of 4 µs (ONNX Runtime 1.31).
        self._run = getattr(session, "_sess", session).run_with_iobinding
        self._bound = getattr(self._binding, "_iobinding", self._binding)

    def __call__(self, names: list[str], feed: Mapping[str, Array], run_options: Any) -> list[Array]:
        """The outputs `names` for `feed`, as arrays that no later run writes to.

        Raises what ONNX Runtime raises, and Unsupported for BYTES that cannot be passed.
        """
        binding = self._binding
        owners: list[StringObjects] = []
        try:
            for name, array in feed.items():
                binding.bind_ortvalue_input(name, self._value(array, self._inputs.get(name), owners))
            for name in names:
                # ONNX Runtime allocates new memory for every run, because responses may outlive the next run.
                binding.bind_output(name, "cpu")
            self._run(self._bound, run_options)
            values = binding.get_outputs()
            return [self._read(value, self._outputs[name]) for name, value in zip(names, values, strict=True)]
        finally:
            # The next run would write to outputs that are still bound.
            binding.clear_binding_inputs()
            binding.clear_binding_outputs()

    def _value(self, array: Array, datatype: Datatype | None, owners: list[StringObjects]) -> Any:
        if datatype is BYTES:
            if not self._strings_work:
                raise not_text()
            strings = StringObjects(array)
            owners.append(strings)
            return self._ort_value.ortvalue_from_numpy_with_onnx_type(strings.array, BYTES.onnx_number)
        if datatype is BF16:
            return self._ort_value.ortvalue_from_numpy_with_onnx_type(array, BF16.onnx_number)
        return self._ort_value.ortvalue_from_numpy(array)

    def _read(self, value: Any, datatype: Datatype) -> Array:
        if datatype is BYTES:
            if not self._strings_work:
                raise not_text()
            return read_strings(value.data_ptr(), tuple(value.shape()))
        if datatype is BF16:
            return _read_memory(value.data_ptr(), tuple(value.shape()), BF16.dtype)
        # The array refers to the value's memory and keeps it alive.
        array: Array = value.numpy()
        return array


def strings_work(ort_value: Any) -> bool:
    """Whether ONNX Runtime reads the C++ strings that StringObjects lays out. Ask before relying on it."""
    samples = [b"", b"short", b"a string that is longer than any in-place buffer \0 with a NUL"]
    strings = StringObjects(bytes_array(samples, (3,)))
    try:
        value = ort_value.ortvalue_from_numpy_with_onnx_type(strings.array, BYTES.onnx_number)
        read: list[str] = value.numpy().tolist()
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return False
    return [element.encode() for element in read] == samples


def not_text() -> Unsupported:
    """The error for BYTES that can be passed neither as text nor as C++ strings."""
    return Unsupported(
        "BYTES elements that are not UTF-8 text cannot be passed to ONNX Runtime on this platform",
        hint="its C++ library lays strings out in another way than the one known here",
    )


def _read_memory(address: int, shape: Shape, dtype: np.dtype[Any]) -> Array:
    """A copy of the array of `shape` at `address`."""
    size = element_count(shape) * dtype.itemsize
    return np.ndarray(shape, dtype, ctypes.string_at(address, size) if size else b"")
