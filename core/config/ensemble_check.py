"""Whether the models of an ensemble's steps fit together: names, datatypes, shapes, batch sizes, decoupled models.

Source: docs/spec/schedulers.md section 3.5, "Load-time checks".
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, replace

from trident.core.config.ensemble import EnsembleStep, ensemble_steps
from trident.core.config.problem import Problem
from trident.core.config.schema import ModelConfig
from trident.core.config.spec import InputSpec, ModelSpec, OutputSpec
from trident.core.config.validate import decoupled_cache_problem
from trident.core.inference.tensors import Datatype, Shape, shape_text

_STEPS = "ensemble_scheduling.step"


@dataclass(frozen=True, slots=True)
class Composition:
    """`problems` are those of the steps with their models. `is_decoupled`: any number of responses to a request."""

    problems: tuple[Problem, ...]
    is_decoupled: bool


def compose(ensemble: ModelSpec, steps: Sequence[EnsembleStep], models: Sequence[ModelSpec]) -> Composition:
    """Fit the steps together; `models[i]` is that of step i. The ensemble's own configuration is valid."""
    problems = list(_batch_problems(ensemble, steps, models))
    tensors = _Tensors(ensemble)
    for index, (step, model) in enumerate(zip(steps, models, strict=True)):
        problems += _input_problems(ensemble.name, index, step, model, tensors)
        problems += _output_problems(ensemble.name, index, step, model, tensors)
    is_decoupled, mixed = _decoupling(ensemble, steps, models)
    if is_decoupled and ensemble.response_cache:
        decoupled = next(model.name for model in models if model.decoupled)
        hint = f"the model '{decoupled}' of one of its steps is decoupled"
        mixed.append(decoupled_cache_problem(ensemble.name, hint))
    return Composition((*problems, *mixed), is_decoupled)


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor of the ensemble, as the first model that has it sees it."""

    model: str
    datatype: Datatype
    dims: Shape
    batching: bool

    @property
    def full_dims(self) -> Shape:
        return (-1, *self.dims) if self.batching else self.dims

    def difference(self, other: _Tensor) -> str:
        """Triton's text about what does not fit; "" if both can be the same tensor."""
        if self.datatype is not other.datatype:
            kind, mine, others = "data type", self.datatype.config_name, other.datatype.config_name
        # A model without a batch dimension may have it as its first dimension.
        elif may_match(self.dims, other.dims) or may_match(self.full_dims, other.full_dims):
            return ""
        else:
            kind, mine, others = "shape", shape_text(self.full_dims), shape_text(other.full_dims)
        inferred = f"is inferred from model {self.model} while {others} is inferred from model {other.model}"
        return f"inconsistent {kind}: {mine} {inferred}"


def may_match(dims: Shape, others: Shape) -> bool:
    """Whether both can be dimensions of the same tensor; -1 is any size."""
    return len(dims) == len(others) and all(a == b or -1 in (a, b) for a, b in zip(dims, others, strict=True))


class _Tensors:
    """The tensors of the ensemble that are known so far, by name."""

    def __init__(self, ensemble: ModelSpec) -> None:
        own: list[InputSpec | OutputSpec] = [*ensemble.inputs.values(), *ensemble.outputs.values()]
        self._known = {tensor.name: self.of(ensemble, tensor, own=True) for tensor in own}

    @staticmethod
    def of(model: ModelSpec, tensor: InputSpec | OutputSpec, *, own: bool = False) -> _Tensor:
        dims = tensor.model_dims if own and tensor.model_dims is not None else tensor.dims
        return _Tensor(model.name, tensor.datatype, dims, model.max_batch_size > 0)

    def difference(self, name: str, tensor: _Tensor) -> str:
        """Return why `tensor` cannot be the known tensor `name`; "" if it can. The first one becomes the known one."""
        return self._known.setdefault(name, tensor).difference(tensor)


def _batch_problems(
    ensemble: ModelSpec, steps: Sequence[EnsembleStep], models: Sequence[ModelSpec]
) -> Iterator[Problem]:
    for index, (step, model) in enumerate(zip(steps, models, strict=True)):
        if 0 < model.max_batch_size < ensemble.max_batch_size:
            text = f"ensemble {ensemble.name} allows maximum batch size {ensemble.max_batch_size}, but it contains "
            text += f"model {step.model} which only allows maximum batch size to be {model.max_batch_size}"
            hint = f"set max_batch_size of {ensemble.name} to {model.max_batch_size}, or raise that of {step.model}"
            yield Problem(f"{_STEPS}[{index}]", text, hint)


def _input_problems(
    ensemble: str, index: int, step: EnsembleStep, model: ModelSpec, tensors: _Tensors
) -> Iterator[Problem]:
    path = f"{_STEPS}[{index}].input_map"
    for name, tensor in step.inputs:
        known = model.inputs.get(name)
        if known is None:
            text = f"in ensemble {ensemble}, ensemble tensor {tensor} is mapping to non-existing input {name} in model "
            yield Problem(path, f"{text}{step.model}", f"the inputs are: {', '.join(model.inputs)}")
            continue
        difference = tensors.difference(tensor, tensors.of(model, known))
        if difference:
            yield Problem(path, f"in ensemble {ensemble}, ensemble tensor {tensor}: {difference}")
    mapped = {name for name, _ in step.inputs}
    for name, expected in model.inputs.items():
        if name not in mapped and not expected.optional:
            text = f"in ensemble {ensemble}, input {name} in model {step.model} is not mapped to any ensemble tensors"
            yield Problem(path, text)


def _output_problems(
    ensemble: str, index: int, step: EnsembleStep, model: ModelSpec, tensors: _Tensors
) -> Iterator[Problem]:
    path = f"{_STEPS}[{index}].output_map"
    for name, tensor in step.outputs:
        known = model.outputs.get(name)
        if known is None:
            text = f"in ensemble {ensemble}, ensemble tensor {tensor} is mapped from non-existing output {name} in "
            yield Problem(path, f"{text}model {step.model}", f"the outputs are: {', '.join(model.outputs)}")
            continue
        difference = tensors.difference(tensor, tensors.of(model, known))
        if difference:
            yield Problem(path, f"in ensemble {ensemble}, ensemble tensor {tensor}: {difference}")


def _decoupling(
    ensemble: ModelSpec, steps: Sequence[EnsembleStep], models: Sequence[ModelSpec]
) -> tuple[bool, list[Problem]]:
    """Whether the ensemble is decoupled, and the steps whose tensors come from different decoupled models.

    Each tensor has an origin: 0 is the request, any other number the responses of one decoupled step.
    """
    origins = dict.fromkeys(ensemble.inputs, 0)
    problems: list[Problem] = []
    waiting = list(range(len(steps)))
    while ready := [index for index in waiting if steps[index].sources <= origins.keys()]:
        for index in ready:
            step, model = steps[index], models[index]
            found = {origins[tensor] for tensor in step.sources}
            if len(found) > 1:
                problems.append(_mixed(ensemble.name, step.model, f"{_STEPS}[{index}].input_map"))
            origin = index + 1 if model.decoupled else min(found)
            origins |= dict.fromkeys(step.results, origin)
        waiting = [index for index in waiting if index not in ready]
    at_end = {origins[name] for name in ensemble.outputs if name in origins}
    if len(at_end) > 1 and not problems:
        problems.append(_mixed(ensemble.name, ensemble.name, "output"))
    return any(model.decoupled for model in models), problems


def _mixed(ensemble: str, model: str, path: str) -> Problem:
    text = f"in ensemble {ensemble}, step of model '{model}' receives inputs originated from different decoupled models"
    return Problem(path, text, "all inputs of a step must come from the request, or all from the same decoupled model")


# Source: docs/spec/repository.md section 1.8, docs/spec/schedulers.md section 3.5.


class KnownModels:
    """The valid versions of all models, as they would be loaded. `note` them all, and then ask for `problems`."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._specs: dict[str, dict[int, ModelSpec]] = {}
        self._steps: dict[str, tuple[EnsembleStep, ...]] = {}

    def note_name(self, name: str) -> None:
        """There is a model of this name, valid or not."""
        self._names.add(name)

    def note(self, config: ModelConfig, spec: ModelSpec) -> None:
        """A valid version of a model, with its complete configuration."""
        self._specs.setdefault(spec.name, {})[spec.version] = spec
        if steps := ensemble_steps(config):
            self._steps[spec.name] = steps

    @property
    def ensembles(self) -> list[tuple[ModelSpec, Sequence[EnsembleStep]]]:
        """The ensembles whose own configuration is valid, with their steps, by name."""
        return [(self._specs[name][max(self._specs[name])], steps) for name, steps in sorted(self._steps.items())]

    def problems(self) -> dict[str, list[Problem]]:
        """The problems of the ensembles with the models of their steps, by ensemble; those without any are left out."""
        found: dict[str, list[Problem]] = {}
        for name in sorted(self._steps):
            problems = self._problems(name)
            if problems:
                found[name] = problems
        return found

    def _problems(self, name: str) -> list[Problem]:
        cycle = self._cycle(name)
        if cycle:
            text = f"circular dependency between ensembles: {' -> '.join(cycle)}"
            return [Problem(_STEPS, text, "an ensemble cannot be a step of itself, nor of one of its steps")]
        problems = [
            Problem(f"{_STEPS}[{index}]", text)
            for index, step in enumerate(self._steps[name])
            if (text := self._missing(name, step))
        ]
        if problems:
            return problems
        models = [self._completed(step) for step in self._steps[name]]
        ensembles = self._specs[name].values()
        composed = [problem for spec in ensembles for problem in compose(spec, self._steps[name], models).problems]
        return list(dict.fromkeys(composed))

    def _missing(self, ensemble: str, step: EnsembleStep) -> str:
        """Why a step has no model; "" if it has one."""
        depends = f"ensemble '{ensemble}' depends on '{step.model}' "
        if step.model not in self._names:
            return f"ensemble {ensemble} contains models that are not available or ambiguous: {step.model}"
        versions = self._specs.get(step.model, {})
        if not versions:
            return f"{depends}which is not valid."
        if step.version != -1 and step.version not in versions:
            return f"{depends}whose required version {step.version} is not loaded."
        return ""

    def _completed(self, step: EnsembleStep) -> ModelSpec:
        """The spec of a step's model; an inner ensemble is decoupled if one of its steps is."""
        versions = self._specs[step.model]
        spec = versions[max(versions) if step.version == -1 else step.version]
        return replace(spec, decoupled=self._is_decoupled(step.model))

    def _is_decoupled(self, name: str) -> bool:
        """Whether a model is decoupled, or any that it runs as an ensemble."""
        seen, waiting = {name}, [name]
        while waiting:
            model = waiting.pop()
            if any(spec.decoupled for spec in self._specs.get(model, {}).values()):
                return True
            inner = {step.model for step in self._steps.get(model, ())} - seen
            seen |= inner
            waiting += inner
        return False

    def _cycle(self, name: str) -> tuple[str, ...]:
        """The path from an ensemble through steps back to itself, with it at both ends; empty without a cycle."""
        seen: set[str] = set()
        paths: list[tuple[str, ...]] = [(name,)]
        while paths:
            path = paths.pop()
            for step in self._steps.get(path[-1], ()):
                if step.model == name:
                    return (*path, name)
                if step.model not in seen:
                    seen.add(step.model)
                    paths.append((*path, step.model))
        return ()
