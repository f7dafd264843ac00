"""Models whose framework runs in this process: one loaded version, and its instances.

    Framework           how a backend loads the weights of a version, and runs its instances
    Runner              how one instance runs batches
    InProcessModel      a version: loads the weights once for each device, and makes instances
    InProcessInstance   gathers the inputs of a batch, runs it, and splits the results

The tensors of a client's CUDA shared memory are read and written where they lie on the GPU if their request runs alone
there and the model `may_bind`. Those of other requests are copied through the host.
Source: docs/spec/onnxruntime-backend.md section 5.5; docs/spec/shared-memory.md section 7; docs/ragged-batching.md.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from time import monotonic_ns
from typing import Any, NamedTuple, Protocol

import numpy as np

from trident.core.backends.backend import Execution, LoadContext, OnChange
from trident.core.backends.tensors import (
    Gatherer,
    OnBuffer,
    PaddedSplitter,
    PaddingGatherer,
    Splitter,
    SteadySizes,
    batch_inputs,
    batch_total,
    scattered_outputs,
)
from trident.core.config.placement import DeviceKind, Placement
from trident.core.config.schema import ModelConfig
from trident.core.config.spec import BucketSpec, InputSpec, ModelSpec, OutputSpec
from trident.core.errors import BackendFailed, ServerError
from trident.core.inference.pending_request import ResponseSender
from trident.core.inference.request import InferenceRequest
from trident.core.inference.response import DevicePlace, OutputTensor, PlacedOutput, RegionInput, RegionRequest
from trident.core.inference.tensors import BYTES, Array, Shape
from trident.core.observability.statistics import BucketUse, ModelProcessMetrics

_log = logging.getLogger("trident.backends")


class BoundTensor(NamedTuple):
    """A tensor at an address on a device, in the shape that it has for the model."""

    address: int
    shape: Shape


# Takes output names, a feed and run options, and returns the outputs in the order of the names.
Run = Callable[[list[str], Mapping[str, Array], Any], Sequence[Array]]
# The same on tensors on the GPU: it also takes the inputs that are not in the feed, the memory for outputs, and the
# size of the batch. An output that is known before the run to fit is written there, and its shape is returned;
# otherwise it is an array.
RunBound = Callable[
    [list[str], Mapping[str, Array], Any, Mapping[str, BoundTensor], Mapping[str, DevicePlace], int],
    Sequence[Array | Shape],
]


class Pads(Protocol):
    """Pads batches; `use` describes the last padding."""

    use: BucketUse


@dataclass(frozen=True, slots=True)
class Failures:
    """The exceptions of a framework. `error_of` makes the server's error of an exception and the name of the model.

    `is_poison` tells whether an exception means that nothing can run again on the GPU in this process.
    """

    exceptions: tuple[type[Exception], ...]
    error_of: Callable[[Exception, str], ServerError]
    is_poison: Callable[[BaseException], bool] = lambda exc: False


@dataclass(frozen=True, slots=True, kw_only=True)
class Runner:
    """Runs the batches of one instance. `close` frees what only this instance holds.

    `run_bound` is for a request that runs alone, of a model that `may_bind`. `scalars` are the inputs without
    dimensions in the graph. `may_run_inline` holds on a CPU (`BackendInstance`). `padding` is for what pads by itself,
    and `steady` for a session that has to keep its batch size. `end` makes the run in progress and all later ones fail;
    None if the framework cannot.
    """

    run: Run
    run_options: Any = None
    run_bound: RunBound | None = None
    scalars: frozenset[str] = frozenset()
    on_buffer: OnBuffer | None = None
    may_run_inline: bool = False
    close: Callable[[], object] | None = None
    padding: Pads | None = None
    steady: SteadySizes | None = None
    end: Callable[[], None] | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Framework:
    """Loads and runs one version for a backend. Loader threads, several at once.

    `separated_because` tells, once weights are loaded, what a trial has shown if requests must not be combined.
    `load` loads the weights onto the device of a placement, for all instances there. `runner` makes what one of them
    runs. Both raise a ServerError. `provider` and `threads` are cells of the start table. `named_axes` are the
    dimensions of each output of which the graph says that they are as long as the padded inputs. `shrink` returns the
    memory of a device (`Placement.device`) that only past runs needed.
    """

    load: Callable[[Placement], Any]
    runner: Callable[[Any, Placement], Runner]
    failures: Failures
    provider: Callable[[Any], str]
    threads: str
    labels: Mapping[str, tuple[str, ...]] = field(default_factory=dict)
    named_axes: Callable[[Any, BucketSpec], Mapping[str, Collection[int]]] | None = None
    shrink: Callable[[Any, str], None] | None = None
    separated_because: Callable[[], str] = str


class InProcessModel:
    """Implements BackendModel. Loader threads, several at once."""

    trouble = ""

    def __init__(self, context: LoadContext, framework: Framework) -> None:
        self.labels = framework.labels
        self._config = context.config
        self._spec = context.spec
        self._framework = framework
        self._changing = threading.Lock()
        self._closed = False
        self._axes: dict[str, tuple[int, ...]] | None = None
        wanted = {placement.device: placement for placement in context.placements}
        # The weights by device. Read without the lock: it is replaced under the lock, and never changed.
        self.loaded: dict[str, Any] = {device: framework.load(placement) for device, placement in wanted.items()}
        self.separated_because = framework.separated_because()
        if self.separated_because:
            self._spec = self._spec.separated()

    def describe(self) -> dict[str, str]:
        loaded = self.loaded
        providers = dict.fromkeys([self._framework.provider(weights) for weights in loaded.values()])
        return {
            "device": ", ".join(loaded),
            "execution provider": ", ".join(providers),
            "threads": self._framework.threads,
        }

    def instance(self, placement: Placement) -> InProcessInstance:
        spec, config = self._spec, self._config
        weights = self._weights(placement)
        runner = self._framework.runner(weights, placement)
        buckets = spec.buckets or (BucketSpec() if runner.steady is not None else None)
        described = batch_inputs(config, spec.name)
        if buckets is None:
            gatherer = Gatherer(spec, runner.scalars, described, runner.on_buffer)
            splitter = Splitter(spec, scattered_outputs(config))
        else:
            gatherer = PaddingGatherer(spec, buckets, runner.scalars, described, runner.on_buffer, runner.steady)
            if self._axes is None:  # the same on every device
                named_axes = self._framework.named_axes
                self._axes = length_axes(spec, buckets, named_axes(weights, buckets) if named_axes is not None else {})
            splitter = PaddedSplitter(spec, buckets, gatherer, self._axes)
        binds = spec.buckets is None and not runner.scalars and may_bind(spec, config)
        return InProcessInstance(placement, spec, gatherer, splitter, runner, self._framework.failures, binds)

    def _weights(self, placement: Placement) -> Any:
        """The weights on the device of `placement`. If several threads ask for new ones, one of them loads them."""
        device = placement.device
        if device in self.loaded:
            return self.loaded[device]
        with self._changing:
            if self._closed:
                raise RuntimeError("the model is closed")
            if device not in self.loaded:
                self.loaded = {**self.loaded, device: self._framework.load(placement)}
            return self.loaded[device]

    # A model in this process is always ready, and its instances can always execute.
    def watch(self, on_change: OnChange) -> None: ...

    def check_ready(self) -> None: ...

    def processes(self) -> list[ModelProcessMetrics]:
        return []

    def retain(self, devices: Iterable[str]) -> None:
        """Drop the weights on all devices except `devices`. Instances that use some keep them until they close."""
        kept = frozenset(devices)
        with self._changing:
            self.loaded = {device: weights for device, weights in self.loaded.items() if device in kept}

    def shrink(self, device: str) -> None:
        weights = self.loaded.get(device)
        if self._framework.shrink is not None and weights is not None:
            self._framework.shrink(weights, device)

    def close(self) -> None:
        """Drop all weights. They are freed when the last instance on them has closed as well."""
        with self._changing:
            self._closed = True
            self.loaded = {}


def length_axes(
    spec: ModelSpec, buckets: BucketSpec, named: Mapping[str, Collection[int]]
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


def may_pad(spec: ModelSpec, config: ModelConfig) -> bool:
    """Return True if rows can be added to a batch: each tensor has one for each item, and nothing else counts items."""
    inputs = spec.inputs.values()
    return (
        spec.sequence is None
        and not config.batch_input
        and not config.batch_output
        and not any(tensor.allow_ragged_batch or tensor.is_shape_tensor for tensor in inputs)
    )


def may_bind(spec: ModelSpec, config: ModelConfig) -> bool:
    """Return True if the tensors of requests are those of the model, so that they need no change in between."""
    tensors: list[InputSpec | OutputSpec] = [*spec.inputs.values(), *spec.outputs.values()]
    return (
        spec.sequence is None
        and not config.batch_input
        and not config.batch_output
        # Cached answers need their content.
        and not config.response_cache.enable
        and not any(i.allow_ragged_batch or i.optional or i.is_shape_tensor for i in spec.inputs.values())
        and not any(tensor.datatype is BYTES or tensor.model_dims is not None for tensor in tensors)
    )


class InProcessInstance:
    """Implements EndableInstance, as far as its framework can end a run.

    `binds`: the runner may use the memory of a request that runs alone.
    """

    def __init__(
        self,
        placement: Placement,
        spec: ModelSpec,
        gatherer: Gatherer,
        splitter: Splitter,
        runner: Runner,
        failures: Failures,
        binds: bool,
    ) -> None:
        self.placement = placement
        self.may_run_inline = runner.may_run_inline and placement.kind is DeviceKind.CPU
        self.answers_later = False
        self.poisoned = False
        self._spec = spec
        self._gatherer = gatherer
        self._padding: Pads | None = gatherer if isinstance(gatherer, PaddingGatherer) else runner.padding
        self._splitter = splitter
        self._run = runner.run
        self._run_bound = runner.run_bound if binds else None
        self._steady = runner.steady
        self._run_options = runner.run_options
        self._failures = failures
        self._exceptions = failures.exceptions
        self._on_close = runner.close
        self._end = runner.end
        self._ended_because = ""
        self._names = list(spec.outputs)

    def execute(
        self,
        requests: Sequence[InferenceRequest],
        batch_sizes: Sequence[int],
        senders: Sequence[ResponseSender] = (),
    ) -> Execution:
        spec = self._spec
        total = batch_total(batch_sizes, spec.max_batch_size, spec.name)
        first = requests[0]
        # A trace may read the tensors of a request later, when their memory is in use again.
        if self._run_bound is not None and len(requests) == 1 and type(first) is RegionRequest and first.trace is None:
            device_id = self.placement.device_id
            inputs = {
                tensor.name: BoundTensor(tensor.on_device.address, tensor.shape)
                for tensor in first.inputs
                if type(tensor) is RegionInput and tensor.on_device and tensor.on_device.device_id == device_id
            }
            places = {name: place for name, place in first.outputs_on_device.items() if place.device_id == device_id}
            if (inputs or places) and (self._steady is None or self._steady.size(total) == total):
                return self._execute_bound(self._run_bound, first, inputs, places, total)
        names = self._names
        results: Sequence[Array]
        try:
            feed = self._gatherer.gather(requests, total)
            gathered_ns = monotonic_ns()
            if type(self._gatherer) is PaddingGatherer and self._gatherer.size < self._gatherer.rows:
                size, rows = self._gatherer.size, self._gatherer.rows
                parts = [
                    self._run(names, {name: array[at : at + size] for name, array in feed.items()}, self._run_options)
                    for at in range(0, rows, size)
                ]
                results = [np.concatenate(column) for column in zip(*parts, strict=True)]
            else:
                results = self._run(names, feed, self._run_options)
        except self._exceptions as exc:
            raise self._failure(exc) from exc
        finished_ns = monotonic_ns()
        execution = Execution(self._splitter.split(requests, batch_sizes, results, total), gathered_ns, finished_ns)
        if self._padding is not None:
            execution.bucket = self._padding.use
        return execution

    def _execute_bound(
        self,
        run_bound: RunBound,
        request: RegionRequest,
        inputs: Mapping[str, BoundTensor],
        places: Mapping[str, DevicePlace],
        total: int,
    ) -> Execution:
        wanted = request.outputs or self._names
        names = [name for name in self._names if name in wanted]
        try:
            feed = {tensor.name: tensor.array for tensor in request.inputs if tensor.name not in inputs}
            gathered_ns = monotonic_ns()
            results = run_bound(names, feed, self._run_options, inputs, places, total)
        except self._exceptions as exc:
            raise self._failure(exc) from exc
        finished_ns = monotonic_ns()
        answer: list[OutputTensor] = []
        for name, result in zip(names, results, strict=True):
            output = self._spec.outputs[name]
            if isinstance(result, tuple):
                answer.append(PlacedOutput(name, output.datatype.name, result))
            else:
                array = self._splitter.checked(output, result, total)
                answer.append(OutputTensor(name, output.datatype.name, array.shape, array))
        return Execution([answer], gathered_ns, finished_ns)

    def abort(self, reason: str, *, for_good: bool) -> None:
        if for_good and self._end is not None:
            self._ended_because = reason
            self._end()

    def _failure(self, exc: Exception) -> ServerError:
        if self._ended_because:
            text = f"the execution on model instance '{self.placement.name}' was ended, because {self._ended_because}"
            return BackendFailed(text, model=self._spec.name)
        if self.placement.kind is DeviceKind.GPU and self._failures.is_poison(exc):
            self.poisoned = True
        error = self._failures.error_of(exc, self._spec.name)
        error.model = self._spec.name
        if error is not exc:
            error.__cause__ = exc  # the log asks for it, and in compiled code `raise ... from` does not set it
        return error

    def close(self) -> None:
        self._gatherer.close()
        self._run = _closed
        self._run_bound = None
        on_close, self._on_close = self._on_close, None
        if on_close is not None:
            on_close()


def _closed(names: list[str], feed: Mapping[str, Array], run_options: Any) -> Sequence[Array]:
    raise RuntimeError("the instance is closed")
