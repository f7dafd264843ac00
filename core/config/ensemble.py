"""Ensembles: their steps and the tensors that these exchange, and whether they fit together and with their models.

Source: docs/spec/schedulers.md section 3.5, docs/spec/model-config.md section 2.10, docs/spec/repository.md 1.8.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Hashable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import TypeVar

from trident.core.config.platforms import is_ensemble
from trident.core.config.problem import DECOUPLED, Problem, cache_problem
from trident.core.config.resolve import switch_problems
from trident.core.config.schema import ModelConfig
from trident.core.config.spec import InputSpec, ModelSpec, OutputSpec
from trident.core.inference.tensors import Datatype, Shape, shape_text

_STEPS = "ensemble_scheduling.step"
PRESERVE_ORDER = "PRESERVE_RESPONSE_ORDER"
_Model = TypeVar("_Model", bound=Hashable)


@dataclass(frozen=True, slots=True, kw_only=True)
class EnsembleStep:
    """One use of a model. `version` -1 is the latest; `namespace` "" is that of the ensemble.

    `inputs` and `outputs` are pairs of a tensor of the model and a tensor of the ensemble, by the model's names.
    """

    model: str
    version: int
    inputs: tuple[tuple[str, str], ...]
    outputs: tuple[tuple[str, str], ...]
    namespace: str = ""

    @property
    def sources(self) -> frozenset[str]:
        """The tensors of the ensemble that must be there before the step runs."""
        return frozenset(tensor for _, tensor in self.inputs)

    @property
    def results(self) -> frozenset[str]:
        return frozenset(tensor for _, tensor in self.outputs)


def ensemble_steps(config: ModelConfig) -> tuple[EnsembleStep, ...]:
    """The steps of `config` in their order; empty for a model that is not an ensemble."""
    return tuple(
        EnsembleStep(
            model=step.model_name,
            version=step.model_version,
            inputs=tuple(sorted(step.input_map.items())),
            outputs=tuple(sorted(step.output_map.items())),
            namespace=step.model_namespace,
        )
        for step in config.ensemble_scheduling.step
    )


def reachable(steps: Sequence[EnsembleStep], inputs: Iterable[str]) -> frozenset[str]:
    """The tensors that exist at the end if `inputs` exist at the beginning and every step runs that can."""
    there = set(inputs)
    waiting = list(steps)
    while True:
        ready = [step for step in waiting if step.sources <= there]
        if not ready:
            return frozenset(there)
        waiting = [step for step in waiting if step not in ready]
        for step in ready:
            there |= step.results


def first_unconnected(steps: Sequence[EnsembleStep], output: str, there: Collection[str]) -> str:
    """Return the first tensor, backwards from `output`, that no step and no input writes; "" for a cycle."""
    writers = {tensor: step for step in steps for tensor in step.results}
    seen = {output}
    waiting = [output]
    while waiting:
        tensor = waiting.pop(0)
        writer = writers.get(tensor)
        if writer is None:
            return tensor
        for source in sorted(writer.sources - seen):
            if source not in there:
                seen.add(source)
                waiting.append(source)
    return ""


def needed_steps(steps: Sequence[EnsembleStep], outputs: Iterable[str]) -> tuple[int, ...]:
    """The indices of the steps without which `outputs` cannot be written, in the order of the configuration."""
    writers = {tensor: index for index, step in enumerate(steps) for tensor in step.results}
    needed: set[int] = set()
    waiting = list(outputs)
    while waiting:
        index = writers.get(waiting.pop())
        if index is not None and index not in needed:
            needed.add(index)
            waiting += steps[index].sources
    return tuple(sorted(needed))


def cycle_from(ensemble: _Model, steps_of: Callable[[_Model], Iterable[_Model]]) -> tuple[_Model, ...]:
    """The path from an ensemble through the models of steps back to itself, with it at both ends; empty without one."""
    seen: set[_Model] = set()
    paths: list[tuple[_Model, ...]] = [(ensemble,)]
    while paths:
        path = paths.pop()
        for model in steps_of(path[-1]):
            if model == ensemble:
                return (*path, ensemble)
            if model not in seen:
                seen.add(model)
                paths.append((*path, model))
    return ()


# --- by itself


def ensemble_problems(config: ModelConfig, model_name: str) -> Iterator[Problem]:
    has_scheduling = config.HasField("ensemble_scheduling")
    if not is_ensemble(config):
        if has_scheduling:
            text = f"ensemble scheduling cannot be set for model '{model_name}' whose platform is not ensemble"
            yield Problem("ensemble_scheduling", text, 'set platform: "ensemble"')
        return
    if not has_scheduling:
        text = f"ensemble scheduling must be set for ensemble {model_name} whose platform is ensemble"
        yield Problem("ensemble_scheduling", text)
    if config.instance_group:
        yield Problem("instance_group", f"instance group should not be specified for ensemble '{model_name}'")
    if config.HasField("optimization"):
        yield Problem("optimization", f"optimization should not be specified for ensemble '{model_name}'")
    if config.model_warmup:
        yield Problem("model_warmup", f"model_warmup can not be specified for ensemble '{model_name}'")
    hint = 'give string_value: "false" to answer as soon as the steps of a response are done, in any order'
    yield from switch_problems(config, PRESERVE_ORDER, hint)
    steps = ensemble_steps(config)
    if has_scheduling and not steps:
        yield Problem(_STEPS, f"must specify 'step' for ensemble '{model_name}'")
    unfinished = [
        Problem(f"{_STEPS}[{index}].{field}", f"must specify '{field}' in step {index} of ensemble '{model_name}'")
        for index, step in enumerate(steps)
        for field, value in (("model_name", step.model), ("input_map", step.inputs), ("output_map", step.outputs))
        if not value
    ]
    yield from unfinished
    yield from _repeated_outputs(steps, {entry.name for entry in config.input}, model_name)
    # The flow through steps that are not finished would show further problems that are none.
    if steps and not unfinished:
        yield from _flow_problems(config, steps, model_name)


def _repeated_outputs(steps: tuple[EnsembleStep, ...], inputs: set[str], model_name: str) -> Iterator[Problem]:
    seen: set[str] = set()
    for index, step in enumerate(steps):
        path = f"{_STEPS}[{index}].output_map"
        for _, tensor in step.outputs:
            if tensor in seen:
                text = f"ensemble tensor '{tensor}' can appear in an output map only once for ensemble '{model_name}' "
                yield Problem(path, f"{text}step {index}")
            elif tensor in inputs:
                text = f"ensemble tensor '{tensor}' is an input of ensemble '{model_name}', so step {index} cannot "
                yield Problem(path, f"{text}write it", "give the output of the step another name")
            seen.add(tensor)


def _flow_problems(config: ModelConfig, steps: tuple[EnsembleStep, ...], model_name: str) -> Iterator[Problem]:
    inputs = [entry.name for entry in config.input]
    outputs = [entry.name for entry in config.output]
    read = {tensor for step in steps for tensor in step.sources}
    mapped = read | {tensor for step in steps for tensor in step.results}
    there = reachable(steps, inputs)
    for index, name in enumerate(inputs):
        if name not in mapped:
            text = f"ensemble input '{name}' for ensemble {model_name}' is not used"
            yield Problem(f"input[{index}]", text, "no step has it in its 'input_map'")
    for index, name in enumerate(outputs):
        if name not in mapped:
            text = f"ensemble output '{name}' for ensemble {model_name}' is not used"
            yield Problem(f"output[{index}]", text, "no step has it in its 'output_map'")
        elif name not in there:
            yield _unwritten(steps, f"output[{index}]", name, there, model_name)
    for tensor in sorted(mapped - set(outputs)):
        if tensor not in there or tensor not in read:
            text = f"ensemble tensor '{tensor}' is unused in ensemble '{model_name}'"
            hint = f"no step reads '{tensor}' and it is not an output: remove it from the 'output_map'"
            if tensor in read:
                hint = f"a step reads '{tensor}', but neither an input nor a step that can run provides it"
            yield Problem(_STEPS, text, hint)


def _unwritten(
    steps: tuple[EnsembleStep, ...], path: str, output: str, there: frozenset[str], model_name: str
) -> Problem:
    text = f"output '{output}' for ensemble '{model_name}' is not written"
    missing = first_unconnected(steps, output, there)
    if not missing:
        return Problem(path, text, "the steps before it wait for each other in a circle")
    hint = f"no step writes '{missing}', and it is not an input of the ensemble"
    return Problem(path, f"{text}: at least one of its depending tensors, '{missing}', is not connected", hint)


# --- with the models of its steps


@dataclass(frozen=True, slots=True)
class Composition:
    """`problems` are those of the steps with their models. `is_decoupled`: any number of responses to a request."""

    problems: tuple[Problem, ...]
    is_decoupled: bool


def compose(ensemble: ModelSpec, steps: Sequence[EnsembleStep], models: Sequence[ModelSpec]) -> Composition:
    """Fit the steps together; `models[i]` is that of step i. The ensemble's own configuration is valid."""
    problems: list[Problem] = []
    for index, (step, model) in enumerate(zip(steps, models, strict=True)):
        if 0 < model.max_batch_size < ensemble.max_batch_size:
            text = f"ensemble {ensemble.name} allows maximum batch size {ensemble.max_batch_size}, but it contains "
            text += f"model {step.model} which only allows maximum batch size to be {model.max_batch_size}"
            hint = f"set max_batch_size of {ensemble.name} to {model.max_batch_size}, or raise that of {step.model}"
            problems.append(Problem(f"{_STEPS}[{index}]", text, hint))
    # The tensors of the ensemble, as the first model that has them sees them: itself, or a step's.
    own: list[InputSpec | OutputSpec] = [*ensemble.inputs.values(), *ensemble.outputs.values()]
    known = {each.name: _Tensor.of(ensemble, each, each.model_dims) for each in own}
    for index, (step, model) in enumerate(zip(steps, models, strict=True)):
        problems += _map_problems(ensemble.name, f"{_STEPS}[{index}].input_map", step, model, known)
        mapped = {name for name, _ in step.inputs}
        for name, expected in model.inputs.items():
            if name not in mapped and not expected.optional:
                text = f"in ensemble {ensemble.name}, input {name} in model {step.model} is not mapped to any ensemble "
                problems.append(Problem(f"{_STEPS}[{index}].input_map", f"{text}tensors"))
        problems += _map_problems(ensemble.name, f"{_STEPS}[{index}].output_map", step, model, known)
    is_decoupled, mixed = _decoupling(ensemble, steps, models)
    if is_decoupled and ensemble.response_cache:
        decoupled = next(model.name for model in models if model.decoupled)
        hint = f"the model '{decoupled}' of one of its steps is decoupled"
        mixed.append(cache_problem(ensemble.name, DECOUPLED, hint))
    return Composition((*problems, *mixed), is_decoupled)


@dataclass(frozen=True, slots=True)
class _Tensor:
    """A tensor of the ensemble, as the first model that has it sees it."""

    model: str
    datatype: Datatype
    dims: Shape
    batching: bool

    @staticmethod
    def of(model: ModelSpec, tensor: InputSpec | OutputSpec, dims: Shape | None = None) -> _Tensor:
        return _Tensor(model.name, tensor.datatype, tensor.dims if dims is None else dims, model.max_batch_size > 0)

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
    """Return true if both can be dimensions of the same tensor; -1 is any size."""
    return len(dims) == len(others) and all(a == b or -1 in (a, b) for a, b in zip(dims, others, strict=True))


def _map_problems(
    ensemble: str, path: str, step: EnsembleStep, model: ModelSpec, known: dict[str, _Tensor]
) -> Iterator[Problem]:
    side, pairs, direction = "input", step.inputs, "is mapping to"
    tensors: Mapping[str, InputSpec | OutputSpec] = model.inputs
    if path.endswith("output_map"):
        side, pairs, direction, tensors = "output", step.outputs, "is mapped from", model.outputs
    for name, tensor in pairs:
        start = f"in ensemble {ensemble}, ensemble tensor {tensor}"
        if name not in tensors:
            text = f"{start} {direction} non-existing {side} {name} in model {step.model}"
            yield Problem(path, text, f"the {side}s are: {', '.join(tensors)}")
            continue
        mine = _Tensor.of(model, tensors[name])
        if difference := known.setdefault(tensor, mine).difference(mine):
            yield Problem(path, f"{start}: {difference}")


def _decoupling(
    ensemble: ModelSpec, steps: Sequence[EnsembleStep], models: Sequence[ModelSpec]
) -> tuple[bool, list[Problem]]:
    """Return if the ensemble is decoupled, and the steps whose tensors come from different decoupled models.

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


# --- in a repository


class KnownModels:
    """The valid versions of all models, as they would be loaded. `note` them all, and then ask for `problems`."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._specs: dict[str, dict[int, ModelSpec]] = {}
        self._steps: dict[str, tuple[EnsembleStep, ...]] = {}

    def note_name(self, name: str) -> None:
        self._names.add(name)

    def note(self, config: ModelConfig, spec: ModelSpec) -> None:
        """A valid version of a model, with its complete configuration."""
        self._specs.setdefault(spec.name, {})[spec.version] = spec
        if steps := ensemble_steps(config):
            self._steps[spec.name] = steps

    @property
    def ensembles(self) -> list[tuple[ModelSpec, Sequence[EnsembleStep]]]:
        return [(self._specs[name][max(self._specs[name])], steps) for name, steps in sorted(self._steps.items())]

    def problems(self) -> dict[str, list[Problem]]:
        return {name: problems for name in sorted(self._steps) if (problems := self._problems(name))}

    def _problems(self, name: str) -> list[Problem]:
        cycle = cycle_from(name, lambda each: [step.model for step in self._steps.get(each, ())])
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
        seen, waiting = {name}, [name]
        while waiting:
            model = waiting.pop()
            if any(spec.decoupled for spec in self._specs.get(model, {}).values()):
                return True
            inner = {step.model for step in self._steps.get(model, ())} - seen
            seen |= inner
            waiting += inner
        return False
