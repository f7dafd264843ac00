"""An instance on a GPU whose model reads and writes tensors where they lie in the memory of that GPU.

A client has them there by CUDA shared memory. Batches of several requests, and tensors on other GPUs, are copied
through the host as all others.
Source: docs/spec/shared-memory.md section 7.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from time import monotonic_ns
from types import MappingProxyType
from typing import Any, Generic, NamedTuple, Protocol, TypeVar

from trident.core.backends.backend import BackendInstance, BucketedExecution, Execution
from trident.core.backends.tensors.gather import Gatherer, OnBuffer, PaddingGatherer, batch_inputs, batch_total
from trident.core.backends.tensors.split import PaddedSplitter, Splitter, scattered_outputs
from trident.core.config.placement import DeviceKind, Placement
from trident.core.config.schema import ModelConfig
from trident.core.config.spec import BucketSpec, InputSpec, ModelSpec, OutputSpec
from trident.core.errors import ServerError
from trident.core.inference.request import InferenceRequest, OutputMemory
from trident.core.inference.response import DevicePlace, OutputTensor, PlacedOutput, RegionInput, RegionRequest
from trident.core.inference.streaming import ResponseSender
from trident.core.inference.tensors import BYTES, Array, Shape

_log = logging.getLogger("trident.backends")
_NO_NAMES: Mapping[str, Collection[int]] = MappingProxyType({})


def length_axes(
    spec: ModelSpec, buckets: BucketSpec, named: Mapping[str, Collection[int]] = _NO_NAMES
) -> dict[str, tuple[int, ...]]:
    """The dimensions of each output that are as long as the padded inputs, the batch dimension counted.

    All variable dimensions of the outputs that the configuration names, and of the others those in `named`, of which
    the graph says so. Other variable dimensions are logged, because they stay as the model makes them.
    """
    found: dict[str, tuple[int, ...]] = {}
    if not buckets.lengths:
        return found
    batch_axes = 1 if spec.max_batch_size > 0 else 0
    for name, output in spec.outputs.items():
        dims = output.dims if output.model_dims is None else output.model_dims
        variable = tuple(batch_axes + at for at, dim in enumerate(dims) if dim == -1)
        axes = variable
        if name not in buckets.outputs:
            axes = tuple(axis for axis in variable if axis in named.get(name, ()))
            if axes != variable:
                _log.warning(
                    "output '%s' of model '%s' has variable dimensions of which the graph does not say that they are "
                    "as long as the inputs: they are not cut back to the length of a request; if they should be, name "
                    "the output in LENGTH_OUTPUTS",
                    name,
                    spec.name,
                )
        if axes:
            found[name] = axes
    return found


Weights = TypeVar("Weights")


class DeviceWeights(Generic[Weights]):
    """Loads the weights for a device when the first instance on it is made. Loader threads, several at once.

    `load` loads them onto the device of a placement, and raises a ServerError. `loaded` are those that are there, by
    device (`Placement.device`).
    """

    def __init__(self, load: Callable[[Placement], Weights], loaded: Mapping[str, Weights]) -> None:
        self._load = load
        # The dictionary is read without the lock, so it is replaced under the lock and never changed.
        self._changing = threading.Lock()
        self._loaded = dict(loaded)
        self._closed = False

    @property
    def loaded(self) -> Mapping[str, Weights]:
        """Those that are there, by device."""
        return self._loaded

    def of(self, placement: Placement) -> Weights:
        """The weights on the device of `placement`. If several threads ask for new ones, one of them loads them."""
        device = placement.device
        if device in self._loaded:
            return self._loaded[device]
        with self._changing:
            if self._closed:
                raise RuntimeError("the model is closed")
            if device not in self._loaded:
                self._loaded = {**self._loaded, device: self._load(placement)}
            return self._loaded[device]

    def retain(self, devices: Iterable[str]) -> None:
        """Drop the weights on all devices except `devices`. Who uses some keeps them until it closes."""
        kept = frozenset(devices)
        with self._changing:
            self._loaded = {device: weights for device, weights in self._loaded.items() if device in kept}

    def close(self) -> None:
        with self._changing:
            self._closed = True
            self._loaded = {}


# Source: docs/spec/onnxruntime-backend.md section 5.5; docs/spec/framework-backends.md.


# Takes output names, a feed and run options, and returns the outputs in the order of the names.
Run = Callable[[list[str], Mapping[str, Array], Any], Sequence[Array]]
# The same, with large outputs in memory of the request, if there is enough.
RunPlaced = Callable[[list[str], Mapping[str, Array], Any, OutputMemory], Sequence[Array]]


def _never(exc: BaseException) -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Failures:
    """What a framework raises. `error_of` makes the server's error of an exception and the name of the model.

    `is_poison` tells whether an exception means that nothing can run again on the GPU in this process.
    """

    exceptions: tuple[type[Exception], ...]
    error_of: Callable[[Exception, str], ServerError]
    is_poison: Callable[[BaseException], bool] = _never


class InProcessInstance:
    """Implements BackendInstance.

    `run` and `run_options` belong to the weights on the device, which several instances may share. `run_placed` is for
    a request that runs alone, of a model that `may_bind`.
    """

    def __init__(
        self,
        placement: Placement,
        spec: ModelSpec,
        gatherer: Gatherer,
        splitter: Splitter,
        run: Run,
        failures: Failures,
        *,
        run_options: Any = None,
        may_run_inline: bool = False,
        on_close: Callable[[], None] | None = None,
        run_placed: RunPlaced | None = None,
    ) -> None:
        self.placement = placement
        self.may_run_inline = may_run_inline
        self.answers_later = False
        self.poisoned = False
        self._spec = spec
        self._gatherer = gatherer
        self._splitter = splitter
        self._run = run
        self._run_placed = run_placed
        self._run_options = run_options
        self._failures = failures
        self._exceptions = failures.exceptions
        self._on_close = on_close
        self._names = list(spec.outputs)

    def execute(
        self,
        requests: Sequence[InferenceRequest],
        batch_sizes: Sequence[int],
        senders: Sequence[ResponseSender] = (),
    ) -> Execution:
        """Execute `requests` as one batch. Raises BackendFailed or OutOfMemory if the whole batch failed."""
        spec = self._spec
        total = batch_total(batch_sizes, spec.max_batch_size, spec.name)
        try:
            feed = self._gatherer.gather(requests, total)
            gathered_ns = monotonic_ns()
            memory = requests[0].output_memory
            # Who traces a request may want to see its tensors later, when their memory is in use again.
            if memory is None or self._run_placed is None or len(requests) > 1 or requests[0].trace is not None:
                results = self._run(self._names, feed, self._run_options)
            else:
                results = self._run_placed(self._names, feed, self._run_options, memory)
        except self._exceptions as exc:
            raise self._failure(exc) from exc
        finished_ns = monotonic_ns()
        return Execution(self._splitter.split(requests, batch_sizes, results, total), gathered_ns, finished_ns)

    def _failure(self, exc: Exception) -> ServerError:
        if self.placement.kind is DeviceKind.GPU and self._failures.is_poison(exc):
            self.poisoned = True
        error = self._failures.error_of(exc, self._spec.name)
        error.__cause__ = exc  # the log asks for it, and in compiled code `raise ... from` does not set it
        return error

    def close(self) -> None:
        """Free the buffers and drop what it runs."""
        self._gatherer.close()
        self._run = _closed
        self._run_placed = None
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()


def _closed(names: list[str], feed: Mapping[str, Array], run_options: Any) -> Sequence[Array]:
    raise RuntimeError("the instance is closed")


class BoundInput(NamedTuple):
    """An input at an address on the GPU, in the shape that the model gets."""

    address: int
    shape: Shape


class BoundRun(Protocol):
    """Runs a model on tensors on its GPU. The instance's thread."""

    def bound(
        self,
        names: Sequence[str],
        feed: Mapping[str, Array],
        options: Any,
        inputs: Mapping[str, BoundInput],
        outputs: Mapping[str, DevicePlace],
        total: int,
    ) -> list[Array | Shape]:
        """The outputs `names`: an array, or the shape of one that was written at its place in `outputs`.

        `feed` has the inputs that are not in `inputs`. An output is written to its place if it is known before the
        run that it fits there; otherwise it is an array. `total` is the size of the batch.
        """
        ...


def may_bind(spec: ModelSpec, config: ModelConfig) -> bool:
    """Whether the tensors of requests are those of the model, so that nothing has to be done to them in between."""
    tensors: list[InputSpec | OutputSpec] = [*spec.inputs.values(), *spec.outputs.values()]
    return (
        spec.sequence is None
        and not config.batch_input
        and not config.batch_output
        # Answers that are kept need their content.
        and not config.response_cache.enable
        and not any(i.allow_ragged_batch or i.optional or i.is_shape_tensor for i in spec.inputs.values())
        and not any(tensor.datatype is BYTES or tensor.model_dims is not None for tensor in tensors)
    )


class BoundInstance(InProcessInstance):
    """An InProcessInstance of a model that `may_bind`. `bound_run` and `run` share the weights on the device."""

    def __init__(
        self,
        placement: Placement,
        spec: ModelSpec,
        gatherer: Gatherer,
        splitter: Splitter,
        run: Run,
        failures: Failures,
        *,
        bound_run: BoundRun,
        run_options: Any = None,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(placement, spec, gatherer, splitter, run, failures, run_options=run_options, on_close=on_close)
        self._bound_run = bound_run

    def execute(
        self,
        requests: Sequence[InferenceRequest],
        batch_sizes: Sequence[int],
        senders: Sequence[ResponseSender] = (),
    ) -> Execution:
        """As that of InProcessInstance; a request that runs alone is bound to the memory that it names on this GPU."""
        request = requests[0]
        # Who traces a request may want to see its tensors.
        if len(requests) == 1 and type(request) is RegionRequest and request.trace is None:
            device_id = self.placement.device_id
            inputs = {
                tensor.name: BoundInput(tensor.on_device.address, tensor.shape)
                for tensor in request.inputs
                if type(tensor) is RegionInput and tensor.on_device and tensor.on_device.device_id == device_id
            }
            places = request.outputs_on_device
            outputs = {name: place for name, place in places.items() if place.device_id == device_id}
            if inputs or outputs:
                return self._execute_bound(request, batch_sizes[0], inputs, outputs)
        return super().execute(requests, batch_sizes, senders)

    def _execute_bound(
        self,
        request: RegionRequest,
        batch_size: int,
        inputs: Mapping[str, BoundInput],
        outputs: Mapping[str, DevicePlace],
    ) -> Execution:
        spec = self._spec
        total = batch_total((batch_size,), spec.max_batch_size, spec.name)
        wanted = request.outputs or tuple(spec.outputs)
        names = [name for name in spec.outputs if name in wanted]
        try:
            feed = {tensor.name: tensor.array for tensor in request.inputs if tensor.name not in inputs}
            gathered_ns = monotonic_ns()
            results = self._bound_run.bound(names, feed, self._run_options, inputs, outputs, total)
        except self._exceptions as exc:
            raise self._failure(exc) from exc
        finished_ns = monotonic_ns()
        answer = [self._output(name, result, total) for name, result in zip(names, results, strict=True)]
        return Execution([answer], gathered_ns, finished_ns)

    def _output(self, name: str, result: Array | Shape, total: int) -> OutputTensor:
        output = self._spec.outputs[name]
        if isinstance(result, tuple):
            return PlacedOutput(name, output.datatype.name, result)
        array = self._splitter.checked(output, result, total)
        return OutputTensor(name, output.datatype.name, array.shape, array)


# Source: docs/ragged-batching.md.


class BucketedInstance(InProcessInstance):
    """An InProcessInstance that says of each execution to which bucket it was padded."""

    def __init__(
        self,
        placement: Placement,
        spec: ModelSpec,
        gatherer: PaddingGatherer,
        splitter: PaddedSplitter,
        run: Run,
        failures: Failures,
        *,
        run_options: Any = None,
        may_run_inline: bool = False,
        on_close: Callable[[], None] | None = None,
    ) -> None:
        super().__init__(
            placement,
            spec,
            gatherer,
            splitter,
            run,
            failures,
            run_options=run_options,
            may_run_inline=may_run_inline,
            on_close=on_close,
        )
        self._padding = gatherer

    def execute(
        self,
        requests: Sequence[InferenceRequest],
        batch_sizes: Sequence[int],
        senders: Sequence[ResponseSender] = (),
    ) -> Execution:
        """As that of InProcessInstance, with the bucket."""
        done = super().execute(requests, batch_sizes, senders)
        return BucketedExecution(done.outputs, done.input_end_ns, done.output_start_ns, bucket=self._padding.use)


def make_instance(
    placement: Placement,
    spec: ModelSpec,
    config: ModelConfig,
    run: Run,
    failures: Failures,
    axes: Mapping[str, tuple[int, ...]],
    *,
    scalars: frozenset[str] = frozenset(),
    on_buffer: OnBuffer | None = None,
    run_options: Any = None,
    may_run_inline: bool = False,
    on_close: Callable[[], None] | None = None,
    bound_run: BoundRun | None = None,
    run_placed: RunPlaced | None = None,
) -> BackendInstance:
    """An instance that pads its batches if the model has buckets; then `axes` are those of `length_axes`.

    `on_close` frees what `run` holds. `bound_run` runs on tensors in memory of the GPU, and `run_placed` writes outputs
    where they are sent from, where the tensors of the model allow it.
    """
    described, buckets = batch_inputs(config, spec.name), spec.buckets
    if buckets is None:
        gatherer = Gatherer(spec, scalars=scalars, batch_inputs=described, on_buffer=on_buffer)
        splitter = Splitter(spec, scattered_outputs(config))
        binds = not scalars and may_bind(spec, config)
        if bound_run is not None and binds:
            return BoundInstance(
                placement,
                spec,
                gatherer,
                splitter,
                run,
                failures,
                bound_run=bound_run,
                run_options=run_options,
                on_close=on_close,
            )
        return InProcessInstance(
            placement,
            spec,
            gatherer,
            splitter,
            run,
            failures,
            run_options=run_options,
            may_run_inline=may_run_inline,
            on_close=on_close,
            run_placed=run_placed if binds else None,
        )
    return BucketedInstance(
        placement,
        spec,
        PaddingGatherer(spec, buckets, scalars=scalars, batch_inputs=described, on_buffer=on_buffer),
        PaddedSplitter(spec, buckets, axes),
        run,
        failures,
        run_options=run_options,
        may_run_inline=may_run_inline,
        on_close=on_close,
    )
