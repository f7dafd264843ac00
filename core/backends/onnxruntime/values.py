"""Running a session on ONNX Runtime's own values, for what arrays cannot say.

Three things need it: BF16, which numpy does not have; BYTES that are not UTF-8; and GPUs, where the results are bound
to host memory that ONNX Runtime allocates for them. Everything else runs on arrays, which is quicker.
`OrtValue` is passed in: only the module `onnxruntime` imports the package of that name.
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
    """One instance's way to run `session` on values: a binding of its own. One thread at a time.

    `inputs` and `outputs` give datatypes; inputs that are not in it are of the array's own. `strings_work` says whether
    BYTES may be passed as C++ objects (see the function of that name).
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
        # What the session's public method calls. That one asks every run's options for a WebGPU graph first, and the
        # answer "none" is a C++ exception: 94 µs for a run of 4 µs (ONNX Runtime 1.31).
        self._run = getattr(session, "_sess", session).run_with_iobinding
        self._bound = getattr(self._binding, "_iobinding", self._binding)

    def __call__(self, names: list[str], feed: Mapping[str, Array], run_options: Any) -> list[Array]:
        """The results of the outputs `names` for `feed`, as arrays that nothing writes to again.

        Raises what ONNX Runtime raises, and Unsupported for BYTES that cannot be passed.
        """
        binding = self._binding
        owners: list[StringObjects] = []
        try:
            for name, array in feed.items():
                binding.bind_ortvalue_input(name, self._value(array, self._inputs.get(name), owners))
            for name in names:
                # Memory is ONNX Runtime's to allocate, anew for every run: the answers outlive the next run.
                binding.bind_output(name, "cpu")
            self._run(self._bound, run_options)
            values = binding.get_outputs()
            return [self._read(value, self._outputs[name]) for name, value in zip(names, values, strict=True)]
        finally:
            # Outputs left bound would be written to by the next run.
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
        # numpy() refers to the value's memory and keeps it.
        array: Array = value.numpy()
        return array


def strings_work(ort_value: Any) -> bool:
    """Whether ONNX Runtime reads C++ strings that were laid out here: asked once, before anything relies on it."""
    samples = [b"", b"short", b"a string that is longer than any in-place buffer \0 with a NUL"]
    strings = StringObjects(bytes_array(samples, (3,)))
    try:
        value = ort_value.ortvalue_from_numpy_with_onnx_type(strings.array, BYTES.onnx_number)
        read: list[str] = value.numpy().tolist()
    except (AttributeError, RuntimeError, TypeError, ValueError):
        return False
    return [element.encode() for element in read] == samples


def not_text() -> Unsupported:
    return Unsupported(
        "BYTES elements that are not UTF-8 text cannot be passed to ONNX Runtime on this platform",
        hint="its C++ library lays strings out in another way than the one known here",
    )


def _read_memory(address: int, shape: Shape, dtype: np.dtype[Any]) -> Array:
    """A copy of the array of `shape` that lies at `address`."""
    size = element_count(shape) * dtype.itemsize
    return np.ndarray(shape, dtype, ctypes.string_at(address, size) if size else b"")
