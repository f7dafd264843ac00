"""What an ensemble's version owns: not weights, but a hold on each version that its steps run on.

Source: docs/spec/schedulers.md section 3.5, docs/spec/repository.md section 1.8.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import replace

from trident.core.backends.backend import BackendInstance, OnChange
from trident.core.config.ensemble import EnsembleStep, ensemble_steps
from trident.core.config.ensemble_check import compose
from trident.core.config.placement import Placement
from trident.core.config.schema import copy_of
from trident.core.config.spec import ModelSpec, OutputSpec
from trident.core.errors import ConfigInvalid, ModelNotReady
from trident.core.lifecycle.version import FindSteps, ModelVersion
from trident.core.observability.metrics.snapshot import ModelProcessMetrics
from trident.core.scheduling.ensemble import EnsembleScheduler


class ComposedModel:
    """Implements BackendModel without instances. `versions[i]` runs step i; all of them accept requests until `close`,
    though they are unloaded or replaced meanwhile.
    """

    def __init__(self, versions: Sequence[ModelVersion]) -> None:
        """Raises ModelNotReady if one of them is already being unloaded; then none is held."""
        self.labels: Mapping[str, tuple[str, ...]] = {}
        self.versions = tuple(versions)
        held: list[ModelVersion] = []
        try:
            for version in set(versions):
                version.hold()
                held.append(version)
        except ModelNotReady:
            _release(held)
            raise

    def describe(self) -> dict[str, str]:
        return {"device": "none", "execution provider": f"ensemble of {len(self.versions)} steps"}

    def watch(self, on_change: OnChange) -> None:
        """It has no instances."""

    @property
    def trouble(self) -> str:
        """The trouble of the first step that has one."""
        return next((version.trouble for version in self.versions if version.trouble), "")

    def check_ready(self) -> None:
        """Raises ModelNotReady if the model of a step says that it is not ready."""
        for version in set(self.versions):
            if not version.answers_ready():
                raise ModelNotReady(f"the model '{version.name}' is not ready")

    def processes(self) -> list[ModelProcessMetrics]:
        """Those of its steps are counted there."""
        return []

    def instance(self, placement: Placement) -> BackendInstance:
        raise ConfigInvalid("an ensemble has no instances")

    def retain(self, devices: Iterable[str]) -> None:
        """It has nothing on any device."""

    def close(self) -> None:
        """Let the versions go."""
        _release(set(self.versions))


def compose_model(version: ModelVersion, find_steps: FindSteps) -> ComposedModel:
    """Hold the models of the steps of the configured `version`, and complete its configuration from them.

    Raises ConfigInvalid with every problem of the steps with their models.
    """
    steps = ensemble_steps(version.config)
    version.steps = tuple(find_steps(version.name, steps))
    model = ComposedModel(version.steps)
    try:
        specs = [each.spec for each in model.versions]
        composition = compose(version.spec, steps, specs)
        if composition.problems:
            hints = dict.fromkeys(problem.hint for problem in composition.problems if problem.hint)
            messages = (problem.message for problem in composition.problems)
            raise ConfigInvalid("; ".join(messages), hint="; ".join(hints) or None, model=version.name)
    except BaseException:
        model.close()
        raise
    config = copy_of(version.config)
    config.model_transaction_policy.decoupled = composition.is_decoupled
    version.configure(config, _completed(version.spec, steps, specs, composition.is_decoupled))
    return model


def _completed(
    spec: ModelSpec, steps: Sequence[EnsembleStep], models: Sequence[ModelSpec], is_decoupled: bool
) -> ModelSpec:
    """The spec of an ensemble; its outputs without labels have those of the models' outputs that they are."""
    sources: dict[str, OutputSpec] = {}
    for step, model in zip(steps, models, strict=True):
        sources |= {tensor: model.outputs[name] for name, tensor in step.outputs}
    outputs = {
        name: replace(output, labels=sources[name].labels) if name in sources and not output.labels else output
        for name, output in spec.outputs.items()
    }
    return replace(spec, outputs=outputs, decoupled=is_decoupled)


def compose_scheduler(version: ModelVersion, model: ComposedModel) -> EnsembleScheduler:
    """The scheduler of an ensemble that `compose_model` has completed."""
    return EnsembleScheduler(
        version.spec,
        ensemble_steps(version.config),
        model.versions,
        version.statistics,
        max_in_flight=version.config.ensemble_scheduling.max_inflight_requests,
    )


def _release(versions: Iterable[ModelVersion]) -> None:
    for version in versions:
        version.release()
