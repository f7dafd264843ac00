"""Whether the ensembles of repositories can be loaded, found without serving a model.

Source: docs/spec/repository.md section 1.8, docs/spec/schedulers.md section 3.5.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from core.config.ensemble.composition import compose
from core.config.ensemble.graph import EnsembleStep, ensemble_steps
from core.config.model_spec import ModelSpec
from core.config.problem import Problem
from core.config.schema import ModelConfig

_STEPS = "ensemble_scheduling.step"


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
        circle = self._circle(name)
        if circle:
            text = f"circular dependency between ensembles: {' -> '.join(circle)}"
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

    def _circle(self, name: str) -> tuple[str, ...]:
        """The way from an ensemble through steps back to it, with it at both ends; empty if there is none."""
        seen: set[str] = set()
        ways: list[tuple[str, ...]] = [(name,)]
        while ways:
            way = ways.pop()
            for step in self._steps.get(way[-1], ()):
                if step.model == name:
                    return (*way, name)
                if step.model not in seen:
                    seen.add(step.model)
                    ways.append((*way, step.model))
        return ()
