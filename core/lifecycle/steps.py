"""The models that the steps of an ensemble run on, and why one of them cannot.

Source: docs/spec/repository.md section 1.8.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING

from core.config.ensemble.graph import EnsembleStep
from core.errors import ConfigInvalid
from core.repository.repositories import ModelKey

if TYPE_CHECKING:
    from core.lifecycle.model import Model
    from core.lifecycle.models import Models
    from core.lifecycle.version import ModelVersion

# The versions that the steps of the ensemble of this name run on, by step. Raises ConfigInvalid.
FindSteps = Callable[[str, Sequence[EnsembleStep]], Sequence["ModelVersion"]]


def step_key(step: EnsembleStep, namespace: str) -> ModelKey:
    """The key of a step's model as an ensemble of `namespace` means it at first."""
    return ModelKey(step.model, step.namespace or namespace)


def find_steps(models: Models, namespace: str, name: str, steps: Sequence[EnsembleStep]) -> list[ModelVersion]:
    """The versions that the steps of an ensemble run on now: that of this name in `namespace`.

    Raises ConfigInvalid with every problem.
    """
    key = ModelKey(name, namespace)
    circle = circle_from(key, models)
    if circle:
        text = f"circular dependency between ensembles: {' -> '.join(key.name for key in circle)}"
        raise ConfigInvalid(text, hint="an ensemble cannot be a step of itself, nor of one of its steps", model=name)
    found: list[ModelVersion] = []
    missing: list[str] = []
    problems: list[str] = []
    for step in steps:
        model = models.step(step, models.home(key))
        if model is None:
            missing.append(step.model)
            continue
        number = max(model.serving, default=-1) if step.version == -1 else step.version
        version = model.serving.get(number)
        if version is None:
            problems.append(_not_loaded(name, step, model))
        else:
            found.append(version)
    if missing:
        names = ", ".join(sorted(set(missing)))
        problems.insert(0, f"ensemble {name} contains models that are not available or ambiguous: {names}")
    if problems:
        raise ConfigInvalid("; ".join(dict.fromkeys(problems)), model=name)
    return found


def _not_loaded(ensemble: str, step: EnsembleStep, model: Model) -> str:
    depends = f"ensemble '{ensemble}' depends on '{step.model}' "
    if model.serving:
        return f"{depends}whose required version {step.version} is not loaded."
    if model.problem:
        return f"{depends}which is not valid. Model '{step.model}' failed with error: {model.problem}"
    reasons = [version.state.reason for version in model.versions.values() if version.has_failed]
    if reasons:
        return (
            f"{depends}which has no loaded version. Model '{step.model}' loading failed with error: "
            f"{'; '.join(reasons)}"
        )
    return f"{depends}which has no loaded version."


def circle_from(key: ModelKey, models: Models) -> tuple[ModelKey, ...]:
    """The way from the ensemble `key` through steps back to it, with it at both ends; empty if there is none."""
    seen: set[ModelKey] = set()
    ways: list[tuple[ModelKey, ...]] = [(key,)]
    while ways:
        way = ways.pop()
        for step in models.steps_of(way[-1]):
            model = models.step(step, models.home(way[-1]))
            if model is None:
                continue
            if model.key == key:
                return (*way, key)
            if model.key not in seen:
                seen.add(model.key)
                ways.append((*way, model.key))
    return ()
