"""How an instance runs its session: on arrays, on text, on ONNX Runtime's values, or on tensors where they lie.

Source: ONNX Runtime's Python API reference, IOBinding.
"""

from __future__ import annotations

import ctypes
import logging
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt
import onnxruntime
from onnxruntime.capi import onnxruntime_pybind11_state as capi

from trident.core.backends.in_process import BoundTensor, Run, Runner, RunPlaced
from trident.core.backends.onnxruntime.providers import CPU
from trident.core.backends.onnxruntime.session import FAILURES, ender
from trident.core.config.placement import DeviceKind, Placement
from trident.core.config.spec import ModelSpec
from trident.core.cuda import CudaDriver, PinnedMemory
from trident.core.errors import Unsupported
from trident.core.inference.request import OutputMemory
from trident.core.inference.response import DevicePlace
from trident.core.inference.tensors import BY_NAME, BYTES, Array, Datatype, Shape, bytes_array, element_count

BF16 = BY_NAME["BF16"]
_CPU = "cpu"


def make_runner(
    session: Any,
    spec: ModelSpec,
    placement: Placement,
    run_options: Any,
    may_run_inline: bool,
    close: Callable[[], None] | None = None,
) -> Runner:
    """How an instance runs `session`: on arrays where that is possible, otherwise on ONNX Runtime's values."""
    scalars = frozenset(argument.name for argument in session.get_inputs() if not argument.shape)
    inputs = {name: tensor.datatype for name, tensor in spec.inputs.items()}
    outputs = {name: tensor.datatype for name, tensor in spec.outputs.items()}
    used = {*inputs.values(), *outputs.values()}
    ort_value = onnxruntime.OrtValue
    splits = BYTES in used and strings_work(ort_value)
    if placement.kind is DeviceKind.GPU:
        driver = CudaDriver.open()
        on_buffer = PinnedMemory(driver, placement.device_id).replace if driver is not None else None
        if BYTES not in used:
            pinned = pinned_memory(placement.device_id)
            on_device = DeviceRun(session, ort_value, spec, splits, "cuda", placement.device_id, pinned)
            return Runner(
                run=on_device,
                run_bound=on_device.bound,
                run_options=run_options,
                scalars=scalars,
                on_buffer=on_buffer,
                close=close,
                end=ender(run_options),
            )
    else:
        on_buffer = None
    # This is the inner method that the public `run` calls. The public one spends 3 µs on checks that the request
    # validation has already made, and falls back to the CPU silently and permanently when a GPU fails.
    run: Run = getattr(session, "_sess", session).run
    run_placed: RunPlaced | None = None
    if BYTES in used or BF16 in used:
        values = ValueRun(session, ort_value, inputs, outputs, splits)
        run = TextRun(run, values, splits=splits) if BF16 not in used else values
    elif session.get_providers()[0] == CPU:
        placed = PlacedRun(session, ort_value, run, spec)
        run_placed = placed if placed.knows_shapes else None
    return Runner(
        run=run,
        run_placed=run_placed,
        run_options=run_options,
        scalars=scalars,
        on_buffer=on_buffer,
        may_run_inline=may_run_inline,
        close=close,
        end=ender(run_options),
    )


STRING_SIZE = 32
_WORDS = STRING_SIZE // 8
# Strings that are converted at a time: a step in C holds the interpreter's lock, for which other threads wait.
BLOCK = 1 << 14


def to_text(array: Array) -> Array:
    """An object array of `bytes` as one of `str`. Raises UnicodeDecodeError for bytes that are not UTF-8."""
    return bytes_array([element.decode() for element in array.ravel().tolist()], array.shape)


def to_bytes(array: Array) -> Array:
    """An object array of `str` as one of `bytes`."""
    array = np.asarray(array)
    return bytes_array([element.encode() for element in array.ravel().tolist()], array.shape)


class StringObjects:
    """BYTES elements as C++ strings in memory that Python owns. ONNX Runtime must only read them.

    `array` has one string object for each element, in the tensor's shape. Keep this object alive while `array` is used.
    """

    def __init__(self, elements: Array) -> None:
        flat = elements.ravel()
        words: npt.NDArray[np.uint64] = np.zeros((flat.size, _WORDS), np.uint64)
        self._texts = [_lay_out(flat[at : at + BLOCK].tolist(), words[at : at + BLOCK]) for at in _blocks(flat.size)]
        self.array: Array = words.reshape(-1).view(f"V{STRING_SIZE}").reshape(elements.shape)


def _lay_out(strings: list[bytes], words: npt.NDArray[np.uint64]) -> Array:
    """Fill in the `words` of the string objects. Returns the text that they point to."""
    # C++ guarantees a NUL after each string.
    text = np.frombuffer(b"\0".join(strings) + b"\0", np.uint8)
    sizes = np.fromiter(map(len, strings), np.uint64, len(strings))
    ends = np.cumsum(sizes + np.uint64(1))
    words[:, 0] = np.uint64(text.ctypes.data) + ends - sizes - np.uint64(1)
    words[:, 1] = sizes
    words[:, 2] = sizes
    return text


def read_strings(address: int, shape: Shape) -> Array:
    """A copy of the BYTES tensor of `shape` whose C++ strings are at `address`."""
    count = int(np.prod(shape, dtype=np.int64))
    if count == 0:
        return bytes_array([], shape)
    array = np.empty(count, object)
    for at in _blocks(count):
        size = min(BLOCK, count - at)
        words: Sequence[int] = (ctypes.c_uint64 * (_WORDS * size)).from_address(address + STRING_SIZE * at)[:]
        pairs = zip(words[::_WORDS], words[1::_WORDS], strict=True)
        array[at : at + size] = [ctypes.string_at(pointer, length) for pointer, length in pairs]
    return array.reshape(shape)


def _blocks(count: int) -> range:
    return range(0, count, BLOCK)


class ValueRun:
    """Runs `session` on ONNX Runtime's values, through a binding that belongs to one instance. One thread at a time.

    Three cases need it: BF16, which numpy does not have; BYTES that are not UTF-8; and tensors that have a place. All
    other runs use arrays, which is faster. `inputs` and `outputs` map names to datatypes; other inputs have that of
    their array. `strings_work` tells whether BYTES may be passed as C++ objects: the result of the function of that
    name. `device` is where tensors have their places, by ONNX Runtime's name: cpu or cuda. `memory` is where the other
    outputs are, which the host must be able to read.
    """

    def __init__(
        self,
        session: Any,
        ort_value: Any,
        inputs: Mapping[str, Datatype],
        outputs: Mapping[str, Datatype],
        strings_work: bool,
        device: str = _CPU,
        device_id: int = 0,
        memory: Any = None,
    ) -> None:
        self._ort_value = ort_value
        self._inputs = inputs
        self._outputs = outputs
        self._strings_work = strings_work
        self._device, self._device_id = device, device_id
        self._memory = memory
        self._binding = session.io_binding()
        # This is the inner method that the session's public one calls. The public one first asks the run options for a
        # WebGPU graph, and the answer "none" is a C++ exception: 94 µs for a run of 4 µs (ONNX Runtime 1.31).
        self._run = getattr(session, "_sess", session).run_with_iobinding
        self._bound = getattr(self._binding, "_iobinding", self._binding)

    def __call__(self, names: list[str], feed: Mapping[str, Array], run_options: Any) -> list[Array]:
        """The outputs `names` for `feed`, as arrays that no later run writes to.

        Raises what ONNX Runtime raises, and Unsupported for BYTES that cannot be passed.
        """
        return [result for result in self.run_at(names, feed, run_options, {}, {}) if not isinstance(result, tuple)]

    def run_at(
        self,
        names: list[str],
        feed: Mapping[str, Array],
        run_options: Any,
        inputs: Mapping[str, BoundTensor],
        places: Mapping[str, BoundTensor],
    ) -> list[Array | Shape]:
        """The outputs `names`: an array, or the shape of one that is written to its place in `places`.

        `inputs` are those that are not in `feed`.
        """
        binding = self._binding
        owners: list[StringObjects] = []
        try:
            for name, array in feed.items():
                # `bind_cpu_input` would refer to the last array until the next run: to the memory of a front end.
                binding.bind_ortvalue_input(name, self._value(array, self._inputs.get(name), owners))
            for name, (address, shape) in inputs.items():
                kind = _element_type(self._inputs[name])
                binding.bind_input(name, self._device, self._device_id, kind, list(shape), address)
            for name in names:
                if name in places:
                    address, shape = places[name]
                    kind = _element_type(self._outputs[name])
                    binding.bind_output(name, self._device, self._device_id, kind, list(shape), address)
                elif self._memory is None:
                    # ONNX Runtime allocates new memory for every run, because responses may outlive the next run.
                    binding.bind_output(name, _CPU)
                else:
                    self._bound.bind_output(name, self._memory)
            self._run(self._bound, run_options)
            if places or self._memory is not None:
                binding.synchronize_outputs()
            values = binding.get_outputs()
            return [
                places[name].shape if name in places else self._read(value, self._outputs[name])
                for name, value in zip(names, values, strict=True)
            ]
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
        if self._memory is not None:
            return np.asarray(_HostMemory(value, datatype.dtype))
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


# Text is faster, but its conversion is one step in C, during which no other thread runs: 30 milliseconds for so many.
MANY = 1 << 18


class TextRun:
    """Runs a session with BYTES inputs or outputs: as text if they are UTF-8, otherwise by `values`.

    `splits`: `values` takes BYTES, in steps that are short; then very many go to it, too.
    """

    def __init__(self, run: Run, values: Run, *, splits: bool, many: int = MANY) -> None:
        self._run = run
        self._values = values
        self._most = many if splits else None

    def __call__(self, names: list[str], feed: Mapping[str, Array], run_options: Any) -> Sequence[Array]:
        if self._most is not None and any(a.dtype.hasobject and a.size > self._most for a in feed.values()):
            return self._values(names, feed, run_options)
        try:
            texts = {name: to_text(array) if array.dtype.hasobject else array for name, array in feed.items()}
            results = self._run(names, texts, run_options)
        except UnicodeDecodeError:
            # An input is not UTF-8 or, after the run, an output.
            return self._values(names, feed, run_options)
        return [to_bytes(result) if result.dtype.hasobject else result for result in results]


_log = logging.getLogger("trident.backends")

# To bind the tensors of a run takes 20 µs, to copy so many bytes 50.
_LARGE = 1 << 19

# A dimension: its size, or the input and the axis that have the same name in the graph.
_Dimension = int | tuple[str, int]


class PlacedRun:
    """Runs `session` on the CPU for one instance. One thread at a time. `run` is that of the session.

    The graph has to say the shapes of the outputs: by numbers, or by the names that dimensions of its inputs have. If
    what it says proves wrong, outputs are copied from then on.
    """

    def __init__(self, session: Any, ort_value: Any, run: Run, spec: ModelSpec) -> None:
        axes = {
            dim: (argument.name, axis)
            for argument in session.get_inputs()
            for axis, dim in enumerate(argument.shape)
            if isinstance(dim, str)
        }
        self._run = run
        self._model = spec.name
        datatypes = {name: output.datatype for name, output in spec.outputs.items()}
        self._dtypes = {name: datatype.dtype for name, datatype in datatypes.items()}
        self._values = ValueRun(session, ort_value, {}, datatypes, False)
        self._dimensions: dict[str, list[_Dimension]] = {}
        for argument in session.get_outputs():
            dims = [dim if isinstance(dim, int) else axes.get(dim) for dim in argument.shape]
            known = [dim for dim in dims if dim is not None]
            if argument.name in self._dtypes and len(known) == len(dims):
                self._dimensions[argument.name] = known

    @property
    def knows_shapes(self) -> bool:
        """Whether there is an output that can be placed."""
        return bool(self._dimensions)

    def __call__(
        self, names: list[str], feed: Mapping[str, Array], run_options: Any, memory: OutputMemory
    ) -> Sequence[Array]:
        """As `run`, with large outputs in `memory` as far as there is some. Raises what ONNX Runtime raises."""
        placed = self._placed(names, feed, memory)
        if not placed:
            return self._run(names, feed, run_options)
        places = {name: BoundTensor(_address(array), array.shape) for name, array in placed.items()}
        try:
            results = self._values.run_at(names, feed, run_options, {}, places)
        except FAILURES as error:
            # The plain run tells whether it fails for another reason.
            answer = self._run(names, feed, run_options)
            self._dimensions = {}
            _log.info("the outputs of '%s' do not have the shapes that the graph says: %s", self._model, error)
            return answer
        return [
            placed[name] if isinstance(result, tuple) else result for name, result in zip(names, results, strict=True)
        ]

    def _placed(self, names: list[str], feed: Mapping[str, Array], memory: OutputMemory) -> dict[str, Array]:
        """Arrays for the large outputs."""
        placed: dict[str, Array] = {}
        for name in names:
            dimensions = self._dimensions.get(name)
            if dimensions is None:
                continue
            shape = tuple([dim if isinstance(dim, int) else feed[dim[0]].shape[dim[1]] for dim in dimensions])
            dtype = self._dtypes[name]
            size = element_count(shape) * dtype.itemsize
            if size >= _LARGE:
                piece = memory(size)
                if piece is not None:
                    placed[name] = piece.view(dtype).reshape(shape)
        return placed


def _address(array: Array) -> int:
    # Of `array.ctypes.data` a reference would stay.
    address: int = array.__array_interface__["data"][0]
    return address


# NVIDIA's number as a vendor of PCI devices.
_NVIDIA = 0x10DE


def pinned_memory(device_id: int) -> Any:
    """The pinned memory of the host from which ONNX Runtime copies to and from a GPU, as one of its devices."""
    return capi.OrtDevice(capi.OrtDevice.cuda(), capi.OrtDeviceMemoryType.HOST_ACCESSIBLE.value, _NVIDIA, device_id)


class _HostMemory:
    """The memory of one of ONNX Runtime's values, as numpy's array interface. An array of it keeps the value alive."""

    def __init__(self, value: Any, dtype: np.dtype[Any]) -> None:
        self.value = value
        place = value.data_ptr(), False
        self.__array_interface__ = {"shape": tuple(value.shape()), "typestr": dtype.str, "data": place, "version": 3}


class DeviceRun(ValueRun):
    """A ValueRun whose `bound` is a RunBound, for a model that `may_bind`.

    Outputs without a place are in `memory`, pinned memory: copies to it are faster, and the host does not wait for each
    of them. Should ONNX Runtime have none of it, they are in memory of its own choice from the first run on.
    """

    def __init__(
        self,
        session: Any,
        ort_value: Any,
        spec: ModelSpec,
        strings_work: bool,
        device: str,
        device_id: int,
        memory: Any = None,
    ):
        inputs = {name: tensor.datatype for name, tensor in spec.inputs.items()}
        outputs = {name: tensor.datatype for name, tensor in spec.outputs.items()}
        super().__init__(session, ort_value, inputs, outputs, strings_work, device, device_id, memory)
        self._model = spec.name
        self._is_proven = memory is None
        self._batching = spec.max_batch_size > 0
        # ONNX Runtime must be told the shape of an output that it is to write somewhere.
        self._fixed = {name: tensor.dims for name, tensor in spec.outputs.items() if -1 not in tensor.dims}

    def run_at(
        self,
        names: list[str],
        feed: Mapping[str, Array],
        run_options: Any,
        inputs: Mapping[str, BoundTensor],
        places: Mapping[str, BoundTensor],
    ) -> list[Array | Shape]:
        if self._is_proven:
            return super().run_at(names, feed, run_options, inputs, places)
        try:
            results = super().run_at(names, feed, run_options, inputs, places)
        except FAILURES as error:
            pinned, self._memory = self._memory, None
            try:
                results = super().run_at(names, feed, run_options, inputs, places)
            except FAILURES:
                # It has another reason.
                self._memory = pinned
                raise
            _log.info("the outputs of '%s' are not in pinned memory: %s", self._model, error)
        self._is_proven = True
        return results

    def bound(
        self,
        names: list[str],
        feed: Mapping[str, Array],
        options: Any,
        inputs: Mapping[str, BoundTensor],
        outputs: Mapping[str, DevicePlace],
        total: int,
    ) -> list[Array | Shape]:
        """See RunBound. An output is written to its place if the configuration says its shape."""
        places: dict[str, BoundTensor] = {}
        for name in names:
            place, dims = outputs.get(name), self._fixed.get(name)
            if place is None or dims is None:
                continue
            shape = (total, *dims) if self._batching else dims
            if element_count(shape) * self._outputs[name].size <= place.byte_size:
                places[name] = BoundTensor(place.address, shape)
        return self.run_at(names, feed, options, inputs, places)


def _element_type(datatype: Datatype) -> Any:
    return BF16.onnx_number if datatype is BF16 else datatype.dtype.type
