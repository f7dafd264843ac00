"""Runs batches on one instance's stream, execution contexts and memory.

Source: TensorRT's Python API reference, IExecutionContext; docs/spec/framework-backends.md section 6.5.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from core.backends.devices.pinned_memory import PinnedMemory
from core.backends.tensorrt.engine import EngineDescription, EngineTensor
from core.backends.tensorrt.errors import EngineError
from core.backends.tensorrt.output_allocator import make_allocator
from core.backends.tensorrt.package import TensorRtPackage
from core.backends.tensorrt.profiles import choose_profile
from core.backends.tensorrt.settings import RunSettings
from core.backends.tensors.staging_buffer import StagingBuffer
from core.cuda.device_memory import DeviceMemory
from core.cuda.driver import CudaDriver
from core.cuda.stream import CudaStream
from core.inference.tensors import BY_NAME, Array, Shape
from core.memo import Memo


@dataclass(frozen=True, slots=True)
class LoadedEngine:
    """An engine on one device, which all instances there share. `runtime` must live as long as it."""

    package: TensorRtPackage
    runtime: Any
    engine: Any
    description: EngineDescription


class _Context:
    """One execution context, for one profile. `given` are the shapes that it has now."""

    def __init__(self, context: Any) -> None:
        self.context = context
        self.given: tuple[object, ...] | None = None
        self.addresses: dict[str, int] = {}
        self.allocators: dict[str, Any] = {}


class EngineRun:
    """Implements Run. The instance's thread, once it is made.

    The copies of a batch and its execution are begun one after the other on the stream, and waited for once.
    `batching`: the first dimension of the tensors is the batch; TensorRT wants its size as the first value of a shape
    tensor. `pinned` pins the memory from which inputs are copied.
    """

    def __init__(
        self,
        loaded: LoadedEngine,
        driver: CudaDriver,
        device_id: int,
        profiles: Sequence[int],
        settings: RunSettings,
        *,
        instance: str,
        batching: bool,
    ) -> None:
        """Raises CudaError and EngineError."""
        self._loaded, self._driver, self._device_id = loaded, driver, device_id
        self._profiles, self._instance, self._batching = tuple(profiles), instance, batching
        self._inputs, self._outputs = loaded.description.inputs, loaded.description.outputs
        self._chosen: Memo[tuple[object, ...], int] = Memo(256)
        self.pinned = PinnedMemory(driver, device_id)
        self._memory = {tensor.name: DeviceMemory(driver) for tensor in (*self._inputs, *self._outputs)}
        self._staging = {
            tensor.name: StagingBuffer(f"output {tensor.name}", _dtype(tensor), self.pinned.replace)
            for tensor in self._outputs
        }
        with driver.on(device_id):
            self._stream = CudaStream(driver, priority=settings.priority, spins=settings.spins)
            try:
                self._contexts = {profile: self._context(profile, settings.strategy) for profile in self._profiles}
            except BaseException:
                self._stream.close()
                raise

    def __call__(self, names: list[str], feed: Mapping[str, Array], options: Any) -> list[Array]:
        """The outputs `names`, as arrays that no later run writes to. Raises CudaError, EngineError, ServerError."""
        with self._driver.on(self._device_id):
            self._loaded.package.forget_error()
            arrays = self._arrays(feed)
            given = {name: _values(array) if is_shape else array.shape for name, is_shape, array in arrays}
            key = tuple(given.values())
            profile = self._chosen.get(key)
            if profile is None:
                profile = choose_profile(self._loaded.description, self._profiles, given, self._instance)
                self._chosen[key] = profile
            held = self._contexts[profile]
            self._bind_inputs(held, arrays, key)
            self._bind_outputs(held)
            if not held.context.execute_async_v3(self._stream.handle):
                raise self._failed("execute_async_v3")
            return self._read(held, names)

    def close(self) -> None:
        """Free the memory and the stream. Raises CudaError."""
        with self._driver.on(self._device_id):
            self._contexts.clear()
            for staging in self._staging.values():
                staging.close()
            for memory in self._memory.values():
                memory.close()
            self._stream.close()

    def _context(self, profile: int, strategy: str) -> _Context:
        module = self._loaded.package.module
        chosen = getattr(module.ExecutionContextAllocationStrategy, strategy)
        context = self._loaded.engine.create_execution_context(chosen)
        if context is None:
            raise self._failed("create_execution_context")
        if not context.set_optimization_profile_async(profile, self._stream.handle):
            raise self._failed("set_optimization_profile_async")
        self._stream.wait()
        return _Context(context)

    def _arrays(self, feed: Mapping[str, Array]) -> list[tuple[str, bool, Array]]:
        """The input of each tensor, contiguous; shape tensors with the size of the batch in front."""
        arrays = [(tensor, np.ascontiguousarray(feed[tensor.name])) for tensor in self._inputs]
        if not self._batching or not any(tensor.is_shape and tensor.shape for tensor in self._inputs):
            return [(tensor.name, tensor.is_shape, array.reshape(_rank(tensor, array))) for tensor, array in arrays]
        rows = next((len(array) for tensor, array in arrays if not tensor.is_shape and array.ndim), 1)
        return [
            (
                tensor.name,
                tensor.is_shape,
                np.concatenate((np.array([rows], array.dtype), array.reshape(-1)))
                if tensor.is_shape and tensor.shape
                else array.reshape(_rank(tensor, array)),
            )
            for tensor, array in arrays
        ]

    def _bind_inputs(self, held: _Context, arrays: Sequence[tuple[str, bool, Array]], key: tuple[object, ...]) -> None:
        context = held.context
        is_new = held.given != key
        held.given = None
        self._held = arrays  # until the stream has read them
        for name, is_shape, array in arrays:
            if is_new and not is_shape and not context.set_input_shape(name, array.shape):
                raise self._failed(f"set_input_shape of '{name}'")
            if is_shape:
                self._set_address(held, name, array.ctypes.data)
                continue
            address = self._memory[name].address(array.nbytes)
            if array.nbytes:
                self._stream.copy_to_device(address, array.ctypes.data, array.nbytes)
            self._set_address(held, name, address)
        if is_new and (missing := context.infer_shapes()):
            raise EngineError(f"TensorRT lacks the shapes or values of: {', '.join(missing)}")
        held.given = key

    def _bind_outputs(self, held: _Context) -> None:
        for tensor in self._outputs:
            shape = self._shape(held, tensor)
            if tensor.is_shape:
                self._set_address(held, tensor.name, self._staging[tensor.name].view(shape).ctypes.data)
            elif -1 not in shape:
                self._set_address(held, tensor.name, self._memory[tensor.name].address(_size(tensor, shape)))
            elif tensor.name not in held.allocators:
                # Only the values of the inputs decide how large it becomes.
                allocator = make_allocator(self._loaded.package.module, self._memory[tensor.name])
                if not held.context.set_output_allocator(tensor.name, allocator):
                    raise self._failed(f"set_output_allocator of '{tensor.name}'")
                held.allocators[tensor.name] = allocator

    def _read(self, held: _Context, names: Sequence[str]) -> list[Array]:
        views: dict[str, Array] = {}
        for tensor in self._outputs:
            name = tensor.name
            shape = self._shape(held, tensor)
            address = held.addresses.get(name, 0)
            if -1 in shape:
                allocator = held.allocators[name]
                if allocator.error is not None:
                    raise allocator.error
                shape, address = allocator.shape, allocator.address
            view = views[name] = self._staging[name].view(shape)
            if not tensor.is_shape and view.nbytes:
                self._stream.copy_to_host(view.ctypes.data, address, view.nbytes)
        self._stream.wait()
        self._held = ()
        by_name = {tensor.name: tensor for tensor in self._outputs}
        return [self._result(by_name[name], views[name]) for name in names]

    def _result(self, tensor: EngineTensor, view: Array) -> Array:
        if tensor.is_shape and self._batching and tensor.shape:
            return view[1:].copy()
        return view.copy()

    def _shape(self, held: _Context, tensor: EngineTensor) -> Shape:
        return tuple(held.context.get_tensor_shape(tensor.name))

    def _set_address(self, held: _Context, name: str, address: int) -> None:
        if held.addresses.get(name) == address:
            return
        if not held.context.set_tensor_address(name, address):
            raise self._failed(f"set_tensor_address of '{name}'")
        held.addresses[name] = address

    def _failed(self, call: str) -> EngineError:
        return EngineError(self._loaded.package.last_error or f"{call} failed")


def _rank(tensor: EngineTensor, array: Array) -> Shape:
    """The shape of the array; that of a scalar in the engine has no dimensions."""
    return array.shape if tensor.shape else ()


def _values(array: Array) -> Shape:
    return tuple(array.reshape(-1).tolist())


def _dtype(tensor: EngineTensor) -> np.dtype[Any]:
    return BY_NAME[tensor.datatype].dtype


def _size(tensor: EngineTensor, shape: Shape) -> int:
    size = _dtype(tensor).itemsize
    for dim in shape:
        size *= dim
    return size
