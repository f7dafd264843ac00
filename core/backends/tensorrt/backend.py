"""The backend `tensorrt`: finds and checks the file of a plan, loads it, and runs batches on a GPU.

Source: TensorRT's Python API reference, IExecutionContext; docs/spec/framework-backends.md section 6.5.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from trident.core.backends.backend import BackendModel, LoadContext
from trident.core.backends.in_process import BoundTensor, Failures, Framework, InProcessModel, Runner
from trident.core.backends.model_files import (
    content_hint,
    field_of,
    origin_of,
    parameters_of,
    path_of_model,
    start_of,
    weight_bytes,
)
from trident.core.backends.tensorrt.engine import (
    EngineDescription,
    EngineError,
    EngineTensor,
    TensorRtPackage,
    TensorRtSettings,
    check_compatible,
    choose_profile,
    complete_config,
    describe,
    device_support,
    error_of,
    import_package,
    is_poison,
    load_failure_of,
    profile_indices,
)
from trident.core.backends.tensors import StagingBuffer
from trident.core.config.autocomplete import Watch, unwatched
from trident.core.config.placement import DeviceKind, Placement, placements
from trident.core.config.problem import ModelSignature
from trident.core.config.schema import ModelConfig
from trident.core.cuda import CudaDriver, CudaError, CudaStream, DeviceBlock, PinnedBuffers, compute_capability
from trident.core.errors import BackendFailed, ConfigInvalid, ModelLoadFailed, NotInstalled
from trident.core.inference.response import DevicePlace
from trident.core.inference.tensors import BY_NAME, Array, Shape, element_count
from trident.core.memo import Memo

__all__ = ["TensorRtBackend", "device_support"]

_log = logging.getLogger("trident.backends")

_FAILURES = Failures((CudaError, EngineError, RuntimeError), error_of, is_poison)

DEFAULT_FILE = "model.plan"
_ONNX = b"\x08"
_METADATA_AT_MOST = 1 << 20


class TensorRtBackend:
    """Implements Backend. Loader threads, several at once. Make it after the fork.

    What can be said without TensorRT and without a GPU is said first: the file is missing, is not a plan, was built by
    which version. `open_driver`, `import_package` and `capability_of` are given by tests.
    """

    supports_gpus = True

    def __init__(
        self,
        settings: Mapping[str, str],
        *,
        open_driver: Callable[[], CudaDriver | None] = CudaDriver.open,
        import_package: Callable[[TensorRtSettings], TensorRtPackage] = import_package,
        capability_of: Callable[[int], str] = compute_capability,
    ) -> None:
        self._settings = TensorRtSettings.read(settings)
        self._open_driver = open_driver
        self._import = import_package
        self._capability_of = capability_of
        self._opening = threading.Lock()
        self._opened_package: TensorRtPackage | None = None
        self._opened_driver: CudaDriver | None = None

    def inspect(self, path: Path, config: ModelConfig) -> ModelSignature | None:
        """None: `complete` does it all, because the profiles are needed as well."""
        return None

    def complete(self, path: Path, config: ModelConfig, watch: Watch = unwatched) -> None:
        device_id = _first_gpu(config)
        plan = self._plan(path, config, device_id)
        self._package(plan)
        self.check(config)
        # The engine is dropped again: only what it says is needed.
        complete_config(config, self._deserialize(plan, config, device_id).description)

    def check(self, config: ModelConfig) -> None:
        for placement in placements(config):
            if placement.kind is not DeviceKind.GPU:
                raise ConfigInvalid(
                    f"unable to load model '{config.name}', TensorRT backend supports only GPU device",
                    hint="use kind KIND_GPU where the server sees a GPU; on a CPU serve the model as ONNX",
                    field="instance_group",
                )
        for group in config.instance_group:
            if group.secondary_devices:
                device = group.secondary_devices[0].device_id
                raise ConfigInvalid(
                    f"unable to create TensorRT runtime with DLA Core ID: {device}, available number of DLA cores: 0",
                    hint="DLA cores are not used by this server: remove secondary_devices",
                    field="instance_group",
                )
        RunSettings.read(config)

    def weight_bytes(self, path: Path, config: ModelConfig) -> int:
        return weight_bytes(path, config, DEFAULT_FILE)

    def load(self, context: LoadContext) -> BackendModel:
        """Load one version: an engine for each device. Raises a ServerError."""
        config = context.config
        package = self._package(self._plan(context.path, config, _first_gpu(config)))
        self.check(config)
        driver = self._driver()

        def load(placement: Placement) -> LoadedEngine:
            plan = self._plan(context.path, config, placement.device_id)
            loaded = self._deserialize(plan, config, placement.device_id)
            check_compatible(config, loaded.description)
            return loaded

        def runner(loaded: LoadedEngine, placement: Placement) -> Runner:
            try:
                run = EngineRun(
                    loaded,
                    driver,
                    placement.device_id,
                    profile_indices(config, placement.profiles, loaded.description.profiles),
                    RunSettings.read(config),
                    instance=placement.name,
                    batching=config.max_batch_size > 0,
                )
            except (CudaError, EngineError) as exc:
                raise load_failure_of(exc, "unable to create TensorRT context", placement.device_id) from exc
            return Runner(run=run, run_bound=run.bound, on_buffer=run.pinned.replace, close=run.close)

        framework = Framework(
            load=load,
            runner=runner,
            failures=_FAILURES,
            provider=lambda loaded: f"TensorRT {package.version}",
            threads="none",
        )
        return InProcessModel(context, framework)

    def _plan(self, version: Path, config: ModelConfig, device_id: int) -> Path:
        """The plan for a GPU, which begins as one. Raises RepositoryUnavailable or ModelLoadFailed."""
        capability = self._capability_of(device_id) if config.cc_model_filenames else ""
        name = config.cc_model_filenames.get(capability, "") or config.default_model_filename or DEFAULT_FILE
        message = f"unable to find '{version / name}' for model instance '{config.name}'"
        path = path_of_model(version, config, name, message=message)
        if problem := plan_problem(path):
            raise ModelLoadFailed(
                f"unable to load plan file to auto complete config: {path}", hint=problem, model=config.name
            )
        return path

    def _deserialize(self, plan: Path, config: ModelConfig, device_id: int) -> LoadedEngine:
        package, driver = self._package(plan), self._driver()
        try:
            with driver.on(device_id):
                runtime = package.runtime()
                engine = package.deserialize(runtime, plan)
                return LoadedEngine(package, runtime, engine, describe(engine))
        except CudaError as exc:
            raise load_failure_of(exc, "unable to create TensorRT engine", device_id) from exc

    def _package(self, plan: Path) -> TensorRtPackage:
        """TensorRT, imported when the first plan is read. Raises NotInstalled, which says what built `plan`."""
        with self._opening:
            if self._opened_package is None:
                try:
                    self._opened_package = self._import(self._settings)
                except NotInstalled as error:
                    error.hint = f"{error.hint}; the plan was built by {origin_of(plan)}"
                    raise
            return self._opened_package

    def _driver(self) -> CudaDriver:
        """The driver, opened when the first plan is loaded: never before a fork. Raises ModelLoadFailed."""
        with self._opening:
            if self._opened_driver is None:
                self._opened_driver = self._open_driver()
            if self._opened_driver is None:
                raise ModelLoadFailed(
                    "unable to create TensorRT runtime: there is no GPU",
                    hint="this machine has no NVIDIA driver, or no GPU that the server may use",
                )
            return self._opened_driver


def _first_gpu(config: ModelConfig) -> int:
    return next((placement.device_id for placement in placements(config)), 0)


def plan_problem(path: Path) -> str | None:
    """Return why the file cannot be a plan, with the cure; None if it may be one. Reads its beginning only."""
    if hint := content_hint(path):
        return hint
    origin = origin_of(path) or ""
    if origin.startswith("TensorRT"):
        return None
    start = start_of(path, 5) or b""
    if start[4:] == b"{" and 0 < int.from_bytes(start[:4], "little") < _METADATA_AT_MOST:
        return (
            "the file has a text about the model before the plan, as exports of Ultralytics do: remove it, which is "
            "4 bytes with its length and the text itself"
        )
    if origin:
        return f"the file was written by {origin}, and is not a plan: build one with trtexec --saveEngine=model.plan"
    if path.suffix == ".onnx" or start[:1] == _ONNX:
        return "the file may be an ONNX model: build a plan with trtexec --onnx=FILE --saveEngine=model.plan"
    return "the file does not begin as plans of TensorRT 8 and later do: copy it again, or build it again"


# --- one batch, on the execution contexts, the stream and the memory of an instance

_NO_ARRAY: Array = np.empty(0, np.uint8)

_STRATEGIES = ("STATIC", "ON_PROFILE_CHANGE")
_STRATEGY = "execution_context_allocation_strategy"
_PRIORITIES = {1: 1, 2: -1}  # PRIORITY_MAX, PRIORITY_MIN


@dataclass(frozen=True, slots=True)
class RunSettings:
    """`priority` is that of the streams: 1 before others, -1 after them. `strategy` is TensorRT's name."""

    priority: int
    spins: bool
    strategy: str

    @classmethod
    def read(cls, config: ModelConfig) -> RunSettings:
        strategy = parameters_of(config).get(_STRATEGY, _STRATEGIES[0])
        if strategy not in _STRATEGIES:
            raise ConfigInvalid(
                f"Invalid value for '{_STRATEGY}': '{strategy}' for model instance '{config.name}'. Supported values "
                "are 'STATIC' and 'ON_PROFILE_CHANGE'.",
                field=field_of(_STRATEGY),
            )
        optimization = config.optimization
        return cls(_PRIORITIES.get(optimization.priority, 0), optimization.cuda.busy_wait_events, strategy)


def make_allocator(module: Any, memory: DeviceBlock) -> Any:
    """An `IOutputAllocator` of the package `module` on `memory`. TensorRT calls it while it begins an execution.

    Afterwards it has the `shape` of the output, its `address`, and the `error` with which memory could not be had.
    """

    class OutputAllocator(module.IOutputAllocator):  # type: ignore[misc]
        def __init__(self) -> None:
            module.IOutputAllocator.__init__(self)
            self.shape: tuple[int, ...] = ()
            self.address = 0
            self.error: CudaError | None = None

        def reallocate_output(self, tensor_name: str, current: int, size: int, alignment: int) -> int:
            try:
                self.address, self.error = memory.address(size), None
            except CudaError as error:
                self.address, self.error = 0, error
            return self.address

        def reallocate_output_async(
            self, tensor_name: str, current: int, size: int, alignment: int, stream: int
        ) -> int:
            return self.reallocate_output(tensor_name, current, size, alignment)

        def notify_shape(self, tensor_name: str, shape: Any) -> None:
            self.shape = tuple(shape)

    return OutputAllocator()


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


class _InputValue(NamedTuple):
    """The value of an input: an array of the host, or one at an address on the device, which is 0 without any."""

    name: str
    is_shape: bool
    shape: Shape
    array: Array
    address: int


class EngineRun:
    """A Run, and with `bound` a RunBound. The instance's thread, once it is made.

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
        self._held: Sequence[_InputValue] = ()
        self._chosen: Memo[tuple[object, ...], int] = Memo(256)
        self.pinned = PinnedBuffers(driver, device_id)
        self._memory = {tensor.name: DeviceBlock(driver) for tensor in (*self._inputs, *self._outputs)}
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
        results = self.bound(names, feed, options, {}, {}, 0)
        return [result for result in results if not isinstance(result, tuple)]

    def bound(
        self,
        names: Sequence[str],
        feed: Mapping[str, Array],
        options: Any,
        inputs: Mapping[str, BoundTensor],
        outputs: Mapping[str, DevicePlace],
        total: int,
    ) -> list[Array | Shape]:
        """See RunBound. An output is written to its place if the shapes of the inputs decide its own."""
        with self._driver.on(self._device_id):
            try:
                return self._run(names, feed, inputs, outputs)
            except BaseException:
                # Work that was begun may still read the inputs of this batch, which will belong to others.
                with suppress(CudaError):
                    self._stream.wait()
                raise

    def _run(
        self,
        names: Sequence[str],
        feed: Mapping[str, Array],
        inputs: Mapping[str, BoundTensor],
        outputs: Mapping[str, DevicePlace],
    ) -> list[Array | Shape]:
        self._loaded.package.forget_error()
        given = self._given(feed, inputs)
        values = {each.name: tuple(each.array.reshape(-1).tolist()) if each.is_shape else each.shape for each in given}
        key = tuple(values.values())
        profile = self._chosen.get(key)
        if profile is None:
            profile = choose_profile(self._loaded.description, self._profiles, values, self._instance)
            self._chosen[key] = profile
        held = self._contexts[profile]
        self._bind_inputs(held, given, key)
        written = self._bind_outputs(held, outputs)
        if not held.context.execute_async_v3(self._stream.handle):
            raise self._failed("execute_async_v3")
        rows = next((each.shape[0] for each in given if not each.is_shape and each.shape), 1)
        return self._read(held, names, written, rows)

    def close(self) -> None:
        """Free the memory and the stream. What a lost GPU does not give back ends with the process."""
        try:
            with self._driver.on(self._device_id):
                self._contexts.clear()
                for staging in self._staging.values():
                    staging.close()
                for memory in self._memory.values():
                    memory.close()
                self._stream.close()
        except CudaError as error:
            _log.warning("memory of '%s' on GPU %d was not freed: %s", self._instance, self._device_id, error)

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

    def _given(self, feed: Mapping[str, Array], inputs: Mapping[str, BoundTensor]) -> list[_InputValue]:
        """The value of each input: arrays are contiguous, shape tensors have the size of the batch first."""
        given: list[_InputValue] = []
        for tensor in self._inputs:
            if tensor.name in inputs:
                address, shape = inputs[tensor.name]
                given.append(_InputValue(tensor.name, False, shape, _NO_ARRAY, address))
                continue
            array = np.ascontiguousarray(feed[tensor.name])
            # That of a scalar in the engine has no dimensions.
            array = array if tensor.shape else array.reshape(())
            if tensor.is_shape and tensor.shape and self._batching:
                rows = next((len(feed[each.name]) for each in self._inputs if not each.is_shape and each.shape), 1)
                array = np.concatenate((np.array([rows], array.dtype), array.reshape(-1)))
            given.append(_InputValue(tensor.name, tensor.is_shape, array.shape, array, 0))
        return given

    def _bind_inputs(self, held: _Context, given: Sequence[_InputValue], key: tuple[object, ...]) -> None:
        context = held.context
        is_new = held.given != key
        held.given = None
        self._held = given  # until the stream has read them
        for name, is_shape, shape, array, address in given:
            if is_shape:
                self._set_address(held, name, array.ctypes.data)
                continue
            if is_new and not context.set_input_shape(name, shape):
                raise self._failed(f"set_input_shape of '{name}'")
            if not address:
                address = self._memory[name].address(array.nbytes)
                if array.nbytes:
                    self._stream.copy_to_device(address, array.ctypes.data, array.nbytes)
            self._set_address(held, name, address)
        if is_new and (missing := context.infer_shapes()):
            raise EngineError(f"TensorRT lacks the shapes or values of: {', '.join(missing)}")
        held.given = key

    def _bind_outputs(self, held: _Context, places: Mapping[str, DevicePlace]) -> set[str]:
        """Give each output its memory. Return the names of those that are written to memory of the caller."""
        written: set[str] = set()
        for tensor in self._outputs:
            name, shape = tensor.name, tuple(held.context.get_tensor_shape(tensor.name))
            place = places.get(name)
            if tensor.is_shape:
                self._set_address(held, name, self._staging[name].view(shape).ctypes.data)
            elif -1 not in shape:
                size = element_count(shape) * _dtype(tensor).itemsize
                if place is not None and size <= place.byte_size:
                    written.add(name)
                    self._set_address(held, name, place.address)
                else:
                    self._set_address(held, name, self._memory[name].address(size))
            elif name not in held.allocators:
                # Only the values of the inputs decide how large it becomes.
                allocator = make_allocator(self._loaded.package.module, self._memory[name])
                if not held.context.set_output_allocator(name, allocator):
                    raise self._failed(f"set_output_allocator of '{name}'")
                held.allocators[name] = allocator
        return written

    def _read(self, held: _Context, names: Sequence[str], written: set[str], rows: int) -> list[Array | Shape]:
        views: dict[str, Array] = {}
        shapes: dict[str, Shape] = {}
        for tensor in self._outputs:
            name = tensor.name
            shape = shapes[name] = tuple(held.context.get_tensor_shape(tensor.name))
            address = held.addresses.get(name, 0)
            if -1 in shape:
                allocator = held.allocators[name]
                if allocator.error is not None:
                    raise allocator.error
                shape, address = allocator.shape, allocator.address
            if name in written or name not in names:
                continue
            view = views[name] = self._staging[name].view(shape)
            if not tensor.is_shape and view.nbytes:
                self._stream.copy_to_host(view.ctypes.data, address, view.nbytes)
        self._stream.wait()
        self._held = ()
        by_name = {tensor.name: tensor for tensor in self._outputs}
        return [shapes[name] if name in written else self._result(by_name[name], views[name], rows) for name in names]

    def _result(self, tensor: EngineTensor, view: Array, rows: int) -> Array:
        """A copy. Each item of a batch gets the values of a shape tensor, whose first is the size of the batch."""
        if not (tensor.is_shape and self._batching and tensor.shape):
            return view.copy()
        if view[0] != rows:
            raise BackendFailed(
                f"failed to retrieve the output shape values from binding '{self._instance}'",
                hint=f"the first value of '{tensor.name}' is {view[0]}, and must be the size of the batch, {rows}",
            )
        return np.tile(view[1:], (rows, 1))

    def _set_address(self, held: _Context, name: str, address: int) -> None:
        if held.addresses.get(name) == address:
            return
        if not held.context.set_tensor_address(name, address):
            raise self._failed(f"set_tensor_address of '{name}'")
        held.addresses[name] = address

    def _failed(self, call: str) -> EngineError:
        return EngineError(self._loaded.package.last_error or f"{call} failed")


def _dtype(tensor: EngineTensor) -> np.dtype[Any]:
    return BY_NAME[tensor.datatype].dtype
