"""The steps of an ensemble and the tensors that they exchange, as the configuration names them.

Source: docs/spec/schedulers.md section 3.5, docs/spec/model-config.md section 2.10.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass

from trident.core.config.schema import ModelConfig


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
        """The tensors of the ensemble that the step writes."""
        return frozenset(tensor for _, tensor in self.outputs)


def ensemble_steps(config: ModelConfig) -> tuple[EnsembleStep, ...]:
    """The steps of `config` in their order; empty for a model that is no ensemble."""
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
    """The first tensor on the way back from `output` that no step and no input writes; "" if there is only a cycle."""
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
