"""Which steps of an ensemble stand beside each other in a drawing, and the tensors between them."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from core.config.ensemble.graph import EnsembleStep

INPUTS, OUTPUTS = -1, -2
"""The ends of the graph, beside the indices of the steps."""


@dataclass(frozen=True, slots=True)
class GraphLayout:
    """`inputs` and `outputs` are those of the ensemble. `levels` are the indices of steps that run at the same time,
    in the order of their runs. `edges` are (from, to, tensors): steps by their indices, INPUTS and OUTPUTS.
    """

    name: str
    inputs: tuple[str, ...]
    outputs: tuple[str, ...]
    steps: tuple[EnsembleStep, ...]
    levels: tuple[tuple[int, ...], ...]
    edges: tuple[tuple[int, int, tuple[str, ...]], ...]

    def title(self, index: int) -> str:
        """The model of a step, with its version if that is fixed."""
        step = self.steps[index]
        return step.model if step.version == -1 else f"{step.model}:{step.version}"


def layout_graph(
    name: str, inputs: Iterable[str], outputs: Iterable[str], steps: Sequence[EnsembleStep]
) -> GraphLayout:
    """The layout of an ensemble that is valid: without circles, and each tensor has one source."""
    inputs, outputs = tuple(inputs), tuple(outputs)
    writers = {tensor: index for index, step in enumerate(steps) for _, tensor in step.outputs}
    level: dict[int, int] = {}
    while len(level) < len(steps):
        for index, step in enumerate(steps):
            before = [writers[tensor] for tensor in step.sources if tensor in writers]
            if index not in level and all(each in level for each in before):
                level[index] = 1 + max([level[each] for each in before], default=-1)
    between: dict[tuple[int, int], list[str]] = {}
    for index, step in enumerate(steps):
        for tensor in sorted(step.sources):
            between.setdefault((writers.get(tensor, INPUTS), index), []).append(tensor)
    for tensor in outputs:
        between.setdefault((writers.get(tensor, INPUTS), OUTPUTS), []).append(tensor)
    levels = tuple(tuple(i for i in range(len(steps)) if level[i] == n) for n in range(max(level.values()) + 1))
    edges = tuple((start, end, tuple(tensors)) for (start, end), tensors in between.items())
    return GraphLayout(name, inputs, outputs, tuple(steps), levels, edges)
