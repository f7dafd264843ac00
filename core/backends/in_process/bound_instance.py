"""An instance on a GPU whose model reads and writes tensors where they lie in the memory of that GPU.

A client has them there by CUDA shared memory. Batches of several requests, and tensors on other GPUs, are copied
through the host as all others.
Source: docs/spec/shared-memory.md section 7.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from time import monotonic_ns
from typing import Any, NamedTuple, Protocol

from core.backends.base import Execution
from core.backends.in_process.instance import Failures, InProcessInstance, Run
from core.backends.tensors.gatherer import Gatherer, batch_total
from core.backends.tensors.splitter import Splitter
from core.config.model_spec import InputSpec, ModelSpec, OutputSpec
from core.config.placement import Placement
from core.config.schema import ModelConfig
from core.inference.region_tensors import DevicePlace, PlacedOutput, RegionInput, RegionRequest
from core.inference.request import InferenceRequest
from core.inference.response import OutputTensor
from core.inference.response_sender import ResponseSender
from core.inference.tensors import BYTES, Array, Shape


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
