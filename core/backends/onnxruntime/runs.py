"""How an instance runs its session: on arrays, on text, on ONNX Runtime's values, or on tensors where they lie.

Source: ONNX Runtime's Python API reference, IOBinding.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np
from onnxruntime import OrtValue
from onnxruntime.capi import onnxruntime_pybind11_state as capi

from trident.core.backends.in_process import BoundTensor, Run, RunBound, Runner
from trident.core.backends.onnxruntime.session import FAILURES, ender
from trident.core.backends.tensors import OnBuffer
from trident.core.config.placement import DeviceKind, Placement
from trident.core.config.spec import ModelSpec
from trident.core.cuda import CudaDriver, PinnedBuffers
from trident.core.errors import BackendFailed, InvalidRequest, Unsupported
from trident.core.inference.response import DevicePlace
from trident.core.inference.tensors import BY_NAME, BYTES, Array, Datatype, Shape, bytes_array, element_count

_log = logging.getLogger("trident.backends")

BF16 = BY_NAME["BF16"]
# NVIDIA's number as a vendor of PCI devices.
_NVIDIA = 0x10DE


def pinned_memory(device_id: int) -> Any:
    """The pinned memory of the host from which ONNX Runtime copies to and from a GPU, as one of its devices."""
    return capi.OrtDevice(capi.OrtDevice.cuda(), capi.OrtDeviceMemoryType.HOST_ACCESSIBLE.value, _NVIDIA, device_id)


def make_runner(
    session: Any,
    spec: ModelSpec,
    placement: Placement,
    run_options: Any,
    may_run_inline: bool,
    close: Callable[[], object] | None = None,
) -> Runner:
    """Return how an instance runs `session`: on arrays where that is possible, otherwise on ONNX Runtime's values.

    Raises Unsupported for datatypes that its Python binding cannot pass together.
    """
    inputs = {tensor.datatype for tensor in spec.inputs.values()}
    used = inputs | {tensor.datatype for tensor in spec.outputs.values()}
    run: Run = session.run
    run_bound: RunBound | None = None
    on_buffer: OnBuffer | None = None
    if placement.kind is DeviceKind.GPU:
        driver = CudaDriver.open()
        on_buffer = PinnedBuffers(driver, placement.device_id).replace if driver is not None else None
        if BYTES not in used:
            on_device = ValueRun(session, spec, "cuda", placement.device_id, pinned_memory(placement.device_id))
            run, run_bound = on_device, on_device.bound
    if BF16 in used and run_bound is None:
        if BYTES in inputs:
            raise Unsupported(
                f"model '{spec.name}' has inputs of datatype BYTES beside tensors of BF16, which ONNX Runtime's Python "
                "binding cannot pass together",
                hint="cast BF16 to FP32 at the inputs and outputs of the graph",
                model=spec.name,
            )
        run = ValueRun(session, spec)
    return Runner(
        run=text_run(run, spec.name) if BYTES in used else run,
        run_bound=run_bound,
        run_options=run_options,
        scalars=frozenset(argument.name for argument in session.get_inputs() if not argument.shape),
        on_buffer=on_buffer,
        may_run_inline=may_run_inline,
        close=close,
        end=ender(run_options),
    )


def text_run(run: Run, model: str) -> Run:
    """Return `run` for a model with BYTES, whose elements ONNX Runtime's binding takes and returns as `str`.

    The binding would turn `bytes` into the text of their `repr`.
    """

    def run_text(names: list[str], feed: Mapping[str, Array], run_options: Any) -> list[Array]:
        texts = {name: _to_text(name, array, model) if array.dtype.hasobject else array for name, array in feed.items()}
        try:
            results = run(names, texts, run_options)
        except UnicodeDecodeError as error:
            raise BackendFailed(
                f"an output of model '{model}' has strings that are not UTF-8, which ONNX Runtime's Python binding "
                f"cannot return: {error}",
                hint=_AS_NUMBERS,
                model=model,
            ) from error
        return [
            bytes_array([text.encode() for text in result.ravel().tolist()], result.shape)
            if result.dtype.hasobject
            else result
            for result in results
        ]

    return run_text


_AS_NUMBERS = "declare the tensor as UINT8 in the graph, or encode what it holds as text, such as base64"


def _to_text(name: str, array: Array, model: str) -> Array:
    try:
        return bytes_array([element.decode() for element in array.ravel().tolist()], array.shape)
    except UnicodeDecodeError as error:
        raise InvalidRequest(
            f"input '{name}' of model '{model}' has strings that are not UTF-8, which ONNX Runtime's Python binding "
            f"does not take: {error}",
            hint=_AS_NUMBERS,
            model=model,
        ) from error


class ValueRun:
    """A Run on ONNX Runtime's values, through a binding that belongs to one instance. One thread at a time.

    BF16 needs it, which numpy does not have, and `bound`, a RunBound for a model that `may_bind`. All other runs use
    arrays, which is faster. `device` is where bound tensors are, by ONNX Runtime's name: cpu or cuda. `memory` is where
    the other outputs are, such as pinned memory: copies to it are faster, and the host does not wait for each of them.
    Should ONNX Runtime have none of it, they are in memory of its own choice from the first run on.
    """

    def __init__(
        self, session: Any, spec: ModelSpec, device: str = "cpu", device_id: int = 0, memory: Any = None
    ) -> None:
        self._inputs = {name: tensor.datatype for name, tensor in spec.inputs.items()}
        self._outputs = {name: tensor.datatype for name, tensor in spec.outputs.items()}
        self._device, self._device_id = device, device_id
        self._memory = memory
        self._is_proven = memory is None
        self._binding = session.io_binding()
        self._run_binding = session.run_with_iobinding
        self._model = spec.name
        self._batching = spec.max_batch_size > 0
        # ONNX Runtime must be told the shape of an output that it is to write somewhere.
        self._fixed = {name: tensor.dims for name, tensor in spec.outputs.items() if -1 not in tensor.dims}

    def __call__(self, names: list[str], feed: Mapping[str, Array], run_options: Any) -> list[Array]:
        """Return the outputs `names` for `feed`, as arrays that no later run writes to.

        Raises what ONNX Runtime raises.
        """
        return [result for result in self._run(names, feed, run_options, {}, {}) if not isinstance(result, tuple)]

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
        return self._run(names, feed, options, inputs, places)

    def _run(
        self,
        names: list[str],
        feed: Mapping[str, Array],
        options: Any,
        inputs: Mapping[str, BoundTensor],
        places: Mapping[str, BoundTensor],
    ) -> list[Array | Shape]:
        if self._is_proven:
            return self._run_once(names, feed, options, inputs, places)
        try:
            results = self._run_once(names, feed, options, inputs, places)
        except FAILURES as error:
            pinned, self._memory = self._memory, None
            try:
                results = self._run_once(names, feed, options, inputs, places)
            except FAILURES:
                # It has another reason.
                self._memory = pinned
                raise
            _log.info("the outputs of '%s' are not in pinned memory: %s", self._model, error)
        self._is_proven = True
        return results

    def _run_once(
        self,
        names: list[str],
        feed: Mapping[str, Array],
        options: Any,
        inputs: Mapping[str, BoundTensor],
        places: Mapping[str, BoundTensor],
    ) -> list[Array | Shape]:
        """Return the outputs `names`: an array, or the shape of one that is written to its place in `places`."""
        binding = self._binding
        try:
            for name, array in feed.items():
                # `bind_cpu_input` would refer to the last array until the next run: to the memory of a front end.
                if self._inputs.get(name) is BF16:
                    value = OrtValue.ortvalue_from_numpy_with_onnx_type(array, BF16.onnx_number)
                else:
                    value = OrtValue.ortvalue_from_numpy(array)
                binding.bind_ortvalue_input(name, value)
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
                    binding.bind_output(name)
                else:
                    # The public method does not know pinned memory.
                    binding._iobinding.bind_output(name, self._memory)
            self._run_binding(binding, options)
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

    def _read(self, value: Any, datatype: Datatype) -> Array:
        """Return an array that refers to the value's memory, and keeps it alive; one of `str` is a copy."""
        if datatype is BF16 or self._memory is not None:
            return np.asarray(_HostMemory(value, datatype.dtype))
        array: Array = value.numpy()
        return array


class _HostMemory:
    """The memory of one of ONNX Runtime's values, as numpy's array interface. An array of it keeps the value alive."""

    def __init__(self, value: Any, dtype: np.dtype[Any]) -> None:
        self.value = value
        place = value.data_ptr(), False
        self.__array_interface__ = {"shape": tuple(value.shape()), "typestr": dtype.str, "data": place, "version": 3}


def _element_type(datatype: Datatype) -> Any:
    return BF16.onnx_number if datatype is BF16 else datatype.dtype.type
