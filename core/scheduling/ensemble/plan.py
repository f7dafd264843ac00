"""What every request for an ensemble has in common: its steps with their models, and what they wait for.

Source: docs/spec/schedulers.md section 3.5.
"""

from __future__ import annotations

from collections.abc import Collection, Sequence
from dataclasses import dataclass
from typing import Protocol

from core.config.ensemble.graph import EnsembleStep, needed_steps
from core.config.model_spec import ModelSpec
from core.inference.pending_request import PendingRequest
from core.inference.tensors import BYTES, Shape
from core.memo import Memo
from core.scheduling.ensemble.passing import Passing, Taken
from core.scheduling.ensemble.shape_change import shape_change

# A client may ask for any choice of outputs.
_MOST_PLANS = 64

REQUEST = -1
"""The request as a source of tensors, beside the indices of the steps."""


class StepModel(Protocol):
    """The version of a model that a step runs on. Any thread."""

    @property
    def spec(self) -> ModelSpec: ...

    def submit(self, pending: PendingRequest) -> None:
        """Run a request. Never raises: an error is a response, perhaps before this returns."""
        ...


@dataclass(frozen=True, slots=True)
class PlannedStep:
    """A step and its model. `inputs` takes the tensors for it from `sources`, the steps before it or the request.

    `outputs` are those to request, empty if they are all that the model has.
    """

    index: int
    model: StepModel
    name: str
    version: int
    inputs: Passing
    sources: tuple[int, ...]
    outputs: tuple[str, ...]
    is_decoupled: bool


@dataclass(frozen=True, slots=True)
class Plan:
    """What has to run for certain outputs of the ensemble. Shared by requests, never changed.

    `first` are the indices of the steps that need only the request; `readers[i]` are those that wait for step i, and
    `missing` is the number of steps that each waits for. `response` takes the outputs, of which `names` are the names,
    from `writers`. `passes_runs`: the inputs of a request may be passed on as they arrived.
    """

    steps: tuple[PlannedStep, ...]
    first: tuple[int, ...]
    readers: tuple[tuple[int, ...], ...]
    missing: tuple[int, ...]
    response: Passing
    names: tuple[str, ...]
    writers: frozenset[int]
    passes_runs: bool


class Plans:
    """The plans of one ensemble version, by requested outputs. Any thread; two may make the same plan."""

    def __init__(self, spec: ModelSpec, steps: Sequence[EnsembleStep], models: Sequence[StepModel]) -> None:
        self._spec = spec
        self._graph = tuple(steps)
        # Where each tensor comes from: the source, its name there, and whether it has a batch dimension.
        self._origins = {name: (REQUEST, name, spec.max_batch_size > 0) for name in spec.inputs}
        for index, (step, model) in enumerate(zip(steps, models, strict=True)):
            has_batch = model.spec.max_batch_size > 0
            self._origins |= {tensor: (index, name, has_batch) for name, tensor in step.outputs}
        self._steps = tuple(
            self._planned(index, step, model) for index, (step, model) in enumerate(zip(steps, models, strict=True))
        )
        self._made: Memo[frozenset[str], Plan] = Memo(_MOST_PLANS)
        self._whole = self._make(spec.outputs)

    def of(self, outputs: tuple[str, ...]) -> Plan:
        """The plan for the requested `outputs`; empty means all."""
        if not outputs:
            return self._whole
        key = frozenset(outputs)
        plan = self._made.get(key)
        if plan is None:
            plan = self._made[key] = self._make(outputs)
        return plan

    def _make(self, outputs: Collection[str]) -> Plan:
        needed = needed_steps(self._graph, outputs)
        waits = {index: set(self._steps[index].sources) - {REQUEST} for index in needed}
        taken: list[Taken] = []
        for name, output in self._spec.outputs.items():
            if name in outputs:
                dims = output.dims if output.model_dims is None else output.model_dims
                taken.append(self._taken(name, name, self._spec.max_batch_size > 0, dims))
        inputs = self._spec.inputs.values()
        return Plan(
            steps=self._steps,
            first=tuple(index for index in needed if not waits[index]),
            readers=tuple(tuple(index for index in needed if step.index in waits[index]) for step in self._steps),
            missing=tuple(len(waits.get(step.index, ())) for step in self._steps),
            response=Passing(taken),
            names=tuple(each.name for each in taken),
            writers=frozenset(each.source for each in taken) - {REQUEST},
            # The arrays of other requests are made when they are checked.
            passes_runs=all(entry.datatype is not BYTES and entry.model_dims is None for entry in inputs),
        )

    def _planned(self, index: int, step: EnsembleStep, model: StepModel) -> PlannedStep:
        spec = model.spec
        results = tuple(name for name, _ in step.outputs)
        return PlannedStep(
            index=index,
            model=model,
            name=spec.name,
            version=step.version,
            inputs=Passing(
                [
                    self._taken(name, tensor, spec.max_batch_size > 0, spec.inputs[name].dims)
                    for name, tensor in step.inputs
                ]
            ),
            sources=tuple({self._origins[tensor][0]: None for tensor in step.sources}),
            outputs=() if set(results) == spec.outputs.keys() else results,
            is_decoupled=spec.decoupled,
        )

    def _taken(self, name: str, tensor: str, takes_batch: bool, dims: Shape) -> Taken:
        source, original, has_batch = self._origins[tensor]
        return Taken(name, source, original, shape_change(has_batch, takes_batch, dims))
