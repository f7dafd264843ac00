"""Graphs as text, for graphviz and as SVG."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from html import escape

from trident.core.config.ensemble import EnsembleStep

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
    """The layout of an ensemble that is valid: without cycles, and each tensor has one source."""
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


_BOX_WIDTH, _BOX_HEIGHT = 160, 36
_COLUMN, _ROW = 320, 72
_MARGIN = 24


def text_drawing(graphs: Sequence[GraphLayout]) -> str:
    """A block for each ensemble: a line for each step, with the number of those that run before it."""
    return "\n".join(_text(graph) for graph in graphs)


def _text(graph: GraphLayout) -> str:
    lines = [f"{graph.name}: {', '.join(graph.inputs)} -> {', '.join(graph.outputs)}"]
    width = max(len(graph.title(index)) for index in range(len(graph.steps)))
    for number, level in enumerate(graph.levels, 1):
        for index in level:
            step = graph.steps[index]
            flow = f"{', '.join(sorted(step.sources))} -> {', '.join(sorted(step.results))}"
            lines.append(f"  {number}  {graph.title(index):<{width}}  {flow}")
    return "\n".join(lines) + "\n"


def dot_drawing(graphs: Sequence[GraphLayout]) -> str:
    """A digraph for each ensemble, in graphviz's language."""
    return "\n".join(_dot(graph) for graph in graphs)


def _dot(graph: GraphLayout) -> str:
    lines = [f"digraph {json.dumps(graph.name)} {{", "  rankdir=LR;", "  node [shape=box];"]
    lines += ['  inputs [label="request" shape=oval];', '  outputs [label="response" shape=oval];']
    lines += [f"  step{index} [label={json.dumps(graph.title(index))}];" for index in range(len(graph.steps))]
    for start, end, tensors in graph.edges:
        label = json.dumps(", ".join(tensors))
        lines.append(f"  {_node(start)} -> {_node(end)} [label={label}];")
    return "\n".join([*lines, "}", ""])


def _node(index: int) -> str:
    return {INPUTS: "inputs", OUTPUTS: "outputs"}.get(index, f"step{index}")


def svg_drawing(graphs: Sequence[GraphLayout]) -> str:
    """One picture with the ensembles below each other; the steps that run at the same time are in one column."""
    parts: list[str] = []
    top, width = _MARGIN, 0
    for graph in graphs:
        drawn, right, height = _svg(graph, top)
        parts += drawn
        width = max(width, right)
        top += height + _MARGIN
    head = f'<svg xmlns="http://www.w3.org/2000/svg" width="{width + _MARGIN}" height="{top}" '
    head += 'font-family="sans-serif" font-size="12">'
    marker = (
        '<defs><marker id="arrow" viewBox="0 0 8 8" refX="8" refY="4" markerWidth="8" markerHeight="8" orient="auto">'
        '<path d="M0,0 L8,4 L0,8 z"/></marker></defs>'
    )
    return "\n".join([head, marker, *parts, "</svg>", ""])


def _svg(graph: GraphLayout, top: int) -> tuple[list[str], int, int]:
    """The elements of one graph, and where it ends: on the right, and below `top`."""
    columns: list[Sequence[int]] = [(INPUTS,), *graph.levels, (OUTPUTS,)]
    rows = max(len(column) for column in columns)
    places: dict[int, tuple[int, int]] = {}
    for number, column in enumerate(columns):
        for row, index in enumerate(column):
            middle = (rows - len(column)) * _ROW // 2
            places[index] = (_MARGIN + number * _COLUMN, top + _MARGIN + middle + row * _ROW)
    parts = [f'<text x="{_MARGIN}" y="{top}" font-weight="bold">{escape(graph.name)}</text>']
    for start, end, tensors in graph.edges:
        (x1, y1), (x2, y2) = places[start], places[end]
        x1, y1, y2 = x1 + _BOX_WIDTH, y1 + _BOX_HEIGHT // 2, y2 + _BOX_HEIGHT // 2
        middle = (x1 + x2) // 2
        parts.append(
            f'<path d="M{x1},{y1} C{middle},{y1} {middle},{y2} {x2},{y2}" fill="none" stroke="black" '
            'marker-end="url(#arrow)"/>'
        )
        label = escape(", ".join(tensors))
        parts.append(f'<text x="{middle}" y="{(y1 + y2) // 2 - 4}" text-anchor="middle">{label}</text>')
    for index, (x, y) in places.items():
        title = {INPUTS: "request", OUTPUTS: "response"}.get(index) or graph.title(index)
        radius = _BOX_HEIGHT // 2 if index < 0 else 4
        parts.append(
            f'<rect x="{x}" y="{y}" width="{_BOX_WIDTH}" height="{_BOX_HEIGHT}" rx="{radius}" fill="white" '
            'stroke="black"/>'
        )
        centre = f'x="{x + _BOX_WIDTH // 2}" y="{y + _BOX_HEIGHT // 2 + 4}"'
        parts.append(f'<text {centre} text-anchor="middle">{escape(title)}</text>')
    return parts, _MARGIN + (len(columns) - 1) * _COLUMN + _BOX_WIDTH, _MARGIN + rows * _ROW


DRAWINGS: dict[str, Callable[[Sequence[GraphLayout]], str]] = {
    "text": text_drawing,
    "dot": dot_drawing,
    "svg": svg_drawing,
}
