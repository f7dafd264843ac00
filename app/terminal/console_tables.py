"""The tables that the server prints at startup, with the borders of tritonserver's tables."""

from __future__ import annotations

import textwrap
from collections.abc import Iterable, Sequence
from typing import NamedTuple

from core.observability.log_text import escaped

_WIDEST_LINE = 110


class ModelRow(NamedTuple):
    """One version of a model at startup; unknown fields are empty."""

    model: str
    version: str
    state: str
    device: str = ""
    execution_provider: str = ""
    reason: str = ""


def table(headings: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """A text table, without a final line break. Long cells are wrapped at blanks and keep their line breaks.

    Every line begins with `|` or `+` and contains no control character, whatever is in the cells.
    """
    wrapped = [[_lines(cell) for cell in row] for row in (headings, *rows)]
    widths = [max(len(line) for row in wrapped for line in row[column]) for column in range(len(headings))]
    border = "+" + "+".join("-" * (width + 2) for width in widths) + "+"
    head, *body = (_row(cells, widths) for cells in wrapped)
    return "\n".join([border, *head, border, *(line for row in body for line in row), border])


def models_table(rows: Iterable[ModelRow]) -> str:
    return table(("Model", "Version", "State", "Device", "Execution provider", "Reason"), rows)


def options_table(rows: Iterable[Sequence[str]]) -> str:
    """The table of `ServerSettings.describe()`."""
    return table(("Option", "Value", "From"), rows)


def addresses_table(rows: Iterable[Sequence[str]]) -> str:
    """The table of services and their addresses."""
    return table(("Service", "Address"), rows)


def _lines(cell: str) -> list[str]:
    lines: list[str] = []
    for line in cell.rstrip("\n").split("\n"):
        lines += textwrap.wrap(escaped(line), _WIDEST_LINE, break_long_words=False, break_on_hyphens=False) or [""]
    return lines


def _row(cells: Sequence[list[str]], widths: Sequence[int]) -> list[str]:
    height = max(len(lines) for lines in cells)
    padded = [lines + [""] * (height - len(lines)) for lines in cells]
    return [
        "| " + " | ".join(lines[at].ljust(width) for lines, width in zip(padded, widths, strict=True)) + " |"
        for at in range(height)
    ]
